# SPDX-License-Identifier: Apache-2.0
"""Where a container's cgroup is."""

import pytest

from nri_nvidia.daemon import cgroups


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("/docker/abc", "/docker/abc"),
        ("/a//b/", "/a/b"),
        ("system.slice:docker:abc", "/system.slice/docker-abc.scope"),
        (":docker:abc", "/system.slice/docker-abc.scope"),
        ("user.slice::abc", "/user.slice/abc.scope"),
        ("-.slice:docker:abc", "/docker-abc.scope"),
        ("a-b.slice:c:d", "/a.slice/a-b.slice/c-d.scope"),
        ("a-b-c.slice:cri:d", "/a.slice/a-b.slice/a-b-c.slice/cri-d.scope"),
        ("", ""),
        ("/", ""),
        ("relative/path", ""),
        ("/a/../b", ""),
        ("a:b", ""),
        ("a.slice:b:", ""),
        ("a.slice:../..:c", ""),
    ],
)
def test_the_forms_of_config_json(path, place):
    """cgroupfs' and systemd's; where neither is meant, nothing is looked at."""
    assert cgroups.place(path) == place


def test_any_hierarchy_counts(tmp_path):
    """In cgroup 1 a controller may be a hierarchy of its own."""
    (tmp_path / "devices/docker/x").mkdir(parents=True)
    (tmp_path / "memory").mkdir()
    (tmp_path / "file").touch()
    assert cgroups.exists("/docker/x", str(tmp_path))
    assert not cgroups.exists("/docker/y", str(tmp_path))
    (tmp_path / "docker/y").mkdir(parents=True)
    assert cgroups.exists("/docker/y", str(tmp_path))
    assert not cgroups.exists("", str(tmp_path))
    assert not cgroups.exists("/docker/x", str(tmp_path / "none"))
