# SPDX-License-Identifier: Apache-2.0
"""The daemon keeps a process that stands ready for hooks; without one hooks start Python."""

import asyncio
import os
import pathlib
import signal

import pytest

from nri_nvidia.config import model
from nri_nvidia.daemon import hookplace, warmkeeper

from . import pairs
from .test_faults import eventually

GPU = "NVIDIA_VISIBLE_DEVICES=0"


def ready(daemon):
    """Give the pids of the processes that stand ready by a daemon's directory, children too."""
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if len(words) > 4 and words[4] == bytes(daemon.directory / "warm"):
            found.append(int(folder.name))
    return found


def parent(pid):
    """Give the pid of a process's parent; 0 where it has ended."""
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(text.rpartition(")")[2].split()[1])


def keeper(daemon):
    """Give the one that the daemon started."""
    return next((pid for pid in ready(daemon) if parent(pid) == daemon.pid), 0)


async def hook(pair, number):
    """Give the words of the hook in a new container."""
    adjusted = await pair.create(number, GPU)
    (found,) = adjusted.hooks.create_container
    assert found.args[0] == found.path
    return found.args


async def until_ready(pair, known=0):
    """Wait for a process that stands ready, another than a known one; gives its pid."""
    requests = pair.daemon.directory / "warm/requests"
    await eventually(
        pair.daemon,
        lambda: requests.exists() and keeper(pair.daemon) not in {0, known},
        "a process that stands ready",
    )
    await eventually(
        pair.daemon, lambda: len(ready(pair.daemon)) == 4, "two that wait, one that looks"
    )
    return keeper(pair.daemon)


async def until_asked(pair, first, *, asked):
    """Wait until a new container's hook asks it, or does not."""
    for number in range(first, first + 200):
        words = await hook(pair, number)
        if (words[0] == "/bin/sh") == asked:
            return words
        await asyncio.sleep(0.02)
    raise AssertionError(f"hooks are {words}")


def test_hooks_ask_it_and_it_comes_back(together):
    """A hook names where to ask and the Python that it goes on as; one that dies is replaced."""

    async def body(pair):
        first = await until_ready(pair)
        words = await until_asked(pair, 1, asked=True)
        directory = pair.daemon.directory
        assert words[1:3] == [f"{directory}/hook/nri-nvidia-hook.sh", f"{directory}/warm"]
        assert words[4:7] == ["-I", "-S", f"{directory}/hook/nri-nvidia-hook"]
        os.kill(first, signal.SIGKILL)
        second = await until_ready(pair, first)
        await until_asked(pair, 300, asked=True)
        assert second != first
        assert pair.daemon.says("the process that stands ready for hooks has ended")

    together(body)


def test_a_hook_may_take_the_time_that_is_set(together, tmp_path):
    """It is told how long a runtime waits for a hook, and ends none before."""
    config = tmp_path / "config.toml"
    config.write_text("hook.timeout = 60\n")

    async def body(pair):
        pid = await until_ready(pair)
        words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        assert float(words[7]) > 60

    together(body, "--config", str(config))


def test_what_a_runtime_starts_is_put_back(together):
    """Also where the script alone is gone, before the next container names it."""

    async def body(pair):
        await until_ready(pair)
        script = (await until_asked(pair, 1, asked=True))[1]
        os.unlink(script)
        assert (await hook(pair, 300))[1] == script
        assert os.path.exists(script)

    together(body)


def test_one_that_does_not_answer(together):
    """A process that is stopped would keep hooks waiting: it is ended, and replaced."""

    async def body(pair):
        first = await until_ready(pair)
        os.kill(first, signal.SIGSTOP)
        second = await until_ready(pair, first)
        assert parent(first) == 0
        await until_asked(pair, 1, asked=True)
        assert keeper(pair.daemon) == second
        assert pair.daemon.says("stands ready for hooks did not answer for 3 s")

    together(body)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_it_ends_with_the_daemon(together, number):
    """However the daemon ends, nothing of it is left."""

    async def body(pair):
        await until_ready(pair)
        known = ready(pair.daemon)
        os.kill(pair.daemon.pid, number)
        await eventually(
            pair.daemon, lambda: not any(map(parent, known)) or not ready(pair.daemon), "its end"
        )

    together(body)


def test_it_can_be_switched_off(together, tmp_path):
    """With `hook.warm = false` each hook is a Python of its own, also after a reload."""
    config = tmp_path / "config.toml"
    config.write_text("hook.warm = false\n")

    async def body(pair):
        words = await hook(pair, 1)
        assert words[1:3] == ["-I", "-S"]
        assert ready(pair.daemon) == []
        config.write_text("")
        os.kill(pair.daemon.pid, signal.SIGHUP)
        await until_ready(pair)
        await until_asked(pair, 10, asked=True)
        config.write_text("hook.warm = false\n")
        os.kill(pair.daemon.pid, signal.SIGHUP)
        await until_asked(pair, 300, asked=False)
        await eventually(pair.daemon, lambda: not ready(pair.daemon), "its end")

    together(body, "--config", str(config))


def test_where_it_may_enter_no_namespace(together):
    """A daemon that may not is told so once, and its containers' hooks start Python."""

    async def body(pair):
        told = "no process can stand ready: no other namespace may be entered"
        await eventually(pair.daemon, lambda: told in pair.daemon.logged(), "the log")
        assert (await hook(pair, 1))[1:3] == ["-I", "-S"]
        assert (await pairs.status(pair))["runtime"]["registrations"] == 1

    together(body, prefix=["setpriv", "--bounding-set=-sys_chroot", "--inh-caps=-sys_chroot"])


async def test_an_end_that_comes_with_its_first_word_is_no_less_one(monkeypatch):
    """A daemon that is to end just then ends, and does not wait for the process to do so."""
    came, waits = asyncio.Event(), asyncio.Event()

    async def said(_):
        waits.set()
        await came.wait()
        return b"ready\n"

    async def forever(*_):
        await asyncio.Event().wait()

    async def ready(*_):
        return "/usr/bin/python3"

    place, kept = hookplace.HookPlace(), warmkeeper.WarmKeeper()
    monkeypatch.setattr(place, "ready", ready)
    monkeypatch.setattr(warmkeeper, "_start", lambda _: None)
    monkeypatch.setattr(warmkeeper.install, "install_ask", lambda _: None)
    monkeypatch.setattr(warmkeeper, "_first_line", said)
    monkeypatch.setattr(kept, "_until_ended", forever)
    kept.use(model.Hook(), "/run/x")
    keeping = asyncio.create_task(kept.keep(place))
    await waits.wait()
    came.set()
    await asyncio.sleep(0)  # it has been said, and nobody has heard it yet
    keeping.cancel()
    done, _ = await asyncio.wait([keeping], timeout=5)
    assert done
    assert keeping.cancelled()
    kept.close()
    place.close()
