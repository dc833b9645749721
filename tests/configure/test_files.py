# SPDX-License-Identifier: Apache-2.0
"""Writing engines' configuration, and putting it back."""

import os
import stat

import pytest

from nri_nvidia import errors
from nri_nvidia.configure import files, model

MAIN = "/etc/containerd/config.toml"


@pytest.fixture
def node(tmp_path):
    """A node with one file of an owner and a mode of its own."""
    place = tmp_path / "etc/containerd"
    place.mkdir(parents=True)
    (place / "config.toml").write_bytes(b"version = 2\r\n")
    (place / "config.toml").chmod(0o640)
    if os.geteuid() == 0:
        os.chown(place / "config.toml", 12, 34)
    return tmp_path


def change(disk, after, path=MAIN):
    return model.File(path=path, before=disk.text(path), after=after)


def everything(root):
    """Give what is below a directory: content, mode and owner."""
    return {
        str(path.relative_to(root)): (
            os.readlink(path) if path.is_symlink() else path.is_file() and path.read_bytes(),
            path.lstat().st_mode,
            path.lstat().st_uid,
            path.lstat().st_gid,
        )
        for path in sorted(root.rglob("*"))
        if not str(path).startswith(f"{root}/var")
    }


def test_applied_and_undone(node):
    """Mode and owner stay; afterwards not a byte and no directory is other than before."""
    before = everything(node)
    disk = files.Disk(str(node))
    own = model.File(path="/etc/a/b/own.conf", before=None, after="x\n")
    link = model.Link(path="/usr/l/runc", before=None, target="/opt/r")
    told = disk.apply("containerd", (change(disk, "version = 3\n"), own, link))
    assert told == [f"{MAIN}: as it was in {MAIN}.before-nri-nvidia"]
    during = everything(node)
    assert during["etc/containerd/config.toml"] == (
        b"version = 3\n", *before["etc/containerd/config.toml"][1:],
    )  # fmt: skip
    assert stat.S_IMODE(during["etc/a/b/own.conf"][1]) == 0o644
    assert during["usr/l/runc"][0] == "/opt/r"
    assert [each.path for each in disk.undoing("containerd")] == [MAIN, own.path, link.path]
    disk.undo("containerd")
    assert everything(node) == before
    assert not (node / "var/lib/nri-nvidia/configured").exists()
    with pytest.raises(errors.ConfigError, match="nothing is recorded"):
        disk.undo("containerd")


def test_undone_after_two_changes(node):
    """The way back leads to the content before the first."""
    before = everything(node)
    disk = files.Disk(str(node))
    disk.apply("containerd", (change(disk, "a = 1\n"),))
    assert disk.apply("containerd", (change(disk, "a = 2\n"),)) == []
    disk.undo("containerd")
    assert everything(node) == before


def test_what_a_user_changed_is_not_undone(node):
    """Nothing is, and where the former content is kept is said."""
    disk = files.Disk(str(node))
    own = model.File(path="/etc/own.conf", before=None, after="x\n")
    disk.apply("containerd", (own, change(disk, "a = 1\n")))
    (node / "etc/containerd/config.toml").write_text("a = 1\nmine = 1\n")
    with pytest.raises(errors.ConfigError, match="changed since") as caught:
        disk.undo("containerd")
    assert f"{MAIN}.before-nri-nvidia" in caught.value.hint
    assert (node / "etc/own.conf").exists()
    # A later change keeps the user's as what to go back to.
    disk.apply("containerd", (change(disk, "a = 2\n"),))
    disk.undo("containerd")
    assert (node / "etc/containerd/config.toml").read_text() == "a = 1\nmine = 1\n"
    assert (
        node / "etc/containerd/config.toml.before-nri-nvidia"
    ).read_bytes() == b"version = 2\r\n"


def test_what_a_user_changed_can_be_left(node):
    """All else is put back, and nothing of it is asked for again: it says where it was kept."""
    disk = files.Disk(str(node))
    own = model.File(path="/etc/own.conf", before=None, after="x\n")
    link = model.Link(path="/etc/runc", before=None, target="/opt/r")
    disk.apply("containerd", (own, change(disk, "a = 1\n"), link))
    (node / "etc/containerd/config.toml").write_text("mine = 1\n")
    (node / "etc/runc").unlink()
    (node / "etc/runc").mkdir()
    with pytest.raises(errors.ConfigError, match=f"{MAIN}, /etc/runc: changed since") as caught:
        disk.undo("containerd")
    assert "then nri-nvidia configure containerd --undo --leave-changed" in caught.value.hint
    assert [each.path for each in disk.undoing("containerd", leaving=True)] == [own.path]
    assert disk.undo("containerd", leaving=True) == [
        f"{MAIN}: left as it is; as it was: {MAIN}.before-nri-nvidia",
        "/etc/runc: left as it is",
    ]
    assert (node / "etc/containerd/config.toml").read_text() == "mine = 1\n"
    assert not (node / "etc/own.conf").exists()
    assert not (node / "var/lib/nri-nvidia/configured").exists()


def test_what_a_user_removed_is_not_there_to_be_undone(node):
    """As with an engine that was purged: our part went with it, and the product can go too."""
    disk = files.Disk(str(node))
    own = model.File(path="/etc/own.conf", before=None, after="x\n")
    disk.apply("containerd", (change(disk, "a = 1\n"), own))
    (node / "etc/containerd/config.toml").unlink()
    (told,) = disk.undo("containerd")
    assert told == f"{MAIN}: is not there any more; as it was: {MAIN}.before-nri-nvidia"
    assert not (node / "etc/own.conf").exists()
    assert (node / "etc/containerd/config.toml.before-nri-nvidia").exists()
    assert not (node / "var/lib/nri-nvidia/configured").exists()


def test_an_interrupted_change_can_be_undone(node, monkeypatch):
    """It was recorded before it was made."""
    before = everything(node)
    disk = files.Disk(str(node))
    write = files.Disk._write

    def ends(self, path, data, *, like=""):
        if path == MAIN:
            raise KeyboardInterrupt
        write(self, path, data, like=like)

    monkeypatch.setattr(files.Disk, "_write", ends)
    with pytest.raises(KeyboardInterrupt):
        disk.apply("containerd", (change(disk, "a = 1\n"),))
    monkeypatch.undo()
    disk.undo("containerd")
    assert everything(node) == before


def test_links_are_those_of_the_node(node):
    """What is read may be a link, which leads as on the node itself; none leads out of it."""
    disk = files.Disk(str(node))
    (node / "etc/linked.toml").symlink_to(MAIN)
    assert disk.text("/etc/linked.toml") == "version = 2\r\n"
    (node / "etc/out").symlink_to("/../../etc/containerd")
    assert disk.names("/etc/out") == ("config.toml",)
    assert disk.text("/etc/out/config.toml") == "version = 2\r\n"
    (node / "etc/passwd.toml").symlink_to("/etc/passwd")
    assert disk.text("/etc/passwd.toml") is None
    (node / "etc/round").symlink_to("/etc/round")
    with pytest.raises(errors.ConfigError, match="too many links"):
        disk.text("/etc/round")


def test_a_link_in_the_place_of_what_is_to_be_written(node):
    """It is told, and neither followed nor replaced; in a directory's place it is followed."""
    disk = files.Disk(str(node))
    (node / "etc/linked.toml").symlink_to(MAIN)
    wanted = change(disk, "version = 3\n", "/etc/linked.toml")
    for do in (disk.check, lambda changes: disk.apply("containerd", changes)):
        with pytest.raises(errors.ConfigError, match=f"is a link to {MAIN}"):
            do((wanted,))
    (node / "etc/around").symlink_to("/etc/not/yet/there")
    before = everything(node)
    disk.apply("containerd", (model.File(path="/etc/around/x", before=None, after="x\n"),))
    assert (node / "etc/not/yet/there/x").read_text() == "x\n"
    disk.undo("containerd")
    assert everything(node) == before


def test_what_is_no_text_is_refused(node):
    """With its line."""
    (node / "etc/x").write_bytes(b"a\n\xff\n")
    with pytest.raises(errors.ConfigError, match="/etc/x:2: not UTF-8"):
        files.Disk(str(node)).text("/etc/x")
    with pytest.raises(errors.ConfigError, match="is no file"):
        files.Disk(str(node)).text("/etc/containerd")
    assert files.Disk(str(node)).text("/etc/nothing/here") is None


def test_a_file_in_the_links_place(node):
    """Is never replaced."""
    with pytest.raises(errors.ConfigError, match="is no link"):
        files.Disk(str(node)).link(MAIN)


def test_a_link_that_was_there_is_put_back(node):
    """As after an installation at another place, that has been recorded or not."""
    place = node / "etc/runc"
    place.symlink_to("/first")
    disk = files.Disk(str(node))
    for target in ("/second", "/third"):
        disk.apply(
            "nerdctl",
            (model.Link(path="/etc/runc", before=disk.link("/etc/runc"), target=target),),
        )
    assert place.readlink().name == "third"
    assert disk.undoing("nerdctl") == (
        model.Link(path="/etc/runc", before="/third", target="/first"),
    )
    disk.undo("nerdctl")
    assert place.readlink().name == "first"


@pytest.mark.parametrize("gone", [True, False])
def test_a_backup_that_is_not_what_was_kept(node, gone):
    """Nothing is undone: what would be put back is not what was there."""
    disk = files.Disk(str(node))
    own = model.File(path="/etc/own.conf", before=None, after="x\n")
    disk.apply("containerd", (change(disk, "a = 1\n"), own))
    backup = node / "etc/containerd/config.toml.before-nri-nvidia"
    backup.unlink() if gone else backup.write_text("other\n")
    with pytest.raises(errors.ConfigError, match="nothing was undone"):
        disk.undo("containerd")
    assert (node / "etc/own.conf").exists()


def test_what_cannot_be_recorded_is_not_begun(node):
    """No backup is left, and the file is as it was."""
    before = everything(node)
    (node / "var").write_text("in the way")
    disk = files.Disk(str(node))
    wanted = change(disk, "a = 1\n")
    told = f"{files.RECORDS}: cannot be written, where what is done is recorded: Not a directory"
    with pytest.raises(errors.ConfigError, match=told):
        disk.apply("containerd", (wanted,))
    with pytest.raises(errors.ConfigError, match=told):
        disk.working().__enter__()
    (node / "var").unlink()
    assert everything(node) == before


def test_a_drop_ins_backup_is_in_no_directory_of_drop_ins(node):
    """CRI-O would read it, after the file itself."""
    place = node / "etc/crio/crio.conf.d/50-nri-nvidia.conf"
    place.parent.mkdir(parents=True)
    place.write_text("a = 1\n")
    disk = files.Disk(str(node))
    (told,) = disk.apply(
        "crio", (change(disk, "a = 2\n", "/etc/crio/crio.conf.d/50-nri-nvidia.conf"),)
    )
    assert f"as it was in {files.RECORDS}/" in told
    assert [each.name for each in place.parent.iterdir()] == [place.name]
    disk.undo("crio")
    assert place.read_text() == "a = 1\n"
    assert not (node / "var/lib/nri-nvidia/configured").exists()


def test_a_file_that_changed_since_it_was_read(node):
    """What somebody wrote meanwhile is not lost."""
    disk = files.Disk(str(node))
    wanted = change(disk, "a = 1\n")
    (node / "etc/containerd/config.toml").write_text("mine = 1\n")
    with pytest.raises(errors.ConfigError, match="changed while"):
        disk.apply("containerd", (wanted,))
    assert (node / "etc/containerd/config.toml").read_text() == "mine = 1\n"


@pytest.mark.parametrize("room", [1, 2])
def test_a_disk_that_is_full_at_any_step(node, monkeypatch, room):
    """No record of nothing, which would say that an engine still names us, and no backup is left.

    There is room for the record alone, or for the backup besides.
    """
    before = everything(node)
    disk = files.Disk(str(node))
    wanted = change(disk, "a = 1\n")
    own = model.File(path="/etc/a/b/own.conf", before=None, after="x\n")
    write, left = files.Disk._write, room

    def full(self, path, data, *, like=""):
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(28, "No space left on device")
        write(self, path, data, like=like)

    monkeypatch.setattr(files.Disk, "_write", full)
    with pytest.raises(errors.ConfigError, match="cannot be written: No space"):
        disk.apply("containerd", (wanted if room == 2 else own,))
    assert everything(node) == before
    assert not (node / "var/lib/nri-nvidia/configured").exists()


@pytest.mark.parametrize("first", [True, False])
def test_a_file_that_cannot_be_written_leaves_nothing(node, monkeypatch, first):
    """As an immutable one: no backup, no record of it; what was done before can be undone."""
    before = everything(node)
    disk = files.Disk(str(node))
    own = model.File(path="/etc/own.conf", before=None, after="x\n")
    changes = (change(disk, "a = 1\n"), own) if first else (own, change(disk, "a = 1\n"))
    write = files.Disk._write

    def refuses(self, path, data, *, like=""):
        if path == MAIN:
            raise OSError(1, "Operation not permitted", "a name of ours")
        write(self, path, data, like=like)

    monkeypatch.setattr(files.Disk, "_write", refuses)
    with pytest.raises(errors.ConfigError) as caught:
        disk.apply("containerd", changes)
    assert caught.value.message == (
        f"{MAIN}: cannot be written: Operation not permitted; it was left as it is"
    )
    monkeypatch.undo()
    assert bool(caught.value.hint) is not first
    if not first:
        disk.undo("containerd")
    assert everything(node) == before
    assert not (node / "var/lib/nri-nvidia/configured").exists()
