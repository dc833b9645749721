# SPDX-License-Identifier: Apache-2.0
"""Configuring that is killed at any step, and that two do at once."""

import os
import sys

import pytest

from nri_nvidia import cli, errors
from nri_nvidia.configure import files, places

_STEPS = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.symlink", "os.chown"}
MAIN, FORMER = "etc/containerd/config.toml", "version = 2\n"
APPLY = ("containerd", "--transparent", "--engine-version", "1.7.1", "--apply")
UNDO = ("containerd", "--undo")


def run(root, *words):
    """Run the verb; give its exit status."""
    return cli.main(["configure", *words, "--root", str(root), "--runtime-path", "/opt/r"])


def files_of(root):
    """Give what is below a directory by path, but for directories."""
    return {
        str(path.relative_to(root)): os.readlink(path) if path.is_symlink() else path.read_bytes()
        for path in sorted(root.rglob("*"))
        if (path.is_symlink() or path.is_file()) and path.name != ".lock"
    }


def in_child(do):
    """Do something in another process; give how that ended."""
    child = os.fork()
    if child == 0:
        os.close(1), os.close(2)
        os._exit(do())
    return child


def killed_at(step, do):
    """Do something in a process that ends at its n-th change of a file; tell whether it did."""

    def ends():
        left = step

        def watch(event, arguments):
            nonlocal left
            made = event == "open" and isinstance(arguments[1], str) and "x" in arguments[1]
            if event in _STEPS or made:
                left -= 1
                if not left:
                    os._exit(99)

        sys.addaudithook(watch)
        return do()

    return os.waitstatus_to_exitcode(os.waitpid(in_child(ends), 0)[1]) == 99


@pytest.fixture
def node(tmp_path):
    """Give a maker of nodes with containerd's configuration, or without."""
    made = 0

    def make(there):
        nonlocal made
        made += 1
        root = tmp_path / str(made)
        (root / "etc/containerd").mkdir(parents=True)
        if there:
            (root / MAIN).write_text(FORMER)
        return root

    return make


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("again", [True, False])
def test_killed_at_any_step(node, capsys, there, again):
    """Each file is as it was or as it will be, never between; an undo leaves nothing behind."""
    done = node(there)
    assert run(done, *APPLY) == 0
    after, step, killed = (done / MAIN).read_bytes(), 0, True
    while killed:
        step += 1
        root = node(there)
        before = files_of(root)
        killed = killed_at(step, lambda root=root: run(root, *APPLY))
        assert files_of(root).get(MAIN) in {before.get(MAIN), after}
        if again:
            assert run(root, *APPLY) == 0
        told = run(root, *UNDO)
        assert told == 0 or "nothing is recorded" in capsys.readouterr().err
        assert files_of(root) == before
    assert step > 20


@pytest.mark.parametrize("there", [True, False])
def test_an_undo_that_is_killed_can_be_done_again(node, there):
    """Also where the file has been put back already, and its backup is gone."""
    step, killed = 0, True
    while killed:
        step += 1
        root = node(there)
        before = files_of(root)
        assert run(root, *APPLY) == 0
        killed = killed_at(step, lambda root=root: run(root, *UNDO))
        run(root, *UNDO)
        assert files_of(root) == before
    assert step > 5


def test_several_at_once(node):
    """One does it, the others find it done: what was there before can be had back."""
    for _ in range(12):
        root = node(there=True)
        before = files_of(root)
        children = [in_child(lambda root=root: run(root, *APPLY)) for _ in range(3)]
        ends = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        assert ends == [0, 0, 0]
        assert run(root, *UNDO) == 0
        assert files_of(root) == before


def test_one_that_is_at_work_is_waited_for(node, monkeypatch):
    """And told, where it does not end."""
    root = node(there=True)
    monkeypatch.setattr(places, "_PATIENCE", 0)
    with files.Disk(str(root)).working():
        assert run(root, *APPLY) == 2
        with pytest.raises(errors.ConfigError, match="held by another nri-nvidia configure"):
            files.Disk(str(root)).working().__enter__()
    assert files_of(root) == {MAIN: FORMER.encode()}
    assert run(root, *APPLY) == 0


def test_a_record_of_nothing(node):
    """As a killed one of another release left it: it keeps nobody from removing the product."""
    root = node(there=True)
    record = root / "var/lib/nri-nvidia/configured/containerd.json"
    record.parent.mkdir(parents=True)
    record.write_text('{"entries": [], "directories": []}\n')
    assert run(root, *UNDO) == 2
    assert files_of(root) == {MAIN: FORMER.encode()}
