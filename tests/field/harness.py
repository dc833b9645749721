# SPDX-License-Identifier: Apache-2.0
"""What the field tests share: hosts, decisions and their parts, filters of system calls."""

import ctypes
import itertools
import json
import os
import pathlib
import shutil
import socket
import stat
import struct
import tempfile

import attrs

from nri_nvidia import pipeline
from nri_nvidia.host import options, scan
from nri_nvidia.request import container as containers
from nri_nvidia.testing import host, host_kernel, host_spec

RULES = pipeline.Policy()
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
LIBRARY_DIR = "/usr/local/nvidia"
cap_minor = host_kernel.cap_minor


def gpus(count, **changes):
    """Specify a number of GPUs of one kind."""
    return (host_spec.GpuSpec(**changes),) * count


def built(directory, *, create=True, **spec):
    """Build a recorded host; give what a scan of it finds."""
    host.build(directory, host_spec.HostSpec(recorded=True, **spec))
    return look(directory, create=create)


def look(directory, *, create=True):
    """Scan a recorded host."""
    given = options.Options.for_recorded(str(directory), create_device_nodes=create)
    return scan.scan(given)


def decide(inventory, *env, rules=RULES, context=None, **more):
    """Decide over a container."""
    shown = containers.Container(env=env, **more)
    return pipeline.plan(shown, inventory, rules, context)


def asked(value, *more):
    """Give the environment of a container that asks for devices."""
    return (f"{VISIBLE}={value}", *more)


def capable(capabilities):
    """Give the variable that asks for capabilities."""
    return f"NVIDIA_DRIVER_CAPABILITIES={capabilities}"


def nodes(plan):
    return [device.path for device in plan.edits.devices]


def mounted(plan):
    """Give the mounts as destination -> source."""
    return {mount.destination: mount.source for mount in plan.edits.mounts}


def libraries(plan, word=64):
    """Give the libraries as name -> source."""
    top = f"{LIBRARY_DIR}/lib{word}/"
    return {d.removeprefix(top): s for d, s in mounted(plan).items() if d.startswith(top)}


def codes(plan):
    return [reason.code for reason in plan.reasons]


def indices(plan):
    return [item.gpu.index for item in plan.assigned]


def requests(**changes):
    """Give rules with other settings for requests."""
    return pipeline.Policy(request=attrs.evolve(RULES.request, **changes))


# seccomp(2): load the number, compare, refuse with an errno or allow; the machine is our own.
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000
NUMBERS = {
    "x86_64": {"mount": 165, "bpf": 321, "rename": 82, "renameat": 264, "renameat2": 316},
    "aarch64": {"mount": 40, "bpf": 280, "renameat": 38, "renameat2": 276},
}


def refusing(error, *names):
    """Give a function for a child before its program: some system calls fail from then on."""
    table = NUMBERS[os.uname().machine]
    numbers = [table[name] for name in names if name in table]
    program = [(_LOAD, 0, 0, 0)]
    for left, number in zip(range(len(numbers), 0, -1), numbers, strict=True):
        program.append((_EQUAL, left, 0, number))
    program += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _REFUSE | error)]
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
    library = ctypes.CDLL(None, use_errno=True)

    def apply():
        text = ctypes.create_string_buffer(code)
        filled = struct.pack("@HP", len(program), ctypes.addressof(text))
        for call in ((38, 1, 0, 0, 0), (22, 2, ctypes.c_char_p(filled), 0, 0)):
            if library.prctl(*call):
                raise OSError(ctypes.get_errno(), "prctl")

    return apply


def node(directory, name, major, minor, mode=0o666):
    """Make a character device in a live host's /dev."""
    place = directory / "dev" / name
    place.parent.mkdir(parents=True, exist_ok=True)
    os.mknod(place, stat.S_IFCHR | mode, os.makedev(major, minor))
    place.chmod(mode)


def become(directory, *parts, **spec):
    """Make a live host another one in some of its parts, as a package's upgrade does."""
    other = directory.with_name(f"{directory.name}-next")
    host.build(other, host_spec.HostSpec(**spec))
    for part in parts:
        old = directory / part
        if old.is_dir() and not old.is_symlink():
            shutil.rmtree(old)
        else:
            old.unlink(missing_ok=True)
        if (other / part).exists():
            old.parent.mkdir(parents=True, exist_ok=True)
            (other / part).rename(old)
    shutil.rmtree(other)


def bind(place):
    """Leave a socket at a path, however long that is."""
    with socket.socket(socket.AF_UNIX) as bound, tempfile.TemporaryDirectory() as short:
        link = pathlib.Path(short) / "d"
        link.symlink_to(place.parent)
        bound.bind(str(link / place.name))


def report(args, step, message):
    """Send the report of a hook of which a step failed, as the hook itself would."""
    values = dict(itertools.pairwise(args))
    document = {
        "token": values["--token"],
        "ok": False,
        "steps": [{"name": step, "ok": False, "message": message}],
        "duration_ms": 3,
    }
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(json.dumps(document).encode(), values["--report"])
