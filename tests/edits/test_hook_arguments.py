# SPDX-License-Identifier: Apache-2.0
"""What a plan tells the hook is what the hook takes: one word that it refuses undoes all of it."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nri_nvidia import pipeline
from nri_nvidia.host import options, scan
from nri_nvidia.oci import hook
from nri_nvidia.request import container as containers
from tests.field import strategies
from tests.field.harness import asked, capable, decide

HOSTS = Path(__file__).parents[1] / "hosts"


def taken(plan):
    """Read the arguments of a plan's hooks as the hook does; give them by option."""
    found = {}
    for each in plan.edits.hooks:
        found = {key: [default] for key, (_, default) in hook.OPTIONS.items()}
        hook.parse(list(each.args[4:]), found)
    return found


@settings(max_examples=150, deadline=None)
@given(data=st.data(), inventory=strategies.hosts(), capabilities=strategies.CAPABILITIES)
def test_whatever_the_host_has(data, inventory, capabilities):
    """On any host and for any request the hook takes its command line."""
    env = asked(data.draw(strategies.asks(inventory)), capable(capabilities))
    plan = decide(inventory, *env, privileged=data.draw(st.sampled_from([None, False, True])))
    found = taken(plan)
    if plan.edits.hooks and found["--show"][-1] != ".":
        shown = [each for each in found["--show"][1:] if each.startswith("gpus/")]
        assert len(shown) == len({item.gpu.bus_id for item in plan.assigned})


@pytest.mark.parametrize("name", sorted(path.name for path in HOSTS.iterdir()))
@pytest.mark.parametrize("capabilities", ["all", "compute,utility", "graphics", "video"])
def test_on_every_recorded_host(name, capabilities):
    """On each kind of host the hook takes its command line, and is told of links to files it has."""
    inventory = scan.scan(options.Options.for_recorded(str(HOSTS / name)))
    env = ("NVIDIA_VISIBLE_DEVICES=all", f"NVIDIA_DRIVER_CAPABILITIES={capabilities}")
    plan = pipeline.plan(containers.Container(env=env), inventory, pipeline.Policy())
    found = taken(plan)
    there = {mount.destination for mount in plan.edits.mounts}
    for place in found.get("--place", [""])[1:]:
        assert f"/usr/local/nvidia/{place.partition('=')[2]}" in there
