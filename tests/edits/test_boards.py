# SPDX-License-Identifier: Apache-2.0
"""What a container's spec already holds on hosts where a GPU is made up of other nodes."""

import pathlib

import pytest

from nri_nvidia import pipeline
from nri_nvidia.daemon import adoption
from nri_nvidia.host import scan
from nri_nvidia.host.options import Options
from nri_nvidia.request import container as containers

HOSTS = pathlib.Path(__file__).parents[1] / "hosts"
HOSTS_WITH_NODES = {"wsl-no-nvml": ["/dev/dxg"], "jetson-xavier": None}


def look(name):
    return scan.scan(Options.for_recorded(str(HOSTS / name)))


def devices(found, count=None):
    nodes = found.gpus[0].nodes[:count]
    return tuple(
        containers.Device(path=node.path, type="c", major=node.major, minor=node.minor)
        for node in nodes
    )


@pytest.mark.parametrize("name", HOSTS_WITH_NODES)
def test_all_nodes_are_a_gpu(name):
    """A container whose spec has all of a GPU's nodes has that GPU: it gets the files alone."""
    found = look(name)
    given = containers.Container(env=("NVIDIA_VISIBLE_DEVICES=0",), devices=devices(found))
    plan = pipeline.plan(given, found, pipeline.Policy())
    assert plan.created
    assert plan.edits.devices == ()
    assert plan.edits.mounts != ()
    assert [reason.code for reason in plan.reasons] == ["devices-in-spec"]
    (held,) = adoption.entry(given, found).held
    assert held.index == 0


def test_some_of_the_nodes_are_none():
    """One node of a Jetson (a display, a mapping) is no GPU: the rest is given where it is asked."""
    found = look("jetson-xavier")
    given = containers.Container(env=("NVIDIA_VISIBLE_DEVICES=0",), devices=devices(found, 1))
    plan = pipeline.plan(given, found, pipeline.Policy())
    assert len(plan.edits.devices) == len(found.gpus[0].nodes) - 1
    assert adoption.entry(given, found).held == ()
