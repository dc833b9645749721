# SPDX-License-Identifier: Apache-2.0
"""How devices may be named, on which channel, and who may name what."""

import contextlib

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_nvidia import errors, pipeline
from nri_nvidia.oci import bundle
from nri_nvidia.request import container, model, mountlist, names, parse, policy
from tests import inventories

UUID = inventories.UUIDS[3]
KEY = "cdi.k8s.io/nvidia-device-plugin_1"


def decide(*env, inventory=inventories.EIGHT, mounts=(), annotations=None, rules=None, **more):
    shown = container.Container(
        env=env,
        mounts=tuple(
            container.Mount(source="/dev/null", destination=f"{mountlist.ROOT}/{each}")
            for each in mounts
        ),
        annotations={} if annotations is None else annotations,
        **more,
    )
    rules = rules or policy.RequestPolicy(accept_volume_mounts=True)
    return pipeline.plan(shown, inventory, pipeline.Policy(request=rules))


def indices(plan):
    return [item.gpu.index for item in plan.assigned]


def codes(plan):
    return [reason.code for reason in plan.reasons]


@pytest.mark.parametrize("kind", ["nvidia.com/gpu", "runtime.nvidia.com/gpu"])
@pytest.mark.parametrize("device", ["3", "gpu3", UUID, f"{UUID}::2", "all", "none"])
def test_cdi_names_on_every_channel(kind, device):
    """A name means the same in the variable, in a mount, in a resource variable, an annotation."""
    name = f"{kind}={device}"
    swarm = policy.RequestPolicy(swarm_resources=("GPUS",))
    path = f"{kind}/{device}"
    plans = [
        decide(f"NVIDIA_VISIBLE_DEVICES={name}"),
        decide(f"GPUS={name}", rules=swarm),
        decide(mounts=[f"cdi/{path}"]),
        decide(mounts=[f"cdi/{name}"]),
        decide(annotations={KEY: name}),
    ]
    expected = {"all": list(range(8)), "none": []}.get(device, [3])
    assert [indices(plan) for plan in plans] == [expected] * len(plans)
    assert {plan.decision for plan in plans} == {pipeline.Decision.INJECT}


@pytest.mark.parametrize("value", ["none", "nvidia.com/gpu=none", "none,nvidia.com/gpu=3"])
def test_none_in_an_annotation_is_the_cdi_name(value):
    """An id without a kind is one of NVIDIA's GPUs there: the driver's files, and no GPU."""
    plan = decide(annotations={KEY: value})
    assert (plan.decision, indices(plan)) == (pipeline.Decision.INJECT, [])
    assert plan.edits.mounts


@pytest.mark.parametrize("end", ["", "/pod", "/container.main"])
def test_none_in_the_annotation_of_nvidias_plugin(end):
    """Where that plugin's annotations are served, none means there what it means in others."""
    rules = policy.RequestPolicy(accept_pod_annotations=True)
    key = {f"nvidia.cdi.k8s.io{end}": " none ,"}
    plan = decide("NVIDIA_VISIBLE_DEVICES=3", name="main", annotations=key, rules=rules)
    assert (plan.decision, indices(plan)) == (pipeline.Decision.INJECT, [])
    assert f"is what annotation nvidia.cdi.k8s.io{end} asks for" in plan.reasons[0].message


def test_mig_devices_by_type_and_index():
    """`mig0:1` is the name that NVIDIA's specifications have for the MIG device 0:1."""
    host = inventories.mig_host()
    for name in ("nvidia.com/gpu=mig0:1", "nvidia.com/gpu=0:1", "0:1::3"):
        (item,) = decide(f"NVIDIA_VISIBLE_DEVICES={name}", inventory=host).assigned
        assert (item.gpu.index, item.mig.index) == (0, 1)


def test_replicas_of_one_gpu_are_one_gpu():
    """A container that was allocated two shares of a GPU gets it once."""
    assert indices(decide(f"NVIDIA_VISIBLE_DEVICES={UUID}::0,{UUID}::3")) == [3]


def test_order_of_the_channels():
    """Annotations beat mounts, mounts beat resource variables, these beat the variable."""
    rules = policy.RequestPolicy(accept_volume_mounts=True, swarm_resources=("GPUS",))
    env = ("GPUS=2", "NVIDIA_VISIBLE_DEVICES=3")
    plan = decide(*env, mounts=["1"], annotations={KEY: "nvidia.com/gpu=0"}, rules=rules)
    assert (indices(plan), codes(plan)) == ([0], ["environment-passed-over"])
    assert indices(decide(*env, mounts=["1"], rules=rules)) == [1]
    assert indices(decide(*env, rules=rules)) == [2]
    assert indices(decide(env[1], rules=rules)) == [3]


def test_annotation_of_the_pod_is_its_authors_and_does_not_count():
    """Only what the kubelet hands on with the container is trusted; a runtime may copy a pod's."""
    trusting = policy.RequestPolicy(accept_env_when_unprivileged=False)
    forged = {KEY: "nvidia.com/gpu=all"}
    plan = decide(annotations=forged, pod_annotations=forged, rules=trusting)
    assert (plan.decision, plan.request) == (pipeline.Decision.IGNORE, None)
    real = {KEY: "nvidia.com/gpu=0"}
    assert indices(decide(annotations=real, pod_annotations=forged, rules=trusting)) == [0]


def test_annotations_of_a_spec_made_by_a_cri_runtime_do_not_count():
    """Its config.json holds the container's and the pod's, and nothing tells which is which."""
    annotations = {KEY: "nvidia.com/gpu=0"}
    given = bundle.container({"annotations": annotations})
    assert parse.parse(given, policy.RequestPolicy()).request.devices == ("nvidia.com/gpu=0",)
    annotations["io.kubernetes.cri.container-type"] = "container"
    given = bundle.container({"annotations": annotations})
    assert parse.parse(given, policy.RequestPolicy()) == parse.Parsed()


def test_annotations_of_other_vendors_are_the_runtimes():
    """They neither ask for a GPU nor hide that something else does."""
    foreign = {"cdi.k8s.io/a": "vendor.com/nic=0", "cdi.k8s.io/b": "gpu.intel.com/gpu=1"}
    assert decide(annotations=foreign).request is None
    assert indices(decide("NVIDIA_VISIBLE_DEVICES=3", annotations=foreign)) == [3]
    both = {"cdi.k8s.io/a": "vendor.com/nic=0,nvidia.com/gpu=2"}
    assert indices(decide(annotations=both)) == [2]


def test_annotations_can_be_left_alone():
    """Without prefixes no annotation is read."""
    rules = policy.RequestPolicy(annotation_prefixes=())
    assert decide(annotations={KEY: "nvidia.com/gpu=0"}, rules=rules).request is None


@pytest.mark.parametrize("name", ["vendor.com/gpu=0", "nvidia.com/other=0"])
def test_kinds_that_are_not_given_here_are_refused(name):
    """The message has the kind, those that are given, and where to ask instead."""
    for plan in (decide(f"NVIDIA_VISIBLE_DEVICES={name}"), decide(mounts=[f"cdi/{name}"])):
        assert (plan.decision, codes(plan)) == (pipeline.Decision.ERROR, ["foreign-cdi-kind"])
        assert name.partition("=")[0] in plan.reasons[0].message
        assert "nvidia.com/gpu" in plan.reasons[0].message


def test_kind_of_the_runtime_goes_with_no_other():
    """NVIDIA's runtime refuses the mixture, and so do we."""
    plan = decide("NVIDIA_VISIBLE_DEVICES=runtime.nvidia.com/gpu=0,nvidia.com/gpu=1")
    assert codes(plan) == ["mixed-cdi-kinds"]


@pytest.mark.parametrize("channel", ["env", "mounts", "annotations"])
def test_management_is_for_privileged_containers(channel):
    """Privileged, it is every GPU with the rights over MIG; else it is refused by that reason."""
    name = "management.nvidia.com/gpu=all"
    given = {
        "env": {},
        "mounts": {"mounts": [f"cdi/{name}"]},
        "annotations": {"annotations": {KEY: name}},
    }[channel]
    env = (f"NVIDIA_VISIBLE_DEVICES={name}",) if channel == "env" else ()
    caps = tuple(
        (right, inventories.node(f"/dev/nvidia-caps/nvidia-cap{n}", n, 508))
        for n, right in enumerate(("config", "monitor"), 1)
    )
    host = attrs.evolve(inventories.EIGHT, caps_nodes=caps)
    plan = decide(*env, inventory=host, privileged=True, **given)
    assert (plan.decision, indices(plan)) == (pipeline.Decision.INJECT, list(range(8)))
    assert plan.request.mig_management == tuple(model.MigManagement)
    for privileged in (False, None):
        plan = decide(*env, inventory=host, privileged=privileged, **given)
        assert (plan.decision, codes(plan)[-1]) == (
            pipeline.Decision.ERROR, "management-unprivileged",
        )  # fmt: skip


def test_namespaces_whose_pods_may_manage():
    """Pods of a namespace that the operator names may what privileged containers may."""
    rules = policy.RequestPolicy(management_namespaces=("gpu-system",))
    for asked in ("management.nvidia.com/gpu=all", "all"):
        env = (f"NVIDIA_VISIBLE_DEVICES={asked}", "NVIDIA_MIG_CONFIG_DEVICES=all")
        given = container.Container(env=env, namespace="gpu-system")
        assert parse.parse(given, rules).request.mig_management
        assert parse.parse(attrs.evolve(given, namespace="team"), rules).error


def test_mark_of_the_mounts_alone_says_what_to_set():
    """The device plugin's mark without accepted mounts is an error that names the setting."""
    plan = decide(f"NVIDIA_VISIBLE_DEVICES={mountlist.ROOT}", rules=policy.RequestPolicy())
    assert codes(plan) == ["volume-mounts-not-accepted"]
    assert "request.accept_volume_mounts" in plan.reasons[0].hint


@pytest.mark.parametrize(
    "mount", ["cdi", "cdi/", "cdi/nvidia.com", "cdi/nvidia.com/gpu", "cdi/x/=0", "imex", "imex/"]
)
def test_mount_that_names_nothing_is_told(mount):
    """It is ignored, as upstream, and the reason says how to write it."""
    plan = decide(mounts=[mount])
    assert (plan.decision, codes(plan)) == (pipeline.Decision.IGNORE, ["mount-names-no-device"])
    plan = decide("NVIDIA_VISIBLE_DEVICES=3", mounts=[mount])
    assert (indices(plan), codes(plan)) == ([3], ["mount-names-no-device"])


WORDS = st.text("abAB01-_.:/= ,\tgpumignvidia", max_size=30) | st.text(max_size=10)
NAMED = st.builds(
    "{}{}={}".format,
    st.sampled_from(["", "runtime.", "management.", "x"]),
    st.sampled_from(["nvidia.com/gpu", "nvidia.com/", "nvidia.com/imex-channel"]),
    WORDS,
)


@given(st.lists(NAMED | WORDS, max_size=4), st.booleans())
def test_any_annotation_is_decided(parts, privileged):
    """Whatever an annotation holds, it is a decision with a reason, and no GPU is guessed."""
    plan = decide(annotations={KEY: ",".join(parts)}, privileged=privileged)
    assert plan.created or plan.reasons
    if plan.assigned and not plan.request.wants_all:
        assert len(plan.assigned) <= len(plan.request.devices)


@given(NAMED | WORDS)
def test_parts_of_a_name_make_it_again(text):
    """What is read as a CDI name is one in all its characters."""
    name = names.qualified(text)
    assert name is None or f"{name.kind}={name.device}" == text
    assert names.plain(names.plain(text)) is not None


@given(st.lists(NAMED | WORDS, max_size=4))
def test_known_kinds_pass_and_others_are_refused(devices):
    """Nothing but a RequestError comes of a list of names."""
    kinds = {name.kind for text in devices if (name := names.qualified(text))}
    good = kinds < names.GPU_KINDS  # both are the mixture that is refused
    with contextlib.nullcontext() if good else pytest.raises(errors.RequestError):
        names.require_known(devices, "NVIDIA_VISIBLE_DEVICES")
