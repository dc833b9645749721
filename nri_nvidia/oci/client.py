# SPDX-License-Identifier: Apache-2.0
"""Asks the daemon what a container gets, writes it into config.json, becomes the runtime.

`runtime.sh` starts it as `python3 -I -S nri-nvidia-client RUN REAL CONFIG ID …` with the caller's
own arguments behind, and with the caller's rights: the daemon never opens the bundle. It is a
plain script of its own, which `install` makes of this and `render.patch`. Each GPU container pays
for each import, so only modules in C are used.
"""

from __future__ import annotations

import _socket
import posix
import sys
import time

from nri_nvidia.oci.complaint import complain
from nri_nvidia.oci.document import Refused, parse, text
from nri_nvidia.render.patch import apply

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PROTOCOL = 1
LONGEST = 16 << 20  # bytes of a config.json and of an answer
PATIENCE = 10.0  # seconds for the daemon's answer
RESTART = 3.0  # seconds that a container which asks for a GPU waits for a daemon to come back
PAUSE = 0.05
HOOK = "nri-nvidia-hook"
STAND_IN, FRONT = "nvidia-container-runtime-hook", "nri-nvidia-runtime"
SENT = ("annotations", "hooks", "mounts")
SENT_OF = {"process": ("env", "capabilities"), "linux": ("cgroupsPath", "devices", "namespaces")}
KNOWN = frozenset((*SENT, *SENT_OF, "env", "devices", "resources"))
WHOLE = b"0 0 4294967295"  # the uid_map of the host's own users
START = "start it: systemctl start nri-nvidia, or nri-nvidia run"


class Absent(Exception):  # noqa: N818
    """Raised when no daemon answers."""


class Bundle:
    """A config.json and its directory, both open; raises Refused where it is not the caller's."""

    def __init__(self, path: str) -> None:
        self.path = path
        folder, _, self.name = path.rpartition("/")
        folder = folder or ("/" if path.startswith("/") else ".")
        reading = posix.O_RDONLY | posix.O_CLOEXEC | posix.O_NONBLOCK | posix.O_NOFOLLOW
        try:
            self.folder = posix.open(folder, posix.O_PATH | posix.O_DIRECTORY | posix.O_CLOEXEC)
            self.file = posix.open(self.name, reading, dir_fd=self.folder)
        except OSError as error:
            link = " (a link is not followed)" if error.errno == 40 else ""
            raise Refused(f"{path} cannot be opened: {error.strerror}{link}") from None
        self.status, around = posix.fstat(self.file), posix.fstat(self.folder)
        if self.status.st_mode & 0o170000 != 0o100000:
            raise Refused(f"{path} is not a plain file")
        for what, found in ((folder, around), (path, self.status)):
            if found.st_uid != posix.geteuid():
                raise Refused(
                    f"{what} belongs to user {found.st_uid}, and user {posix.geteuid()} is to run "
                    "it: a bundle is changed for its owner alone"
                )
        if around.st_mode & 0o002:
            raise Refused(f"{folder} can be written by everybody")
        if self.status.st_mode & 0o002:  # buildkitd has no umask; whoever has it open is noticed
            posix.fchmod(self.file, self.status.st_mode & 0o7755)
            self.status = posix.fstat(self.file)

    def close(self) -> None:
        """Close both."""
        posix.close(self.file)
        posix.close(self.folder)

    def read(self) -> dict[str, Any]:
        """Give the whole as JSON; raises Refused."""
        size = self.status.st_size
        if size > LONGEST:
            raise Refused(f"{self.path} has {size} bytes; {LONGEST} are read at most")
        data, piece = b"", b"first"
        while piece and len(data) <= size:
            piece = posix.read(self.file, size + 1)
            data += piece
        if len(data) != size or not self.is_unchanged():
            raise Refused(f"{self.path} was changed while it was read")
        return parse(data, self.path)

    def is_unchanged(self) -> bool:
        """Whether the file of that name is the one that was opened, as it was then."""
        try:
            now = posix.stat(self.name, dir_fd=self.folder, follow_symlinks=False)
        except OSError:
            return False
        then = self.status
        kept = (now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns)
        return kept == (then.st_dev, then.st_ino, then.st_size, then.st_mtime_ns, then.st_ctime_ns)

    def write(self, spec: dict[str, Any]) -> None:
        """Put another content in place at once, with owner and mode kept; raises Refused."""
        data = text(spec)
        making = posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | posix.O_CLOEXEC
        temporary = f".{self.name}.nri-nvidia.{posix.getpid()}"
        try:
            file = posix.open(temporary, making, 0o600, dir_fd=self.folder)
            try:
                while data:
                    data = data[posix.write(file, data) :]
                posix.fchown(file, self.status.st_uid, self.status.st_gid)
                posix.fchmod(file, self.status.st_mode & 0o7777)
                posix.close(file)
                self.replace_by(temporary)
            except BaseException:
                posix.unlink(temporary, dir_fd=self.folder)
                raise
        except OSError as error:
            raise Refused(f"{self.path} cannot be replaced: {error.strerror}") from None

    def replace_by(self, name: str) -> None:
        """Rename a file of the directory to take this one's place; raises Refused, OSError."""
        if not self.is_unchanged():
            raise Refused(f"{self.path} was changed by another meanwhile")
        posix.rename(name, self.name, src_dir_fd=self.folder, dst_dir_fd=self.folder)


def message(
    spec: dict[str, Any], identifier: str, arguments: list[str], process: int = 0
) -> dict[str, Any]:
    """Give what the daemon is told: of the configuration what a decision may depend on."""
    shown = {key: spec[key] for key in SENT if key in spec}
    for part, keys in SENT_OF.items():
        inner = spec.get(part)
        if isinstance(inner, dict):
            shown[part] = {key: inner[key] for key in keys if key in inner}
    with open("/proc/self/uid_map", "rb") as lines:  # noqa: PTH123
        nested = b" ".join(lines.read().split()) != WHOLE
    options = {word for word in arguments if word in ("run", "-d", "-detach", "--detach")}
    return {
        "protocol": PROTOCOL,
        "id": identifier,
        "spec": shown,
        "nested": nested,
        "stays": options == {"run"},  # this process is there as long as the container
        "process": process,  # 0: this one
    }


def ask(run: str, question: dict[str, Any]) -> dict[str, Any]:
    """Give the daemon's answer; raises Absent where there is none, Refused where none comes."""
    channel = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
    channel.settimeout(PATIENCE)
    try:
        channel.connect(f"{run}/runtime.sock")
    except OSError as error:
        raise Absent(error.strerror or str(error)) from None
    answer, piece = b"", b"first"
    try:
        channel.sendall(text(question))
        channel.shutdown(_socket.SHUT_WR)
        while piece and len(answer) <= LONGEST:
            piece = channel.recv(1 << 16)
            answer += piece
    except TimeoutError:
        raise Refused(f"nri-nvidia gave no answer for {PATIENCE:g} s: its log says why") from None
    except OSError as error:
        raise Refused(f"nri-nvidia gave no answer: {error.strerror or error}") from None
    finally:
        channel.close()
    if not answer:
        raise Refused("nri-nvidia ended while it was asked; try again")
    return parse(answer, "the answer of nri-nvidia")


def another_case(part: Any) -> str:
    """Give a key that is one of ours in another case: Go takes it for that, and crun does not."""
    for key in part if isinstance(part, dict) else ():
        if key.casefold() in KNOWN and key not in KNOWN:
            return str(key)
    return ""


def served(spec: dict[str, Any]) -> bool:
    """Whether our hook is in a spec already: it came through NRI or CDI, or by an earlier try."""
    hooks = spec.get("hooks")
    return isinstance(hooks, dict) and any(
        str(part).rpartition("/")[2] == HOOK
        for stage in hooks.values()
        for hook in listed(stage)
        if isinstance(hook, dict)
        for part in [hook.get("path"), *listed(hook.get("args"))[:8]]
    )


def listed(value: Any) -> list[Any]:
    """Give a list where there is one: what else is there is the daemon's to refuse."""
    return value if isinstance(value, list) else []


def without_stand_in(spec: dict[str, Any]) -> bool:
    """Take out the hook by which docker's --gpus is known, if it is a link to us; tell whether.

    NVIDIA's own program of that name stays: it gives GPUs by itself.
    """
    hooks = spec.get("hooks")
    found = hooks.get("prestart") if isinstance(hooks, dict) else None
    if not isinstance(found, list):
        return False
    kept = [hook for hook in found if not (isinstance(hook, dict) and is_stand_in(hook))]
    hooks["prestart"] = kept  # type: ignore[index]
    return len(kept) < len(found)


def is_stand_in(hook: dict[str, Any]) -> bool:
    """Whether a hook's program is the link that has docker take --gpus."""
    path = str(hook.get("path"))
    try:
        return path.endswith(f"/{STAND_IN}") and posix.readlink(path).endswith(FRONT)
    except OSError:
        return False


def asks(spec: dict[str, Any], run: str) -> str:
    """Say what a container asks for while no daemon can tell; empty for nothing.

    By the rules that hold whatever the settings are: `void` and blanks are nothing, CUDA_VERSION
    without NVIDIA_REQUIRE_CUDA is an old image (toolkit `image/devices.go`). What else the
    daemon's settings look for is in the file of markers that it left.
    """
    process = spec.get("process")
    entries = listed(process.get("env")) if isinstance(process, dict) else []
    env = dict(str(entry).split("=", 1) for entry in entries if "=" in str(entry))
    marks = marked(run) or ["NVIDIA_VISIBLE_DEVICES=", "nvidia-container-devices", "cdi.k8s.io/"]
    names = [mark[:-1] for mark in marks if mark.endswith("=") and not mark.startswith("CUDA_")]
    for name in [*names, *(name for name in env if name.startswith("DOCKER_RESOURCE_"))]:
        items = [item.strip() for item in env.get(name, "").split(",")]
        if any(items) and "void" not in items:
            return f"{name}={env[name]}"
    old_image = env.get("CUDA_VERSION") and not env.get("NVIDIA_REQUIRE_CUDA")
    if old_image and "NVIDIA_VISIBLE_DEVICES" not in env:
        return f"CUDA_VERSION={env['CUDA_VERSION']} of an old CUDA image"
    others = tuple(mark for mark in marks if not mark.endswith("="))
    mounts, annotations = spec.get("mounts"), spec.get("annotations")
    for each in listed(mounts):
        place = str(each.get("destination")) if isinstance(each, dict) else ""
        if any(mark in place for mark in others):
            return place
    for key, named in annotations.items() if isinstance(annotations, dict) else ():
        if key.startswith(others) and "nvidia.com/" in str(named):
            return f"{key}={named}"
    return ""


def marked(run: str) -> list[str]:
    """Give the texts that the daemon's settings look for, as it left them; none if it did not."""
    try:
        with open(f"{run}/runtime/markers", encoding="utf-8") as lines:  # noqa: PTH123
            return [line for line in lines.read().split("\n") if line and line[0] != "\\"]
    except (OSError, ValueError):
        return []


def answer_for(spec: dict[str, Any], run: str, question: dict[str, Any]) -> dict[str, Any] | None:
    """Give the daemon's answer, waiting for one that is being restarted; raises Refused.

    None where there is no daemon and the container asks for nothing.
    """
    end = time.monotonic() + RESTART
    while True:
        try:
            return ask(run, question)
        except Absent as absent:
            wanted = asks(spec, run)
            if not wanted:
                return None
            if time.monotonic() >= end:
                raise Refused(
                    f"this container asks for a GPU ({wanted[:200]}), and nri-nvidia does not "
                    f"answer at {run}/runtime.sock: {absent} ({START})"
                ) from None
        time.sleep(PAUSE)


def prepare(run: str, path: str, identifier: str, arguments: list[str], process: int = 0) -> None:
    """Have the config.json changed where the container is given something; raises Refused."""
    bundle = Bundle(path)
    try:
        change(bundle, run, identifier, arguments, process)
    finally:
        bundle.close()


def change(bundle: Bundle, run: str, identifier: str, arguments: list[str], process: int) -> None:
    """Do that with an open one."""
    spec = bundle.read()
    for part in (spec, *(spec.get(name) for name in SENT_OF)):
        another = another_case(part)
        if another:
            raise Refused(f"{bundle.path} has {another!r}, which runtimes take differently")
    if served(spec):
        if without_stand_in(spec):  # docker's --gpus beside a CDI device
            bundle.write(spec)
        return
    changed = without_stand_in(spec)
    answer = answer_for(spec, run, message(spec, identifier, arguments, process))
    if answer is None:
        return  # nor is it --gpus, which comes with a variable
    if answer.get("message"):
        raise Refused(str(answer["message"]))
    patch = answer.get("patch")
    if not isinstance(patch, dict):
        raise Refused("nri-nvidia gave an answer of another version; restart it")
    if patch:
        try:
            apply(spec, patch)
        except (AttributeError, KeyError, TypeError) as error:
            raise Refused(f"{bundle.path} is no config.json: {error}") from None
    if patch or changed:
        bundle.write(spec)


def prepared(run: str, path: str, identifier: str, arguments: list[str], process: int = 0) -> bool:
    """Do that, or say why not; `process` is who asks, where that is not this process."""
    try:
        prepare(run, path, identifier, arguments, process)
    except Refused as refused:
        complain(arguments, str(refused))
    except Exception as error:  # noqa: BLE001  engines show the log, and not a traceback
        complain(arguments, f"a defect in nri-nvidia: {type(error).__name__}: {error}")
    else:
        return True
    return False


def main(words: list[str]) -> int:
    """Run as a program; gives an exit status only where the real runtime is not started."""
    run, real, path, identifier, *arguments = words
    if prepared(run, path, identifier, arguments):
        try:
            posix.execve(real, [real, *arguments], posix.environ)
        except OSError as error:
            complain(arguments, f"{real} cannot be started: {error.strerror}")
    return 1


if __name__ == "__main__":
    posix._exit(main(sys.argv[1:]))  # noqa: SLF001  the interpreter's own end takes a millisecond
