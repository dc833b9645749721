# SPDX-License-Identifier: Apache-2.0
"""Field cases: the nodes that graphics needs."""

import attrs
import pytest

from nri_nvidia.testing import host_spec

from . import harness
from .harness import asked, capable, codes, decide, mounted, nodes

BY_PATH = "/dev/dri/by-path"
TWO = harness.gpus(2)


def drm(plan):
    return [path for path in nodes(plan) if path.startswith("/dev/dri/")]


@pytest.mark.parametrize("capabilities", ["graphics", "display", "compute,graphics", "all"])
def test_only_the_given_gpus_drm_nodes(tmp_path, capabilities):
    """FC-064, FC-021: beside an integrated GPU, `0` with graphics has card1 and renderD129 alone."""
    found = harness.built(tmp_path, gpus=TWO, drm=True)
    plan = decide(found, *asked("0", capable(capabilities)))
    assert drm(plan) == ["/dev/dri/card1", "/dev/dri/renderD129"]
    second = decide(found, *asked("1", capable(capabilities)))
    assert drm(second) == ["/dev/dri/card2", "/dev/dri/renderD130"]
    both = decide(found, *asked("all", capable(capabilities)))
    assert drm(both) == [*drm(plan), *drm(second)]
    for each in (plan, second, both):
        assert mounted(each)[BY_PATH] == BY_PATH


@pytest.mark.parametrize("capabilities", ["compute", "utility", "video", "ngx", "compute,utility"])
def test_no_drm_node_without_graphics(tmp_path, capabilities):
    """FC-064: compute only has none, and none of udev's links either."""
    found = harness.built(tmp_path, gpus=TWO, drm=True)
    plan = decide(found, *asked("all", capable(capabilities)))
    assert plan.created
    assert drm(plan) == []
    assert BY_PATH not in mounted(plan)


def test_a_mig_device_has_drm_nodes_only_where_it_can_do_graphics(tmp_path):
    """FC-064: the GPU's nodes are for MIG devices with a graphics profile alone."""
    migs = (host_spec.MigSpec(gi=1), host_spec.MigSpec(gi=2, profile="1g.10gb+gfx"))
    gpu = host_spec.GpuSpec(mig_enabled=True, mig=migs)
    found = harness.built(tmp_path, gpus=(gpu,), drm=True)
    plain = decide(found, *asked("0:0", capable("graphics")))
    assert (drm(plain), BY_PATH in mounted(plain)) == ([], False)
    able = decide(found, *asked("0:1", capable("graphics")))
    assert drm(able) == ["/dev/dri/card1", "/dev/dri/renderD129"]


def test_drm_nodes_are_for_every_user_of_the_container(tmp_path):
    """FC-064: no group can be given through NRI, so the container's own node is for all."""
    found = harness.built(tmp_path, gpus=TWO, drm=True)
    assert {node.mode for node in found.gpus[0].dri_nodes} == {0o660}
    plan = decide(found, *asked("0", capable("graphics")))
    given = [d for d in plan.edits.devices if d.path.startswith("/dev/dri/")]
    assert [(d.mode, d.gid, d.access) for d in given] == [(0o666, 44, "rw"), (0o666, 106, "rw")]


def test_drm_nodes_in_a_user_namespace(tmp_path):
    """FC-064: there the runtime binds the host's node, whose rights keep others out: it is said."""
    found = harness.built(tmp_path, gpus=TWO, drm=True)
    plan = decide(found, *asked("0", capable("graphics")), user_namespace=True)
    assert plan.created
    assert codes(plan) == ["drm-nodes-closed"]
    assert "/dev/dri/card1, /dev/dri/renderD129" in plan.reasons[0].message
    open_nodes = tuple(attrs.evolve(node, mode=0o666) for node in found.gpus[0].dri_nodes)
    gpus = (attrs.evolve(found.gpus[0], dri_nodes=open_nodes), found.gpus[1])
    opened = attrs.evolve(found, gpus=gpus)
    plan = decide(opened, *asked("0", capable("graphics")), user_namespace=True)
    assert "drm-nodes-closed" not in codes(plan)


@pytest.mark.parametrize("place", ["/dev", "/dev/dri", BY_PATH, "/dev/dri/"])
def test_a_bind_mount_of_the_containers_own_is_left_alone(tmp_path, place):
    """FC-064: who mounts the host's /dev or /dev/dri has its links already."""
    found = harness.built(tmp_path, gpus=TWO, drm=True)
    mounts = (harness.containers.Mount(source="/dev", destination=place, type="bind"),)
    plan = decide(found, *asked("0", capable("graphics")), mounts=mounts)
    assert plan.created
    assert BY_PATH not in mounted(plan)


def test_a_runtimes_own_dev_is_no_mount_from_outside(tmp_path):
    """FC-064: every container has a tmpfs at /dev, in which the links have their place."""
    found = harness.built(tmp_path, gpus=TWO, drm=True)
    mounts = (harness.containers.Mount(source="tmpfs", destination="/dev", type="tmpfs"),)
    plan = decide(found, *asked("0", capable("graphics")), mounts=mounts)
    assert BY_PATH in mounted(plan)


def test_graphics_has_the_modeset_node_where_there_is_one(tmp_path):
    """FC-018: it is made or given where it can be; without it graphics is given, and that is said."""
    spec = {"gpus": TWO, "missing_nodes": ("/dev/nvidia-modeset",)}
    made = harness.built(tmp_path / "one", **spec)
    plan = decide(made, *asked("0", capable("graphics")))
    assert "/dev/nvidia-modeset" in nodes(plan)
    assert "modeset-left-out" not in codes(plan)
    missing = harness.built(tmp_path / "two", create=False, **spec)
    plan = decide(missing, *asked("0", capable("graphics")))
    assert plan.created
    assert "/dev/nvidia-modeset" not in nodes(plan)
    assert "modeset-left-out" in codes(plan)
    assert decide(missing, *asked("0", capable("compute"))).reasons == ()
