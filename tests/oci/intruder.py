# SPDX-License-Identifier: Apache-2.0
"""A program in ldconfig's place that was taken over: it tries what an attacker would try next.

ldconfig reads files that an image's author wrote, so it is taken for lost. The program tries every
way out, goes on whatever happens, and says in a few words what came of each.
"""

import ctypes
import re
import struct

from . import bundles

SAID = re.compile(r"(\w+)=(-?\w+)")

# Started anew by the program, from memory: says whether it may mount, that is, has all rights.
AGAIN = """
#include <stdio.h>
#include <sys/mount.h>
#include <errno.h>
int main(void) {
    printf("again=%d ", mount("none", "/tmp", "tmpfs", 0, 0) ? errno : 0);
    return 0;
}
"""

PROGRAM = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
extern const char again_begins[], again_ends[];
__asm__(".section .rodata\n.global again_begins, again_ends\n"
        "again_begins: .incbin \"AGAIN\"\nagain_ends: .byte 0\n.previous\n");

static void say(const char *what, long result) {
    printf("%s=%ld ", what, result < 0 ? (long)errno : 0);
    fflush(stdout);
}

static void open_by_handle(void) {
    unsigned char handle[] = {HANDLE};
    int root = open("/", O_RDONLY | O_DIRECTORY);
    int place = open_by_handle_at(root, (struct file_handle *)handle, O_RDONLY | O_DIRECTORY);
    say("handle", place);
    if (place >= 0) openat(place, "owned", O_CREAT | O_WRONLY, 0644);
}

static void ask_host(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t length = strlen(SOCKET);
    memcpy(address.sun_path + 1, SOCKET, length);
    int caller = socket(AF_UNIX, SOCK_STREAM, 0);
    say("socket", connect(caller, (struct sockaddr *)&address,
                          offsetof(struct sockaddr_un, sun_path) + 1 + length));
}

static void start_again(void) {
    int copy = memfd_create("again", 0);
    size_t length = again_ends - again_begins;
    if (write(copy, again_begins, length) != (ssize_t)length) return;
    if (fork() == 0) {
        char *arguments[] = {"again", 0};
        fexecve(copy, arguments, environ);
        say("again", -1);
        _exit(1);
    }
    wait(0);
}

int main(void) {
    long variables = 0;
    while (environ[variables]) variables++;
    printf("env=%ld nnp=%d parent=%d ", variables, prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0),
           getppid() > 0);
    say("mount", mount("none", "/tmp", "tmpfs", 0, 0));
    say("mknod", mknod("/tmp/node", S_IFCHR | 0600, makedev(1, 3)));
    open_by_handle();
    say("shm", shmget(KEY, 0, 0));
    ask_host();
    say("inherited", openat(9, "owned-by-9", O_CREAT | O_WRONLY, 0644));
    void *much = mmap(0, 8UL << 30, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    say("memory", much == MAP_FAILED ? -1 : 0);
    start_again();
    if (KILL_PARENT && getppid() > 0) kill(getppid(), SIGKILL);
    if (KILL_GROUP) {
        signal(SIGUSR1, SIG_IGN);
        say("group", kill(0, SIGUSR1));
    }
    return 7;
}
"""


def make(case, *, key=0, socket="", folder=None, kill_parent=False, kill_group=False):
    """Compile it; gives the options with which the hook takes it for ldconfig.

    `key` is of a segment of shared memory, `socket` an abstract one, `folder` a directory of the
    host's which it tries to open by its handle.
    """
    again = bundles.compile_c(case.place / "again", AGAIN, "-static")
    program = PROGRAM.replace("AGAIN", str(again))
    defined = {
        "HANDLE": ",".join(map(str, handle(folder or case.place))),
        "KEY": key,
        "SOCKET": f'"{socket}"',
        "KILL_PARENT": int(kill_parent),
        "KILL_GROUP": int(kill_group),
    }
    options = [f"-D{name}={value}" for name, value in defined.items()]
    made = bundles.compile_c(case.place / "intruder", program, "-static", *options)
    return ["--ldconfig", str(made), "--timeout", "5"]


def said(result):
    """Give what it said in the hook's report: for each attempt 0, or the error's number."""
    message = result.step("ldcache")["message"]
    assert message.startswith("ldconfig: exit status 7: "), message
    return {name: int(value) for name, value in SAID.findall(message)}


def handle(folder):
    """Give a directory's handle (name_to_handle_at(2)) as bytes."""
    room = 128
    buffer = ctypes.create_string_buffer(struct.pack("=Ii", room, 0), 8 + room)
    libc = ctypes.CDLL(None, use_errno=True)
    mount = ctypes.c_int()
    if libc.name_to_handle_at(-100, bytes(folder), buffer, ctypes.byref(mount), 0):
        return b"\0" * 8  # overlayfs and others have none
    return buffer.raw[: 8 + struct.unpack("=I", buffer.raw[:4])[0]]


def has_handles(folder):
    """Whether a directory's file system gives handles."""
    return any(handle(folder)[4:])


def owned(folder):
    """Give what it left in a directory of the host's."""
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("owned"))
