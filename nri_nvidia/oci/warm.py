# SPDX-License-Identifier: Apache-2.0
"""Stands ready for hooks and runtimes, and does at once what Python would first have to start for.

Each GPU container has a hook, and with nri-nvidia-runtime a program that asks the daemon: of the
time that they take, most is Python's start. A shell's script (`ask.sh`) starts ten times faster,
and has a child of this process do the work: the same code, in the same namespaces, with the same
end. Where that cannot be, or the child is killed, the script starts Python after all.

It runs as `python3 -I -S nri-nvidia-warm DIRECTORY RUN HOOK LIMIT`, with the daemon's socket in
RUN; LIMIT are the seconds for a child's work. It writes a line when it is ready, and ends with its
standard input. DIRECTORY is root's alone, and so are the requests: 32 bytes each, the number of a
slot and that of the process that took it. To a byte on standard input it says that it is ready
still. What `view` says of imports holds here too.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import gc
import posix
import select
import sys
import time
from _frozen_importlib_external import SourceFileLoader

from nri_nvidia.oci.caller import (
    READING_END,
    STANDARD_INPUT,
    Caller,
    NotServed,
    identity,
    read,
)
from nri_nvidia.oci.looks import LOOKS, Looks
from nri_nvidia.oci.slots import READ, SIGKILL, Slot, make_pipe, put, remove, stamp
from nri_nvidia.oci.unread import copied

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SLOTS = 16  # as ask.sh has it
SPARE = 2  # children that wait for the next request
PAUSE = 0.02  # seconds until another one is made, while a container's work goes on
LONGEST_PAUSE = 5.0  # where those that are made end unasked: there may be no memory
LOOK = 15.0  # seconds from one look for what is too late to the next
MOST_STUCK = 3  # children that the kernel does not let end
REQUEST = 32
NEW_CGROUP, NEW_MOUNTS, NEW_NAMES = 0x2000000, 0x20000, 0x4000000
NEW_IPC, NEW_NETWORK = 0x8000000, 0x40000000
ALL_BUT_PROCESSES = NEW_CGROUP | NEW_MOUNTS | NEW_NAMES | NEW_IPC | NEW_NETWORK
SET_DEATH_SIGNAL, SET_DUMPABLE, SIGCHLD = 1, 4, 17
HOOK_AT = 6  # of the words `sh FRONT DIRECTORY PYTHON -I -S HOOK OPTION...`
SAMPLE = b'{"a": {"b": [1, -2.5e3, true, null, "\\u00e9"], "c": "' + b"d" * 4096 + b'"}}'
DONE, NOT_SERVED, FAILED = 0, 3, 4  # exit statuses of children
OOM_SCORE = b"500"  # where memory is short, a child is to end, and not the daemon


class Warm:
    """What is ready; `serve` has children answer until standard input ends."""

    def __init__(self, directory: str, run: str, hook: str, limit: str) -> None:
        self.directory, self.run, self.hook_path, self.limit = directory, run, hook, float(limit)
        for name in posix.listdir(directory):
            if name not in ("ask", LOOKS):
                remove(f"{directory}/{name}")
        self.hook = load(f"{hook}.py")
        self.number = posix.getpid()
        self.client_path = f"{run}/runtime/nri-nvidia-client.py"
        self.client: dict[str, Any] = {}
        self.client_stamp = stamp("")
        self.slots = [Slot(directory, str(number + 1)) for number in range(SLOTS)]
        self.spare: list[int] = []
        self.pressed, self.pause = False, PAUSE
        self.begun, self.left = 0, -1  # requests so far; as many when one was seen unread
        self.told, self.telling = posix.pipe()
        self.ended, wakes = posix.pipe()
        for pipe in (self.ended, wakes, self.told):
            posix.set_blocking(pipe, False)
        _signal.signal(SIGCHLD, lambda *_: None)
        _signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        self.looks = Looks(directory, f"{run}/runtime/markers", self.call)
        self.looker = 0  # the child that looks: it is waited for, and this one may be busy
        self.stuck: list[int] = []  # those before it that were killed, and have not ended
        self.late: tuple[int, ...] = ()
        self.requests = make_pipe(f"{directory}/requests.new")
        posix.set_blocking(self.requests, True)

    def serve(self) -> None:
        """Keep children that wait; free the slots of those that have ended."""
        self.have_looked()
        self.fill(SPARE)
        posix.rename(f"{self.directory}/requests.new", f"{self.directory}/requests")
        posix.write(1, b"ready\n")
        checked = time.monotonic()
        while True:
            wait = LOOK if len(self.spare) >= SPARE and self.is_looked() else self.pause
            callers = {slot.caller: slot for slot in self.slots if slot.caller >= 0}
            ready = select.select([0, self.told, self.ended, *callers], [], [], wait)[0]
            asked = 0 in ready
            if asked and not posix.read(0, 1):
                return
            self.note()
            if asked:
                posix.write(1, b"ready\n")
                self.press()
            for caller in set(callers).intersection(ready):  # before a slot has another one
                callers[caller].abandon()
            if self.ended in ready:
                posix.read(self.ended, 4096)
            self.reap()
            if self.pressed and not self.spare:
                self.fill(1)
            elif not ready:
                self.have_looked()
                self.fill(SPARE)
            self.pressed = False
            now = time.monotonic()
            if now - checked > LOOK:
                checked = now
                if not (stamp(f"{self.directory}/requests") and self.looks.is_there()):
                    return  # nobody can ask any more: to be started anew
                self.look_after(now)

    def fill(self, wanted: int) -> None:
        """Have so many children wait."""
        client = stamp(self.client_path)
        if client and client != self.client_stamp:  # a newer daemon puts another one there
            self.client, self.client_stamp = load(self.client_path), client
        while len(self.spare) < wanted:
            child = posix.fork()
            if child == 0:
                self.attend()
            self.spare.append(child)

    def note(self) -> None:
        """Hear which children have begun with which slots."""
        try:
            data = posix.read(self.told, 1 << 16)
        except BlockingIOError:
            return
        for place in range(0, len(data), REQUEST):
            number, child, caller = map(int, data[place : place + REQUEST].split())
            self.slots[number - 1].begin(child, caller, time.monotonic() + self.limit)
            self.pressed, self.pause, self.begun = True, PAUSE, self.begun + 1
            if child in self.spare:
                self.spare.remove(child)

    def reap(self) -> None:
        """Free the slots of children that have ended."""
        while True:
            try:
                child, status = posix.waitpid(-1, posix.WNOHANG)
            except ChildProcessError:
                return
            if not child:
                return
            self.note()  # what it said before its end is there now
            if child == self.looker or child in self.spare:
                self.looker = 0 if child == self.looker else self.looker
                self.spare = [each for each in self.spare if each != child]
                self.pause = min(2 * self.pause, LONGEST_PAUSE)
            self.stuck = [each for each in self.stuck if each != child]
            for slot in self.slots:
                if slot.child == child:
                    if status and time.monotonic() > slot.until:
                        slot.tell(f"nri-nvidia: not done after {self.limit:g} s\nexit 1\n")
                    slot.renew()  # who has had no answer does it by Python

    def press(self) -> None:
        """End children that leave a request unread from one look to the next: they are stopped.

        One that looks may wait for a file of a server that is gone, and the kernel keep it until
        that is back: others take its place, a few times.
        """
        unread = bool(select.select([self.requests], [], [], 0)[0])
        if unread and self.left == self.begun:
            for child in self.spare:
                posix.kill(child, SIGKILL)
        self.left = self.begun if unread else -1
        late = self.looks.late()
        if late and late == self.late and self.looker and len(self.stuck) < MOST_STUCK:
            posix.kill(self.looker, SIGKILL)
            self.stuck.append(self.looker)
            self.looker = 0
        self.late = late

    def look_after(self, now: float) -> None:
        """End what has not ended in time, and free what is taken for nothing."""
        for slot in self.slots:
            if slot.child and now > slot.until:
                posix.kill(slot.child, SIGKILL)
            elif not slot.child and slot.is_forgotten(now):
                slot.renew()

    def problem(self) -> str:
        """Say why no child could be where a caller is; empty if one can."""
        child = posix.fork()
        if child == 0:
            try:
                self.call("setns", posix.pidfd_open(posix.getpid()), ALL_BUT_PROCESSES)
                posix.chroot("/")
                posix._exit(DONE)  # noqa: SLF001
            except OSError as error:
                posix._exit(error.errno or FAILED)  # noqa: SLF001
        status = posix.waitpid(child, 0)[1]
        told = posix.strerror(status >> 8) if status >> 8 else how(status)
        return f"no other namespace may be entered: {told}" if status else ""

    def is_looked(self) -> bool:
        """Whether a child looks, or none can."""
        return bool(self.looker) or self.looks.events < 0

    def have_looked(self) -> None:
        """Have a child look at containers for nri-nvidia-runtime, unless one does."""
        if self.is_looked():
            return
        self.looker = posix.fork()
        if self.looker == 0:
            try:
                self.become_a_child()
                self.looks.serve()
            finally:
                posix._exit(FAILED)  # noqa: SLF001

    def become_a_child(self) -> None:
        """End with this process, and before it where memory is short; keep none of its ways."""
        self.call("prctl", SET_DEATH_SIGNAL, SIGKILL, 0, 0, 0)
        if posix.getppid() != self.number:
            posix._exit(NOT_SERVED)  # noqa: SLF001  it had ended before
        _signal.set_wakeup_fd(-1)
        _signal.signal(SIGCHLD, _signal.SIG_DFL)
        for slot in self.slots:  # else no caller would see that its slot has no other end
            posix.close(slot.pipe)
        put("/proc/self/oom_score_adj", OOM_SCORE)

    def attend(self) -> None:
        """Be a child: wait for a request, do it, and end."""
        status = DONE
        try:
            self.become_a_child()
            if not self.pressed:
                self.rehearse()
            self.do(*self.next_request())
        except (NotServed, OSError):
            status = NOT_SERVED
        except BaseException:  # noqa: BLE001  the caller does it by Python
            status = FAILED
        finally:
            posix._exit(status)  # noqa: SLF001

    def rehearse(self) -> None:
        """Do some of it on the host's own files, which it only reads.

        A page of memory is copied when it is first written to, and this writes to most that there
        are: each object is counted where it lies.
        """
        hook, conf = self.hook, "include /etc/ld.so.conf\n/lib\n/usr/lib\n"
        given: dict[str, list[str]] = {key: [] for key in hook["OPTIONS"]}
        for name, *arguments in (
            ("parse", ["--link", "a", "--alias", "b.so=b.so.1", "--timeout", "5"], given),
            ("parse_object", SAMPLE, ""),
            ("to_json", {"steps": [given]}),
            ("read_mounts",),
            ("extended", conf, [], posix.uname().machine),
        ):
            hook["step"](name, hook[name], *arguments)

    def call(self, name: str, *arguments: int | bytes | None) -> int:
        """Call a function of libc; see `view`."""
        return int(self.hook["call"](name, *arguments))

    def next_request(self) -> list[int]:
        """Wait for a request; gives the number of a slot, and that of a process."""
        request = posix.read(self.requests, REQUEST)
        while not request.endswith(b"\n"):  # something else has written here
            request = (request + posix.read(self.requests, 1))[-REQUEST:]
        words = request.split(b"\n")[-2].split()
        if len(words) != 2 or not all(map(bytes.isdigit, words)) or not 0 < int(words[0]) <= SLOTS:
            raise NotServed("not a request")
        return [*map(int, words)]

    def do(self, number: int, process: int) -> None:
        """Serve a caller; raises NotServed or OSError where nothing was done."""
        slot = f"{self.directory}/{number}"
        about = read(f"{slot}.taken").decode("utf-8", "surrogateescape")
        taker, kind, identifier, config = about.split("\n", 3)
        if taker != str(process):
            raise NotServed("another has taken the slot since")
        begun = b"%d %d %d" % (number, posix.getpid(), process)
        posix.write(self.telling, b"%-31s\n" % begun)
        if identity(posix.stat(f"/proc/{process}/fd/{READING_END}")) != identity(posix.stat(slot)):
            raise NotServed("its number is another process's here")
        pipe = posix.open(slot, posix.O_WRONLY | posix.O_CLOEXEC)
        caller = Caller(process, slot)
        if kind == "hook":
            told = self.be_hook(caller, pipe)
        else:
            told = self.be_runtime(caller, pipe, identifier, config)
        posix.write(2, b"exit %d\n" % told)

    def be_hook(self, caller: Caller, pipe: int) -> int:
        """Be a container's hook: gives its exit status."""
        words = caller.words()
        if words[HOOK_AT : HOOK_AT + 1] != [self.hook_path]:
            raise NotServed("it is another hook")
        state = posix.open(f"fd/{STANDARD_INPUT}", READ, dir_fd=caller.folder)
        caller.join(self.call, ALL_BUT_PROCESSES)
        posix.dup2(copied(state, self.call), 0)
        posix.dup2(pipe, 2)
        return int(self.hook["main"](words[HOOK_AT + 1 :]))

    def be_runtime(self, caller: Caller, pipe: int, identifier: str, config: str) -> int:
        """Be what asks the daemon for a container: gives 0 where the runtime is to go on."""
        if not self.client or self.client_stamp != stamp(self.client_path):
            raise NotServed("the client is not in place, or another one")
        words = caller.words()[2:]  # behind `sh SCRIPT`
        caller.join(self.call, NEW_MOUNTS)
        posix.dup2(pipe, 2)
        return int(not self.client["prepared"](self.run, config, identifier, words, caller.number))


def how(status: int) -> str:
    """Say how a child has ended, by its status as wait(2) has it."""
    return f"by signal {status & 127}" if status & 127 else f"with exit status {status >> 8}"


def load(path: str) -> dict[str, Any]:
    """Give the names of a script that `install` has put together, without running it."""
    names: dict[str, Any] = {"__name__": "nri_nvidia", "__file__": path}
    exec(SourceFileLoader("__main__", path).get_code("__main__"), names)  # type: ignore[arg-type]  # noqa: S102
    return names


def main(arguments: list[str]) -> int:
    """Run as a program."""
    sys.dont_write_bytecode = True
    warm = Warm(*arguments)
    warm.call("prctl", SET_DUMPABLE, 0, 0, 0, 0)
    gc.disable()
    gc.freeze()  # a child's memory stays shared with this
    problem = warm.problem()
    if problem:
        posix.write(1, f"{problem}\n".encode())
        return 1
    warm.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
