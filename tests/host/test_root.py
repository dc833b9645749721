# SPDX-License-Identifier: Apache-2.0
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nri_nvidia.host.root import Root


def test_absolute_link_resolves_inside_the_root(tree):
    """A link to an absolute path leads to that path below the root, never to the machine's."""
    tree.put("/etc/real", b"inner")
    tree.link("/etc/name", "/etc/real")
    assert Root(str(tree.top)).resolve("/etc/name") == "/etc/real"


def test_parent_steps_stop_at_the_root(tree):
    """`..` at the top stays at the top, also inside a link's target."""
    tree.put("/file", b"x")
    tree.link("/a/b/up", "../../../../../../file")
    assert Root(str(tree.top)).resolve("/a/b/up") == "/file"
    assert Root(str(tree.top)).resolve("/../../file") == "/file"


def test_parent_step_behind_a_link_leaves_the_targets_directory(tree):
    """`link/..` is the parent of what the link leads to, as the kernel has it."""
    tree.put("/far/deep/file")
    tree.put("/far/other")
    tree.link("/near", "/far/deep")
    assert Root(str(tree.top)).resolve("/near/../other") == "/far/other"


def test_loop_and_missing_are_nothing(tree):
    """Links in a circle, missing names and files used as directories resolve to None."""
    tree.link("/a", "/b")
    tree.link("/b", "/a")
    tree.put("/file")
    root = Root(str(tree.top))
    assert [root.resolve(path) for path in ("/a", "/nothing", "/file/x", "/a\0b")] == [None] * 4


def test_reported_path_lacks_the_prefix_only_when_recorded(tree):
    """A recorded host's paths are its own, a live one's those of this machine."""
    top = str(tree.top)
    assert Root(top, True).reported("/dev/x") == "/dev/x"
    assert Root(top).reported("/dev/x") == f"{top}/dev/x"
    assert Root("/").reported("/dev/x") == "/dev/x"


def test_fifo_and_directory_are_no_text(tree):
    """Only regular files are read: a fifo does not block, a directory does not raise."""
    os.mkfifo(tree.at("/fifo"))
    tree.put("/dir/file")
    root = Root(str(tree.top))
    assert (root.text("/fifo"), root.text("/dir"), root.text("/none")) == (None, None, None)


def test_reading_stops_at_the_limit(tree):
    """No more than the limit is read of a file."""
    tree.put("/big", b"x" * 5000)
    assert Root(str(tree.top)).data("/big", 4096) == b"x" * 4096


def test_unreadable_bytes_do_not_raise(tree):
    """Text that is not UTF-8 comes with replacement characters."""
    tree.put("/odd", b"a\xffb")
    assert Root(str(tree.top)).text("/odd") == "a\ufffdb"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    targets=st.lists(
        st.lists(st.sampled_from(["", ".", "..", "a", "b", "c", "/"]), max_size=5).map("/".join),
        min_size=3,
        max_size=3,
    ),
    path=st.lists(st.sampled_from(["..", "a", "b", "c", "d"]), max_size=6).map("/".join),
)
def test_no_link_farm_leads_out(tmp_path_factory, targets, path):
    """Whatever links there are, a resolved path is inside, and no link is left in it."""
    top = tmp_path_factory.mktemp("farm")
    (top / "d").mkdir()
    for name, target in zip("abc", targets, strict=True):
        if target:
            (top / name).symlink_to(target)
    root = Root(str(top))
    inner = root.resolve(path)
    if inner is not None:
        assert os.path.realpath(root.on_disk(inner)) == root.on_disk(inner)
        assert os.path.commonpath([root.on_disk(inner), top]) == str(top)


@pytest.mark.parametrize("path", ["/etc/alternatives", "/usr/bin/..", "/proc/version", "/bin"])
def test_the_machines_own_root_agrees_with_the_kernel(path):
    """With `/` as root a path resolves as the kernel resolves it."""
    assert Root("/").resolve(path) == os.path.realpath(path)


def test_trail_names_links_and_the_end(tree):
    """A trail has each link on the way and where it ends, or the first part that is missing."""
    tree.put("/a/real/file")
    tree.link("/a/link", "real")
    tree.link("/b", "/a/link")
    found = Root(str(tree.top))
    top = str(tree.top)
    assert found.trail("/b/file") == (f"{top}/b", f"{top}/a/link", f"{top}/a/real/file")
    assert found.trail("/b/none/below") == (f"{top}/b", f"{top}/a/link", f"{top}/a/real/none")
    assert found.trail("/") == (top,)
    tree.link("/loop", "loop")
    assert set(found.trail("/loop")) == {f"{top}/loop", top}
    assert Root("/").trail("/") == ("/",)


def test_trail_of_a_file_in_the_place_of_a_directory(tree):
    """What is below a file is missing."""
    tree.put("/file")
    assert Root(str(tree.top)).trail("/file/x") == (f"{tree.top}/file/x",)
