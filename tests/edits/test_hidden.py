# SPDX-License-Identifier: Apache-2.0
"""A mount of the container's own over what the hook writes is told, since the hook cannot see it."""

import attrs
import pytest

from nri_nvidia import pipeline
from nri_nvidia.edits import options
from nri_nvidia.request import container
from tests import inventories
from tests.field import harness

CODE = "loader-cache-hidden"


def said(*env, at="/etc", inject=None, capabilities="all", devices="0", **more):
    """Give the reasons by which the cache is told to be hidden, of a container with one mount."""
    mount = container.Mount(source="/x", destination=at, type="bind", **more)
    plan = pipeline.plan(
        container.Container(
            env=(
                f"NVIDIA_VISIBLE_DEVICES={devices}",
                f"NVIDIA_DRIVER_CAPABILITIES={capabilities}",
                *env,
            ),
            mounts=(mount,),
        ),
        inventories.EIGHT,
        pipeline.Policy(inject=inject or options.InjectOptions()),
    )
    assert plan.decision is pipeline.Decision.INJECT
    return [reason for reason in plan.reasons if reason.code == CODE]


@pytest.mark.parametrize("at", ["/etc", "/etc/", "//etc/.", "/etc/ld.so.cache"])
@pytest.mark.parametrize("capabilities", ["compute", "all"])
def test_the_mount_is_named_with_what_to_do(at, capabilities):
    """Whatever else the container has there: the variable that helps is in the hint."""
    (reason,) = said(at=at, capabilities=capabilities)
    place = "/etc/ld.so.cache" if "cache" in at else "/etc"
    assert f"own mount {place} hides" in reason.message
    assert "LD_LIBRARY_PATH=/usr/local/nvidia/lib64" in reason.hint


@pytest.mark.parametrize(
    "at",
    ["/", "/etc/hosts", "/etc/ld.so.conf", "/etc/ld.so.cache.d", "/data/etc", "/usr/local/etc"],
)
def test_other_mounts_hide_nothing(at):
    """Engines themselves mount files below /etc in every container."""
    assert said(at=at) == []


def test_a_search_path_makes_it_needless():
    """A container that has the directory in LD_LIBRARY_PATH, as CUDA images do, needs no cache."""
    path = "/usr/local/nvidia/lib:/usr/local/nvidia/lib64"
    assert said(f"LD_LIBRARY_PATH={path}") == []
    assert said("LD_LIBRARY_PATH=/usr/local/nvidia/lib64/") == []
    assert len(said("LD_LIBRARY_PATH=/usr/local/nvidia/lib:/opt")) == 1
    inject = options.InjectOptions(env=("LD_LIBRARY_PATH=/usr/local/nvidia/lib64",))
    assert said(inject=inject) == []
    assert len(said("LD_LIBRARY_PATH=/opt", inject=inject)) == 1  # the container's own stands


def test_where_the_hook_writes_no_cache():
    """Switched off, or without that step, there is nothing to be hidden."""
    assert said(inject=options.InjectOptions(hook=None)) == []
    hook = options.HookOptions(skipped=("ldcache",))
    assert said(inject=options.InjectOptions(hook=hook)) == []


def test_another_directory_is_told_by_its_name():
    """The hint has the directory that the settings name, for `none` as well."""
    (reason,) = said(inject=options.InjectOptions(library_dir="/opt/driver"), devices="none")
    assert "LD_LIBRARY_PATH=/opt/driver/lib64" in reason.hint


def test_a_container_alike_without_the_mount_is_told_nothing():
    """What is made once for many containers has no reason of one of them."""
    assert [len(said(at=at)) for at in ("/etc", "/data", "/etc")] == [1, 0, 1]


def test_a_prepared_directory_is_hidden_as_well(tmp_path):
    """In the layout `volume` there is one mount, and the same cache."""
    inject = options.InjectOptions(layout="volume")
    mount = container.Mount(source="/x", destination="/etc", type="bind")
    asked = container.Container(env=("NVIDIA_VISIBLE_DEVICES=0",), mounts=(mount,))
    rules = pipeline.Policy(inject=inject)
    wanted = pipeline.plan(asked, inventories.EIGHT, rules).unprepared
    ready = pipeline.Context(volumes={wanted.name: str(tmp_path)})
    plan = pipeline.plan(asked, inventories.EIGHT, rules, ready)
    assert "/usr/local/nvidia" in harness.mounted(plan)
    assert [reason.code for reason in plan.reasons] == [CODE]
    assert attrs.evolve(plan, reasons=()) == attrs.evolve(
        pipeline.plan(attrs.evolve(asked, mounts=()), inventories.EIGHT, rules, ready), reasons=()
    )
