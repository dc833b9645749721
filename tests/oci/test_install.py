# SPDX-License-Identifier: Apache-2.0
"""Where the hook goes, where it does not, and who runs it."""

import ast
import os
import subprocess
from pathlib import Path

import pytest

from nri_nvidia import errors
from nri_nvidia.oci import install

NAMES = ["nri-nvidia-hook", "nri-nvidia-hook.py", "nri-nvidia-hook.sh", "nri-nvidia-warm.py"]


def test_the_script_is_in_place(place):
    """The directory is made, and it and the script are open to all and root's own."""
    previous = os.umask(0o077)
    try:
        path = install.install(str(place / "a" / "b"))
    finally:
        os.umask(previous)
    assert path == str(place / "a" / "b" / "nri-nvidia-hook")
    for each in (Path(path), Path(f"{path}.py"), *list(Path(path).parents)[:2]):
        status = each.stat()
        assert (status.st_mode & 0o7777, status.st_uid, status.st_gid) == (0o755, 0, 0)
    assert Path(f"{path}.py").read_text() == install.script()


@pytest.mark.parametrize("parts", [install.HOOK_PARTS, install.CLIENT_PARTS, install.WARM_PARTS])
def test_no_part_of_a_script_hides_a_name_of_another(parts):
    """In one file the parts share their names, so each name is given once."""
    given = []
    for node in ast.parse(install.script(parts)).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            given.append(node.name)
        elif isinstance(node, ast.Assign):
            names = [each for target in node.targets for each in ast.walk(target)]
            given += [each.id for each in names if isinstance(each, ast.Name)]
    twice = {name for name in given if given.count(name) > 1}
    assert twice <= {"TYPE_CHECKING"}


def test_the_same_script_is_not_written_again(place):
    """A second installation changes nothing; one of another content replaces it at once."""
    path = Path(f"{install.install(str(place))}.py")
    before = path.stat()
    install.install(str(place))
    assert path.stat() == before
    path.write_text("old")
    old = path.open()
    install.install(str(place))
    assert path.read_text() == install.script()
    assert old.read() == "old"
    old.close()
    assert sorted(os.listdir(place)) == NAMES


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("spoil", ["mode", "owner", "link"])
def test_a_script_that_others_could_change_is_replaced(place, spoil, name):
    """The right content is not enough: mode, owner and kind have to be right too."""
    install.install(str(place))
    path = place / name
    if spoil == "mode":
        path.chmod(0o777)
    elif spoil == "owner":
        os.chown(path, 1234, 1234)
    else:
        path.rename(place / "other")
        path.symlink_to("other")
    install.install(str(place))
    status = path.lstat()
    assert (status.st_mode, status.st_uid) == (0o100755, 0)


@pytest.mark.parametrize(
    ("mode", "owner", "message"),
    [
        (0o775, 0, "can be written by others \\(0775\\)"),
        (0o757, 0, "can be written by others \\(0757\\)"),
        (0o1777, 0, "can be written by others \\(1777\\)"),
        (0o750, 0, "is closed to other users \\(0750\\)"),
        (0o751, 0, "is closed to other users \\(0751\\)"),
        (0o755, 1234, "belongs to user 1234, not to root"),
    ],
)
def test_directories_that_are_refused(place, mode, owner, message):
    """A directory that others can change, or that containers' users cannot read, is refused."""
    folder = place / "lib"
    folder.mkdir()
    os.chown(folder, owner, owner)
    folder.chmod(mode)
    with pytest.raises(errors.HostError, match=message) as caught:
        install.install(str(folder))
    assert "such as /usr/local/lib/nri-nvidia" in caught.value.hint
    assert os.listdir(folder) == []


@pytest.mark.parametrize("mode", [0o777, 0o700])
def test_what_is_above_counts_too(place, mode):
    """A directory above that others can change or cannot pass is refused; a sticky one is not."""
    (place / "above").mkdir()
    (place / "above").chmod(mode)
    with pytest.raises(errors.HostError, match="above"):
        install.install(str(place / "above" / "lib"))
    (place / "above").chmod(0o1777)
    assert install.install(str(place / "above" / "lib"))


def test_homes_are_refused(place, monkeypatch):
    """A directory below a home is refused, also by way of a link."""
    (place / "home").mkdir()
    monkeypatch.setenv("HOME", str(place / "home"))
    (place / "link").symlink_to("home")
    for name in ("home", "home/lib", "link/lib"):
        with pytest.raises(errors.HostError, match="is below a home directory"):
            install.install(str(place / name))


@pytest.mark.parametrize("name", ["", "lib", "./lib"])
def test_relative_directories_are_refused(name):
    """The path goes to runtimes that have another working directory."""
    with pytest.raises(errors.HostError, match="is not an absolute path"):
        install.install(name)


def test_a_directory_that_cannot_be_made(place):
    """A file in the way is named."""
    (place / "file").write_text("")
    with pytest.raises(errors.HostError, match="cannot be made: Not a directory"):
        install.install(str(place / "file" / "lib"))


def test_the_interpreter_runs_the_script(place):
    """What `interpreter` gives starts the script, for an ordinary user of the host too."""
    path = install.install(str(place))
    done = subprocess.run(
        [install.interpreter(), "-I", "-S", path],
        input="{}", capture_output=True, text=True, check=False, user=65534, group=65534,
        extra_groups=[], env={"LC_ALL": "C"}, cwd="/",
    )  # fmt: skip
    message = "neither the state on standard input nor its bundle names the root"
    assert (done.returncode, done.stderr) == (0, f"nri-nvidia-hook: hook: {message}\n")


def run(path):
    """Start an installed hook on nothing; give its errors."""
    done = subprocess.run(
        [install.interpreter(), "-I", "-S", path],
        input="{}", capture_output=True, text=True, check=False, env={"LC_ALL": "C"}, cwd="/",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_the_hook_is_compiled_ahead(place):
    """The compiled form that the interpreter takes is there, root's own, and open to all."""
    path = install.install(str(place), install.interpreter())
    (compiled,) = (place / "__pycache__").iterdir()
    assert compiled.name.startswith("nri-nvidia-hook.cpython-")
    for each, mode in ((compiled, 0o644), (compiled.parent, 0o755)):
        status = each.stat()
        assert (status.st_mode & mode, status.st_mode & 0o022, status.st_uid) == (mode, 0, 0)
    marked = compiled.read_bytes().replace(b"names the root", b"names the toor")
    compiled.write_bytes(marked)
    assert "names the toor" in run(path)


@pytest.mark.parametrize("stale", ["source", "interpreter", "damage", "absence"])
def test_a_compiled_form_that_does_not_fit_is_not_used(place, stale):
    """Of another source, for another interpreter, cut short, or gone: then the source is taken."""
    path = install.install(str(place), install.interpreter())
    (compiled,) = (place / "__pycache__").iterdir()
    code = compiled.read_bytes().replace(b"names the root", b"names the toor")
    if stale == "source":
        compiled.write_bytes(code[:8] + b"\0" * 8 + code[16:])
    elif stale == "interpreter":
        compiled.write_bytes(b"\1\2\r\n" + code[4:])
    elif stale == "damage":
        compiled.write_bytes(code[:12])
    else:
        compiled.unlink()
    before = sorted(compiled.parent.iterdir()), [p.read_bytes() for p in compiled.parent.iterdir()]
    assert "names the root" in run(path)
    after = sorted(compiled.parent.iterdir()), [p.read_bytes() for p in compiled.parent.iterdir()]
    assert after == before


def test_an_interpreter_that_cannot_compile(place):
    """The hook is installed all the same; it compiles itself each time."""
    path = install.install(str(place), fake(place, "exit 1"))
    assert "names the root" in run(path)


def fake(place, text):
    path = place / "python3"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("echo 3; echo 8; echo /bin/sh", "is 3.8, older than 3.9"),
        ("echo 2; echo 7; echo /bin/sh", "is 2.7, older than 3.9"),
        ("echo 3; echo 9; echo /bin/sh", ""),
        ("echo 3; echo 12; echo /nowhere/os.py", "is not there: No such file or directory"),
        ("echo no ctypes >&2; exit 1", "is incomplete: no ctypes"),
    ],
)
def test_interpreters_that_do_not_do(place, text, problem):
    """Too old, incomplete, or with a library that users cannot read: each is told."""
    assert install.unfit(fake(place, text)) == problem


def test_an_interpreter_that_only_root_can_reach(place):
    """An interpreter below a closed directory does not do."""
    (place / "closed").mkdir(mode=0o700)
    path = fake(place / "closed", "exit 0")
    assert install.unfit(path) == f"is closed to other users at {place}/closed"


def test_no_interpreter_at_all(monkeypatch):
    """The error names each candidate with its problem, and what to install."""
    monkeypatch.setattr(install, "unfit", lambda candidate: "is of the wrong colour")
    with pytest.raises(
        errors.HostError, match="/usr/bin/python3 is of the wrong colour"
    ) as caught:
        install.interpreter()
    assert "install the distribution's python3" in caught.value.hint
