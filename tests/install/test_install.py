# SPDX-License-Identifier: Apache-2.0
"""An installation below a root: what it makes, keeps, refuses and takes away."""

import json
import os
import pathlib
import stat
import subprocess
import sys

import pytest

import nri_nvidia
from nri_nvidia import cli
from nri_nvidia.cli import uninstall
from nri_nvidia.config import load
from nri_nvidia.install import apply, environment, model, steps
from nri_nvidia.install import tree as trees

SETTINGS = model.SETTINGS.lstrip("/")
UNIT = "etc/systemd/system/nri-nvidia.service"


@pytest.fixture(autouse=True)
def light(monkeypatch):
    """Leave out what only takes time: most of what is copied, and its compiling.

    The interpreter of the tests may be anywhere; what is refused of it has a test of its own.
    """
    monkeypatch.setattr("nri_nvidia.install.environment._HOMES", ())
    monkeypatch.setattr("nri_nvidia.oci.install.closed_at", lambda _: "")
    monkeypatch.setattr("nri_nvidia.install.environment._closure", lambda: {"attrs"})
    monkeypatch.setattr("compileall.compile_dir", lambda *_, **_more: True)


@pytest.fixture
def root(tmp_path):
    """Have a root with directories that others made."""
    return made(tmp_path / "root")


def made(place):
    """Make a root with directories that others made."""
    (place / "etc/systemd/system").mkdir(parents=True)
    (place / "usr/local/bin").mkdir(parents=True)
    return place


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Have a root with an installation in which nothing is left out, made with a strict umask."""
    place = made(tmp_path_factory.mktemp("whole"))
    umask = os.umask(0o077)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("nri_nvidia.install.environment._HOMES", ())
            patch.setattr("nri_nvidia.oci.install.closed_at", lambda _: "")
            assert install(place) == 0
    finally:
        os.umask(umask)
    return place


def tree(root):
    """Give all files, links and directories below a root."""
    return {str(path.relative_to(root)) for path in root.rglob("*")}


def install(root, *more):
    return cli.main(["install", "--root", str(root), *more])


def release(root):
    return (root / "opt/nri-nvidia/current").resolve()


def test_manifest_names_all_that_is_new(whole, tmp_path):
    """Each new file and link is in the manifest; nothing else is there but directories."""
    told = json.loads((whole / model.MANIFEST.lstrip("/")).read_text())
    new = tree(whole) - tree(made(tmp_path / "empty"))
    files = {path for path in new if (whole / path).is_symlink() or not (whole / path).is_dir()}
    assert files == {path.lstrip("/") for path in (*told["entries"], model.MANIFEST)}
    assert told["release"] == release(whole).name


def test_all_users_can_read_it_whatever_the_umask(whole):
    """No file is closed to others or open for their writing."""
    for path in (whole / "opt").rglob("*"):
        mode = stat.S_IMODE(path.lstat().st_mode)
        kinds = {0o777} if path.is_symlink() else {0o755} if path.is_dir() else {0o755, 0o644}
        assert mode in kinds, path


def test_environment_stands_alone(whole):
    """The copy imports the daemon and what it needs from itself, with bytecode that is in time."""
    code = (
        "import sys; from nri_nvidia.daemon import service; import nri_nvidia, attrs\n"
        "print(nri_nvidia.__file__); print(attrs.__file__); print(nri_nvidia.__cached__)\n"
        "print(nri_nvidia.__version__)"
    )
    done = subprocess.run(
        [release(whole) / "bin/python3", "-I", "-B", "-c", code],
        check=True, capture_output=True, text=True, cwd="/",
    )  # fmt: skip
    *paths, version = done.stdout.splitlines()
    assert all(path.startswith(str(release(whole))) for path in paths)
    assert pathlib.Path(paths[2]).is_file()
    assert version == nri_nvidia.__version__


def test_bytecode_names_the_places_of_the_node(whole):
    """Tracebacks name the files as they are on the node, not as they were when it was staged."""
    (compiled,) = release(whole).rglob("nri_nvidia/__pycache__/errors.*.pyc")
    assert f"{model.RELEASES}/{release(whole).name}/lib".encode() in compiled.read_bytes()
    assert str(whole).encode() not in compiled.read_bytes()


def test_commands_are_at_stable_places(root):
    """A service, a link and an engine's configuration name no release."""
    assert install(root) == 0
    for name in model.COMMANDS:
        assert (root / "opt/nri-nvidia/bin" / name).resolve() == release(root) / "bin" / name
        assert os.readlink(root / "usr/local/bin" / name) == f"{model.HOME}/bin/{name}"
    assert f"ExecStart={model.HOME}/bin/nri-nvidia run" in (root / UNIT).read_text()


@pytest.mark.parametrize(
    ("more", "place"),
    [
        ([], "etc"),
        (["--unit-directory", "/usr/lib/systemd/system"], "usr/lib"),
    ],
)
def test_the_daemons_directory_is_made_at_boot(root, more, place):
    """By a file beside the unit's, a package's where the unit is a package's; it goes with it."""
    assert install(root, *more) == 0
    told = (root / place / model.TMPFILES).read_text()
    assert "\nd /run/nri-nvidia 0755 root root -\n" in told
    assert cli.main(["uninstall", "--root", str(root)]) == 0
    assert not (root / place / "tmpfiles.d").exists()


def test_second_installation_changes_nothing(root, capsys):
    """It is told so by --dry-run, and no file is written anew."""
    assert install(root) == 0
    stamps = {path: (root / path).lstat().st_ino for path in tree(root) if "manifest" not in path}
    capsys.readouterr()
    assert install(root, "--dry-run") == 0
    assert capsys.readouterr().out == "everything is as it should be: nothing to do\n"
    assert install(root) == 0
    assert {path: (root / path).lstat().st_ino for path in stamps} == stamps


def test_dry_run_writes_nothing(root, capsys):
    """It names every path outside the release, and makes none."""
    before = tree(root)
    assert install(root, "--dry-run") == 0
    assert tree(root) == before
    said = capsys.readouterr().out
    for path in (model.SETTINGS, f"/{UNIT}", model.CURRENT, "/usr/local/bin/nri-nvidia-runtime"):
        assert f": {path}\n" in said


def test_upgrade_leaves_one_release(root, monkeypatch):
    """The old release goes, the stable paths lead to the new one, an unread setting is renewed."""
    assert install(root) == 0
    old = release(root)
    monkeypatch.setattr("nri_nvidia.__version__", "99.0")
    monkeypatch.setattr("nri_nvidia.config.example.HEAD", "# Settings of 99.\n")
    assert install(root) == 0
    assert release(root).name.startswith("99.0-")
    assert [path.name for path in old.parent.iterdir()] == [release(root).name]
    assert (root / SETTINGS).read_text().startswith("# Settings of 99.\n")


def test_changed_settings_are_never_overwritten(root, monkeypatch, capsys):
    """Neither by an upgrade nor by an uninstallation and a new installation."""
    assert install(root) == 0
    (root / SETTINGS).write_text("[log]\nlevel = 'debug'\n")
    monkeypatch.setattr("nri_nvidia.__version__", "99.0")
    assert install(root) == 0
    assert f"{model.SETTINGS}: is yours, and was left as it is\n" in capsys.readouterr().out
    assert cli.main(["uninstall", "--root", str(root)]) == 0
    assert install(root) == 0
    assert (root / SETTINGS).read_text() == "[log]\nlevel = 'debug'\n"


def test_uninstallation_leaves_the_settings_alone(root):
    """What others made stays, what we made goes, but for the settings and their directory."""
    before = tree(root)
    assert install(root) == 0
    assert cli.main(["uninstall", "--root", str(root)]) == 0
    assert tree(root) - before == {"etc/nri-nvidia", SETTINGS}
    assert before - tree(root) == set()


def test_the_link_for_dockers_gpus_is_told(root, capsys):
    """Who made it by README's command is to remove it: docker goes on finding it."""
    assert install(root) == 0
    link = root / "usr/local/bin/nvidia-container-runtime-hook"
    link.symlink_to("/opt/nri-nvidia/bin/nri-nvidia-runtime")
    other = root / "usr/bin/nvidia-container-runtime-hook"
    other.parent.mkdir(parents=True, exist_ok=True)
    other.write_text("NVIDIA's own")
    capsys.readouterr()
    assert cli.main(["uninstall", "--root", str(root)]) == 0
    told = [line for line in capsys.readouterr().out.splitlines() if link.name in line]
    assert len(told) == 1
    assert told[0].startswith(f"/usr/local/bin/{link.name}: left, and leads nowhere now")
    assert link.is_symlink()


def test_settings_with_a_fault_do_not_keep_it_silent(tmp_path, monkeypatch):
    """What they meant is not known: the usual places are looked at, and that is said."""
    path = tmp_path / "config.toml"
    monkeypatch.setattr("nri_nvidia.config.place.FILE", str(path))
    path.write_text('nri.socket = "/run/x/nri.sock"\n')
    assert uninstall._settings()[0].nri.socket == "/run/x/nri.sock"
    path.write_text('nri.socket = "/run/x/nri.sock"\nlog.level = "loud"\n')
    found, (said,) = uninstall._settings()
    assert found.nri.socket == "/var/run/nri/nri.sock"
    assert f"{path}:2: log.level" in said
    assert "nri.socket" in said


def test_files_of_others_in_its_directories_stay(root):
    """A file that somebody put beside ours keeps its directory."""
    assert install(root) == 0
    (root / "opt/nri-nvidia/note").write_text("mine")
    assert cli.main(["uninstall", "--root", str(root)]) == 0
    assert tree(root / "opt") == {"nri-nvidia", "nri-nvidia/note"}


@pytest.mark.parametrize("path", [UNIT, "usr/local/bin/nri-nvidia"])
def test_what_is_in_the_way_is_refused(root, capsys, path):
    """A file that it did not make is named, and nothing at all is changed."""
    (root / path).write_text("somebody's")
    before = tree(root)
    assert install(root) == 2
    assert f"/{path}: is there, and was not made by nri-nvidia install" in capsys.readouterr().err
    assert tree(root) == before


def test_environment_made_by_hand_is_refused(root, capsys):
    """A virtual environment at our place, as former instructions had it, is not mixed with ours."""
    (root / "opt/nri-nvidia").mkdir(parents=True)
    (root / "opt/nri-nvidia/pyvenv.cfg").write_text("home = /usr/bin\n")
    assert install(root) == 2
    assert "/opt/nri-nvidia: is an environment made by hand" in capsys.readouterr().err


def test_changed_unit_is_refused(root, monkeypatch, capsys):
    """Neither an upgrade overwrites it nor an uninstallation removes it, and both say so."""
    assert install(root) == 0
    (root / UNIT).write_text("[Service]\nNice=3\n")
    monkeypatch.setattr("nri_nvidia.install.service.unit", lambda: b"[Service]\n")
    for verb in ("install", "uninstall"):
        assert cli.main([verb, "--root", str(root)]) == 2
        assert f"/{UNIT}: was changed since" in capsys.readouterr().err
    assert (root / UNIT).read_text() == "[Service]\nNice=3\n"


def test_uninstallation_waits_for_engines(root, capsys):
    """An engine whose configuration names us would fail: it is put back first."""
    assert install(root) == 0
    records = root / "var/lib/nri-nvidia/configured"
    records.mkdir(parents=True)
    (records / "docker.json").write_text("{}")
    assert cli.main(["uninstall", "--root", str(root)]) == 2
    assert "nri-nvidia configure docker --undo" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("etc/docker/daemon.json", '{"runtimes": {"x": {"path": "/opt/nri-nvidia/bin/x"}}}'),
        ("etc/containers/containers.conf.d/gpu.conf", 'x = ["/opt/nri-nvidia/bin/x"]'),
        ("opt/nri/plugins/10-nri-nvidia", None),
    ],
)
def test_uninstallation_waits_for_what_names_it_by_hand(root, capsys, path, content):
    """What a person told an engine is found, named, and left for that person to take out."""
    assert install(root) == 0
    place = root / path
    place.parent.mkdir(parents=True)
    if content is None:
        place.symlink_to("/opt/nri-nvidia/bin/nri-nvidia")
    else:
        place.write_text(content)
    before = tree(root)
    assert cli.main(["uninstall", "--root", str(root)]) == 2
    assert f"/{path}: still names what is in /opt/nri-nvidia" in capsys.readouterr().err
    assert tree(root) == before
    place.unlink()
    assert cli.main(["uninstall", "--root", str(root)]) == 0


def test_nothing_installed_is_said(root, capsys):
    """An uninstallation of nothing is an error that names the manifest."""
    assert cli.main(["uninstall", "--root", str(root)]) == 2
    assert model.MANIFEST in capsys.readouterr().err


@pytest.mark.parametrize("moment", ["put_release", "put", "write_manifest"])
def test_interrupted_installation_can_be_repeated(root, monkeypatch, moment):
    """Whatever was written before it broke off, the next one ends it and removal takes it all."""
    before = tree(root)
    with monkeypatch.context() as broken:

        def fail(*_):
            raise KeyboardInterrupt

        broken.setattr(f"nri_nvidia.install.tree.Tree.{moment}", fail)
        assert install(root) == 130
    assert install(root) == 0
    assert cli.main(["uninstall", "--root", str(root)]) == 0
    assert tree(root) - before == {"etc/nri-nvidia", SETTINGS}


def test_link_out_of_the_root_is_refused(root, tmp_path, capsys):
    """A staged installation never writes on the machine that it is made on."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (root / "opt").symlink_to(outside)
    assert install(root) == 2
    assert "out of" in capsys.readouterr().err
    assert list(outside.iterdir()) == []


def test_python_of_another_version_is_refused(root, tmp_path, capsys):
    """Compiled modules are of one version: it is said how to install with the other Python."""
    other = tmp_path / "python3"
    other.write_text("#!/bin/sh\necho 3 9 2\necho /usr/bin/python3.9\n")
    other.chmod(0o755)
    assert install(root, "--python", str(other)) == 2
    said = capsys.readouterr().err
    assert "is Python 3.9.2" in said
    assert "made with that Python" in said


def test_python_below_a_home_is_refused(root, monkeypatch, capsys):
    """The service must reach its interpreter, and so must each user's hook."""
    real = os.path.realpath(sys.executable)
    monkeypatch.setattr("nri_nvidia.install.environment._HOMES", (os.path.dirname(real),))
    assert install(root) == 2
    assert "uv python install --install-dir" in capsys.readouterr().err


def test_import_takes_over_nvidias_settings(root, tmp_path, capsys):
    """The file has them among the explained ones, what was not taken at its top; it is kept."""
    theirs = tmp_path / "config.toml"
    theirs.write_text('disable-require = true\nnvidia-ctk.path = "nvidia-ctk"\n')
    assert install(root, "--import", str(theirs)) == 0
    said = capsys.readouterr().out
    assert "taken: request.disable_require = true\n" in said
    assert 'not taken: nvidia-ctk.path = "nvidia-ctk": no such program is run\n' in said
    written = (root / SETTINGS).read_text()
    assert load.load([load.read(str(root / SETTINGS))]).request.disable_require
    assert "# Not taken from NVIDIA's: nvidia-ctk.path" in written
    assert install(root) == 0
    assert (root / SETTINGS).read_text() == written
    assert install(root, "--import", str(theirs)) == 2
    assert "nri-nvidia config --import FILE" in capsys.readouterr().err


def test_config_prints_an_import(tmp_path, capsys):
    """It can be read as a file of ours, and as JSON."""
    theirs = tmp_path / "config.toml"
    theirs.write_text('disable-require = true\nnvidia-ctk.path = "nvidia-ctk"\n')
    assert cli.main(["config", "--import", str(theirs)]) == 0
    printed = capsys.readouterr().out
    assert load.load([load.Text(name="printed", toml=printed)]).request.disable_require
    assert "# not taken: nvidia-ctk.path" in printed
    assert cli.main(["config", "--import", str(theirs), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["settings"] == {"request.disable_require": True}
    assert [each["key"] for each in told["left"]] == ["nvidia-ctk.path"]


def test_release_that_did_not_run_goes_with_the_rest(root, monkeypatch):
    """After upgrades of which one was taken back and one refused, removal leaves nothing still."""
    before = tree(root)
    there = trees.Tree(str(root))
    settings = model.File(path=model.SETTINGS, content=b"")

    def begin(version):
        monkeypatch.setattr("nri_nvidia.__version__", version)
        release = environment.release("")
        todo = steps.install(there, release, steps.wanted(settings, release, (), "/etc"))
        apply.place_release(there, todo)
        return todo

    for version in ("1", "2"):
        todo = begin(version)
        apply.install(there, todo)
        apply.tidy(there, todo)
    failing = begin("3")
    apply.install(there, failing)
    apply.go_back(there, failing)
    assert release(root).name == todo.release.name
    begin("4")
    assert len(list((root / "opt/nri-nvidia/releases").iterdir())) == 3
    apply.uninstall(there, steps.uninstall(there))
    assert tree(root) - before == {"etc/nri-nvidia", SETTINGS}
