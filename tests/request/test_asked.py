# SPDX-License-Identifier: Apache-2.0
"""A request that is known from a container alike is the one that would be read."""

import attrs
import hypothesis
from hypothesis import strategies as st

from nri_nvidia.request import asked, extras, model, mountlist, parse, policy, requirements, rules
from nri_nvidia.request import container as containers

NAMES = (
    parse.VISIBLE_DEVICES, parse.DRIVER_CAPABILITIES, parse.IMEX_CHANNELS, "CUDA_VERSION",
    "NVIDIA_REQUIRE_CUDA", "NVIDIA_REQUIRE_JETPACK", requirements.DISABLE, "SWARM", "PATH",
    *map(extras.variable, model.Group), *map(extras.managing, model.MigManagement),
)  # fmt: skip
VALUES = ("", "all", "none", "void", "0", "0,1", "GPU-1", "compute,utility", "display", "nonsense",
          "enabled", "12.4", "1", "csv-mounts=all", "cuda>=12.0", "nvidia.com/gpu=all",
          "management.nvidia.com/gpu=all", "x" * 5000)  # fmt: skip
ENTRIES = st.one_of(
    st.builds("{}={}".format, st.sampled_from(NAMES), st.sampled_from(VALUES)),
    st.sampled_from([*NAMES, "NVIDIA_", "CUDA_VERSION_X=1"]),
)
CONTAINERS = st.builds(
    containers.Container,
    id=st.just("c"),
    name=st.sampled_from(["", "n"]),
    pod=st.sampled_from(["", "p"]),
    namespace=st.sampled_from(["", "team", "gpu-operator"]),
    annotations=st.dictionaries(
        st.sampled_from(["cdi.k8s.io/x", "nvidia.cdi.k8s.io/pod", "other"]),
        st.sampled_from(["nvidia.com/gpu=0", ""]),
        max_size=1,
    ),
    env=st.lists(ENTRIES, max_size=5).map(tuple),
    mounts=st.lists(
        st.builds(
            containers.Mount,
            source=st.sampled_from(["/dev/null", "/dev//null", "/x"]),
            destination=st.sampled_from([f"{mountlist.ROOT}/0", f"{mountlist.ROOT}/imex/0"]),
        ),
        max_size=1,
    ).map(tuple),
    privileged=st.sampled_from([None, False, True]),
)
RULES = st.builds(
    policy.RequestPolicy,
    accept_env_when_unprivileged=st.booleans(),
    accept_volume_mounts=st.booleans(),
    disable_require=st.booleans(),
    ignore_imex_channels=st.booleans(),
    swarm_resources=st.sampled_from([(), ("SWARM",)]),
    annotation_prefixes=st.sampled_from([(), ("cdi.k8s.io/",)]),
    accept_pod_annotations=st.booleans(),
    management_namespaces=st.sampled_from([(), ("gpu-operator",)]),
    access=st.sampled_from([rules.Access(), rules.Access(preset=rules.Preset.STRICT)]),
)


def shown(parsed):
    """Give what was read with its error as text: two errors are never equal."""
    return attrs.evolve(parsed, error=None), str(parsed.error)


@hypothesis.settings(deadline=None)
@hypothesis.given(CONTAINERS, RULES)
def test_what_is_known_is_what_would_be_read(container, rules):
    """With any variables, annotations, mounts and settings, the first time and the next ones."""
    expected = shown(parse.parse(container, rules))
    assert shown(asked.parse(container, rules)) == expected
    assert shown(asked.parse(attrs.evolve(container, id="d"), rules)) == expected


def test_containers_alike_are_read_once():
    """What else is in their environment is no matter."""
    rules = policy.RequestPolicy()
    first, second = (
        containers.Container(id=name, env=(f"HOSTNAME={name}", "NVIDIA_VISIBLE_DEVICES=0"))
        for name in "ab"
    )
    assert asked.parse(first, rules) is asked.parse(second, rules)


def test_what_is_long_is_not_kept():
    """A container cannot fill the memory with what it asks."""
    entry = f"NVIDIA_VISIBLE_DEVICES=0{',0' * 5000}"
    container = containers.Container(env=(entry,))
    first, second = (asked.parse(container, policy.RequestPolicy()) for _ in range(2))
    assert first == second
    assert first is not second
