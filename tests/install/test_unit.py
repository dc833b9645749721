# SPDX-License-Identifier: Apache-2.0
"""The systemd unit, and what the daemon leaves besides."""

import os
import pathlib
import shutil
import subprocess

import pytest

from nri_nvidia.config import load
from nri_nvidia.daemon import standing
from nri_nvidia.install import model, service, state

ROOT = pathlib.Path(__file__).parents[2]


def test_unit_is_sound(tmp_path):
    """systemd itself finds nothing to say; its program and page are given for what is not here."""
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("systemd-analyze is not on this machine")
    unit = tmp_path / "nri-nvidia.service"
    text = service.unit().decode()
    assert "ExecStart=/opt/nri-nvidia/bin/nri-nvidia run\n" in text
    unit.write_text(text.replace("/opt/nri-nvidia/bin/nri-nvidia run", "/bin/true"))
    done = subprocess.run(
        [tool, "verify", "--man=no", unit], capture_output=True, text=True, check=False
    )
    said = [line for line in done.stderr.splitlines() if "nri-nvidia" in line]
    assert (done.returncode, said) == (0, [])


def test_systemd_makes_the_directory(tmp_path):
    """systemd-tmpfiles finds nothing to say, and the directory is there for everybody to enter."""
    tool = shutil.which("systemd-tmpfiles")
    if tool is None:
        pytest.skip("systemd-tmpfiles is not on this machine")
    (tmp_path / "etc/tmpfiles.d").mkdir(parents=True)
    (tmp_path / "etc" / model.TMPFILES).write_bytes(service.TMPFILES)
    (tmp_path / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    (tmp_path / "etc/group").write_text("root:x:0:\n")
    done = subprocess.run(
        [tool, f"--root={tmp_path}", "--create", "nri-nvidia.conf"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    for name in ("nri-nvidia", "cdi"):
        assert (tmp_path / "run" / name).stat().st_mode & 0o777 == 0o755


def test_package_and_checkout_have_one_unit():
    """What a wheel is built with is the checkout's file."""
    assert service.unit() == (ROOT / "contrib/systemd/nri-nvidia.service").read_bytes()
    included = '"contrib/systemd/nri-nvidia.service" = "nri_nvidia/install/nri-nvidia.service"'
    assert included in (ROOT / "pyproject.toml").read_text()


@pytest.fixture
def places(tmp_path):
    """Have the daemon's directories, and one of CDI specifications."""
    for path in ("run/hook", "state/driver/550-abc/lib64", "cdi"):
        (tmp_path / path).mkdir(parents=True)
    (tmp_path / "state/driver/550-abc/lib64/libcuda.so.1").touch()
    return tmp_path


def removed(places, **more):
    lock = str(places / "nri/nri.sock")
    directories = {"runtime": str(places / "run"), "state": str(places / "state")}
    cdi = (str(places / "cdi"),)
    return state.remove(state.Places(**directories, cdi=cdi, nri_socket=lock, **more))


def test_the_daemons_own_directories_go(places):
    """Nothing is left of what it wrote while it ran."""
    assert removed(places) == []
    assert [path.name for path in places.iterdir()] == ["cdi"]


def test_what_others_keep_beside_it_stays(places):
    """A record of configured engines is no driver directory."""
    (places / "state/configured").mkdir()
    assert removed(places) == []
    assert [path.name for path in (places / "state").iterdir()] == ["configured"]


def test_hook_that_a_specification_names_stays(places):
    """A container that asks by CDI would fail without it, so it is said instead."""
    (places / "cdi/nvidia.json").write_text(f'{{"path": "{places}/run/hook/nri-nvidia-hook"}}')
    (told,) = removed(places)
    assert str(places / "cdi/nvidia.json") in told
    assert (places / "run/hook").is_dir()


def test_the_lock_beside_the_runtimes_socket_goes(places):
    """With its socket, which is the runtime's, left alone."""
    (places / "nri").mkdir()
    (places / "nri/nri.sock").touch()
    place = standing.Standing(str(places / "nri/nri.sock"), "one")
    place.take()
    place.close()
    assert os.listdir(places / "nri") != ["nri.sock"]
    assert removed(places) == []
    assert os.listdir(places / "nri") == ["nri.sock"]


def test_the_lock_of_one_that_serves_stays(places):
    """Another copy, as one in a pod, keeps its place, which is said."""
    (places / "nri").mkdir()
    place = standing.Standing(str(places / "nri/nri.sock"), "one")
    place.take()
    (told,) = removed(places)
    assert told.startswith(f"{places}/nri/nri.sock.nri-nvidia: left: another")
    place.close()


def test_specifications_that_the_daemon_kept_go(places):
    """They are its own, and so the hook that they name goes as well."""
    kept = places / "cdi/nri-nvidia-gpu.json"
    kept.write_text(f'{{"path": "{places}/run/hook/nri-nvidia-hook"}}')
    assert removed(places, kept=(str(kept),)) == []
    assert (kept.exists(), (places / "run").exists()) == (False, False)


def test_places_are_those_of_the_settings(tmp_path):
    """A directory that a setting names is not guessed at but said, with its key."""
    text = (
        f'nri.socket = "/a/nri.sock"\ninject.volume_dir = "{tmp_path}"\n'
        'cdi = {keep = true, kinds = ["gpu", "gds"], directory = "/b"}\n'
    )
    found = state.places(load.load([load.Text(name="x", toml=text)]))
    assert found.nri_socket == "/a/nri.sock"
    assert found.kept == ("/b/nri-nvidia-gpu.json", "/b/nri-nvidia-gds.json")
    assert found.elsewhere == (("inject.volume_dir", str(tmp_path)),)
    usual = state.places(load.load([]))
    assert (usual.kept, usual.elsewhere) == ((), ())


def test_directory_elsewhere_is_said(places):
    """It may hold more than the daemon's: who put it there looks."""
    (told,) = removed(places, elsewhere=(("hook.directory", str(places)), ("x.y", "/nonexistent")))
    assert told.startswith(f"{places}: left, since hook.directory names it")


def test_mounted_driver_directory_stays(places):
    """A container that runs keeps its driver."""
    used = places / "state/driver/550-abc"
    script = 'mount -n --bind "$0" /mnt && echo mounted && read -r _'
    with subprocess.Popen(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, str(used)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as holder:  # fmt: skip
        assert holder.stdout.readline() == "mounted\n"
        (told,) = removed(places)
        holder.stdin.close()
        assert holder.wait() == 1
    assert told == f"{used}: left, since containers use it"
    assert os.listdir(used / "lib64") == ["libcuda.so.1"]
