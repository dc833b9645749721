# SPDX-License-Identifier: Apache-2.0
"""`check` on this machine, beside a daemon as a process, and without one."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile

import pytest

from nri_nvidia import cli
from nri_nvidia.check import containerd, gather, model, node, runtime
from nri_nvidia.host import options
from nri_nvidia.host import root as roots
from tests.containerd import daemons
from tests.daemon import pairs
from tests.daemon.conftest import gpu_host, together
from tests.daemon.pairs import POD, container

__all__ = ["gpu_host", "together"]


OF_THE_MACHINE = {"two-daemons", "stale-driver", "device-permission-lost"}
"""What may be found because other tests run beside this one, and is no consequence of it."""


async def codes(pair, settings):
    done = await asyncio.to_thread(pair.daemon.ask, "check", "--json", "--config", str(settings))
    found = [finding["code"] for finding in json.loads(done.stdout)["findings"]]
    return [code for code in found if code not in OF_THE_MACHINE]


def test_daemon_that_missed_a_container_and_then_ended(together, tmp_path):
    """What was missed is told by the daemon; when it is gone, that is what is told."""
    settings = tmp_path / "config.toml"

    async def body(pair):
        host = json.dumps(str(pair.daemon.host))
        settings.write_text(
            f"[host]\nroot = {host}\ndriver_root = {host}\ndev_root = {host}\n"
            f"[nri]\nsocket = {json.dumps(str(tmp_path / 'nri.sock'))}\n"
        )
        await asyncio.to_thread(
            pair.daemon.until, lambda: pair.daemon.status()["missed"], "what was missed"
        )
        found = await codes(pair, settings)
        assert found[0] == "containers-missed"
        assert not {*found} & {"daemon-not-running", "not-registered", "nri-socket-refused"}
        await asyncio.to_thread(pair.daemon.end)
        found = await codes(pair, settings)
        assert found[0] == "daemon-not-running"
        assert "containers-missed" not in found

    together(body, containers=[container(1, "NVIDIA_VISIBLE_DEVICES=0")], pods=[POD])


def test_daemon_that_the_runtime_does_not_take(tmp_path, gpu_host, capsys):
    """Somebody listens and answers nothing: that the daemon is not registered comes first."""
    path = tmp_path / "nri.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        daemon = daemons.Daemon(path, gpu_host)
        try:
            daemon.start()
            daemon.until(daemon.control.exists, "its socket")
            host = json.dumps(str(gpu_host))
            settings = tmp_path / "config.toml"
            settings.write_text(
                f"[host]\nroot = {host}\ndriver_root = {host}\ndev_root = {host}\n"
                f"[nri]\nsocket = {json.dumps(str(path))}\n"
            )
            pair = pairs.Pair(None, daemon)
            assert asyncio.run(codes(pair, settings))[0] == "not-registered"
        finally:
            daemon.close()


def test_daemon_that_is_not_registered_and_its_findings():
    """Both come from its status; each of its findings is passed on."""
    told = {"code": "hook-late", "message": "a sentence", "hint": "do it"}
    status = {"runtime": {"registered": False}, "missed": [], "findings": [told], "containers": []}
    facts = model.Facts(uid=0, status=status, ldconfig="/sbin/ldconfig")
    assert [finding.code for finding in node.daemon(facts)] == ["not-registered", "hook-late"]


def test_timeout_that_the_runtime_told():
    """It counts where the configuration that we see does not say it; twice it is not said."""
    status = {"runtime": {"registered": True, "request_timeout": 0.2}}
    facts = model.Facts(uid=0, status=status)
    assert [finding.code for finding in runtime.findings(facts)] == ["request-timeout-short"]
    written = containerd.Settings(nri={"plugin_request_timeout": "200ms"}, version=3)
    again = model.Facts(uid=0, status=status, runtime=written)
    assert len([*runtime.findings(again)]) == 1


def test_what_starts_a_daemon_that_is_not_there():
    """Its unit, where systemd has one; else what makes that; or the runtime that starts it."""

    def command(**facts):
        found = node.daemon(model.Facts(uid=0, ldconfig="/sbin/ldconfig", **facts))
        return {finding.code: finding.command for finding in found}["daemon-not-running"]

    assert command() == "nri-nvidia install"
    assert command(unit=True) == "systemctl enable --now nri-nvidia"
    link = "/opt/nri/plugins/10-nri-nvidia"
    assert command(own_plugins=(link,), unit=True) == "systemctl restart containerd"


@pytest.mark.parametrize("place", ["etc/systemd/system", "usr/lib/systemd/system"])
def test_a_unit_is_found_where_systemd_looks(tmp_path, place):
    """As install puts it there, or a package."""
    root = roots.Root(str(tmp_path), recorded=True)
    where = gather.Where(root=root, options=options.Options.for_recorded(str(tmp_path)))
    assert not gather.gather(where).unit
    (tmp_path / place).mkdir(parents=True)
    (tmp_path / place / "nri-nvidia.service").touch()
    assert gather.gather(where).unit


def test_who_is_not_root_is_told_so():
    """A user sees what a user may see, and no daemon is missed."""
    facts = model.Facts(uid=1000, ldconfig="/sbin/ldconfig")
    assert [finding.code for finding in node.daemon(facts)] == ["not-root"]


def test_user_who_may_not_see_the_socket():
    """What is in a directory of root's alone is not said to be missing."""
    code = (
        "import os, sys; from nri_nvidia.check import gather; os.setuid(65534)\n"
        "print(gather._listener(gather.roots.Root(), sys.argv[1]))\n"
    )
    with tempfile.TemporaryDirectory(dir="/tmp") as place:  # pytest's own is root's alone
        for mode, expected in ((0o700, "unknown"), (0o755, "missing")):
            os.chmod(place, mode)
            done = subprocess.run(
                [sys.executable, "-c", code, f"{place}/nri.sock"],
                check=True, capture_output=True, text=True, timeout=60,
            )  # fmt: skip
            assert done.stdout.strip() == expected


def test_settings_that_cannot_be_read(tmp_path, capsys):
    """They are a finding among others, and no end of the look."""
    for name in ("none.toml", "bad.toml"):
        (tmp_path / "bad.toml").write_text("[control]\nsocket = 7\n")
        assert cli.main(["check", "--json", "--config", str(tmp_path / name)]) == 1
        found = {each["code"] for each in json.loads(capsys.readouterr().out)["findings"]}
        assert {"settings-wrong", "daemon-not-running"} <= found
