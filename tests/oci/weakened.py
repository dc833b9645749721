# SPDX-License-Identifier: Apache-2.0
"""Copies of the hook that lack a defence, or wait at a barrier while the image is changed.

A test that uses `both_ways` shows two things: with the defence the attack does nothing, and
without it the same attack succeeds, so that the test would notice if the defence went.
"""

import contextlib
import os
import shutil
import threading
from pathlib import Path

from nri_nvidia.oci import install

from . import bundles

STEP_VIEW = 'steps.append(step("view", enter, *root))'
ONLY_A_CHROOT = 'posix.chroot(root[0]); posix.chdir("/"); steps.append(step("view", int))'
CAPABILITIES = 'call("capset", head, words_of(effective, permitted or effective, 0, 0, 0, 0))'
CHROOT = (
    (STEP_VIEW, ONLY_A_CHROOT),
    (CAPABILITIES, "pass"),
    ('            return f"/{SCRATCH}"', '            return "/etc"'),
)
"""The view is a chroot: the container's /proc stays in reach, and with it /proc/1/root."""

NO_ROOT_AT_ALL = STEP_VIEW, 'posix.chdir(root[0]); steps.append(step("view", int))'
"""Paths are the host's: only for steps whose every path has been made relative."""

HIDDEN = '    call("unshare", NEW_MOUNTS)\n'
ALONE = "    try:\n        mount(root, root, BIND)\n"
REMOUNTED = "    for fd, place in driver:\n        with"
SCRATCH_MADE = (
    "        mount(posix.open(SCRATCH, directory, dir_fd=view), open_in(view, AUXILIARY)"
)
PLAIN_FILES_ONLY = "REMOUNT | BIND | NO_SUID_DEV_EXEC", "REMOUNT | BIND"
"""The view's mount allows devices and programs."""

TIME_OF_LDCONFIG = 'end = b"", time.monotonic() + seconds', 'end = b"", time.monotonic() + 60'
TIME_OF_THE_HOOK = "_signal.ITIMER_REAL, seconds + GRACE)", "_signal.ITIMER_REAL, 60)"


def changed(case, *changes):
    """Give the hook's command line for a copy with texts replaced, each of which is there once."""
    start = Path(case.hook[-1])
    text = Path(f"{start}.py").read_text()
    for old, new in changes:
        assert text.count(old) == 1, f"{text.count(old)} times in the hook: {old}"
        text = text.replace(old, new)
    folder = case.place / f"hook-{len(os.listdir(case.place))}"
    folder.mkdir()
    for name in (start.name, f"{start.name}.sh", f"{install.WARM}.py"):
        shutil.copy(start.with_name(name), folder)
    (folder / f"{start.name}.py").write_text(text)
    return case.standing([install.interpreter(), "-I", "-S", str(folder / start.name)], folder)


def both_ways(case, *changes):
    """Give the hook as it is and without a defence, each with a fresh root."""
    yield from several(case, {"without": changes})


def several(case, weaknesses):
    """Give the hook as it is, then with each set of changes, each time with a fresh root."""
    commands = {name: changed(case, *changes) for name, changes in weaknesses.items()}
    for name, command in {"with": case.hook, **commands}.items():
        case.hook = command
        shutil.rmtree(case.root, ignore_errors=True)
        yield name, case.make("debian")


class Barrier:
    """A place in the hook's text where it waits while something is done."""

    def __init__(self, folder):
        self.reached, self.passed = folder / "reached", folder / "passed"
        for fifo in (self.reached, self.passed):
            os.mkfifo(fifo, 0o666)
        self.done = False

    def before(self, text):
        """Give the change that puts it before a statement of the hook's."""
        indent = " " * (len(text) - len(text.lstrip()))
        code = f'open("{self.reached}", "wb").close(); open("{self.passed}", "rb").close()'
        return text, f"{indent}{code}\n{text}"

    @contextlib.contextmanager
    def doing(self, action):
        """Do something when the hook is at the barrier, then let it go on."""
        self.done = False

        def wait():
            with self.reached.open("rb"):
                action()
                self.done = True
            self.passed.write_bytes(b"")

        thread = threading.Thread(target=wait)
        thread.start()
        try:
            yield
        finally:
            if thread.is_alive() and not self.done:
                self.reached.write_bytes(b"")  # the hook never came; end the thread
                self.passed.open("rb").close()
            thread.join()


def swap(root, name, target):
    """Put a link where a directory is, at once."""
    link = root / f"{name}-link"
    link.symlink_to(target)
    bundles.exchange(root / name, link)
