# SPDX-License-Identifier: Apache-2.0
"""Edits made to a config.json: unknown keys stay, and what was given once is not given again."""

import copy
from pathlib import Path

import attrs
import pytest

from nri_nvidia import pipeline
from nri_nvidia.host import cache
from nri_nvidia.host import options as host_options
from nri_nvidia.oci import bundle
from nri_nvidia.render import oci, patch

HOSTS = Path(__file__).parents[1] / "hosts"
SPEC = {
    "process": {"env": ["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=all"], "cwd": "/"},
    "linux": {"resources": {"memory": {"limit": 1}}, "devices": None},
    "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
    "hooks": {"poststop": [{"path": "/x"}]},
}


@pytest.mark.parametrize("host", ["debian-8xh100", "debian-mig", "ubuntu-1xl4"])
@pytest.mark.parametrize("layout", ["files", "volume"])
@pytest.mark.parametrize("hooked", [True, False])
def test_a_second_decision_adds_nothing(host, layout, hooked):
    """By the hook, else by nodes and files, whichever layout they have."""
    found = cache.Cache(host_options.Options.for_recorded(str(HOSTS / host)))
    found.refresh_nvml()
    inventory = found.get()
    rules = pipeline.Policy()
    hook = rules.inject.hook if hooked else None
    rules = attrs.evolve(rules, inject=attrs.evolve(rules.inject, layout=layout, hook=hook))
    first = pipeline.plan(bundle.container(SPEC), inventory, rules)
    if first.unprepared:
        volumes = {first.unprepared.name: f"/var/lib/nri-nvidia/driver/{first.unprepared.name}"}
        context = pipeline.Context(volumes=volumes)
        first = pipeline.plan(bundle.container(SPEC), inventory, rules, context)
    assert first.edits.devices
    once = oci.patched(SPEC, first.edits)
    second = pipeline.plan(bundle.container(once), inventory, rules)
    assert second.created
    assert oci.patched(once, second.edits) == once


def test_all_else_is_kept():
    """Also where a part is null, as Go writes an empty one."""
    before = copy.deepcopy(SPEC)
    spec = copy.deepcopy(SPEC)
    patch.apply(spec, {
        "env": {"A": "1"},
        "devices": [{"path": "/dev/a"}],
        "rules": [{"allow": True}],
        "mounts": [{"destination": "/proc", "source": "x"}, {"destination": "/b"}],
        "hooks": {"poststop": [{"path": "/y"}], "createContainer": [{"path": "/z"}]},
    })  # fmt: skip
    assert spec == {
        "process": {"env": [*before["process"]["env"], "A=1"], "cwd": "/"},
        "linux": {
            "resources": {"memory": {"limit": 1}, "devices": [{"allow": True}]},
            "devices": [{"path": "/dev/a"}],
        },
        "mounts": [{"destination": "/proc", "source": "x"}, {"destination": "/b"}],
        "hooks": {
            "poststop": [{"path": "/x"}, {"path": "/y"}],
            "createContainer": [{"path": "/z"}],
        },
    }


def test_nothing_is_made_of_nothing():
    """An empty patch leaves a specification as it is."""
    spec = copy.deepcopy(SPEC)
    patch.apply(spec, {})
    assert spec == SPEC
    patch.apply(empty := {}, {"rules": [], "hooks": {}, "env": {}})
    assert empty == {}


@pytest.mark.parametrize("empty", [0, "", False, 0.0])
@pytest.mark.parametrize(
    ("spec", "change"),
    [
        (lambda e: {"linux": e}, {"devices": [{"path": "/dev/x"}]}),
        (lambda e: {"linux": {"devices": e}}, {"devices": [{"path": "/dev/x"}]}),
        (lambda e: {"process": {"env": e}}, {"env": {"A": "b"}}),
        (lambda e: {"mounts": e}, {"mounts": [{"destination": "/x"}]}),
        (lambda e: {"hooks": {"prestart": e}}, {"hooks": {"prestart": [{"path": "/x"}]}}),
    ],
)
def test_what_is_no_config_is_not_made_one(empty, spec, change):
    """A number or text where a table or list belongs is the runtime's to refuse, as null is not."""
    with pytest.raises((TypeError, AttributeError)):
        patch.apply(spec(empty), change)
    patch.apply(spec(None), change)
