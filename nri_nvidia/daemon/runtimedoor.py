# SPDX-License-Identifier: Apache-2.0
"""The door for `nri-nvidia-runtime`: containers of docker, podman, nerdctl and ctr.

A unix socket that every user may ask, for what root's own policy gives to any container. The
caller shows what its config.json holds and changes it itself, with its own rights; nothing is read
on its word. What it says is held to its own: another user's container is never privileged, nor in
a pod. A caller sends one JSON object, ends its side, and is sent one.
"""

import asyncio
import functools
import json
import logging
import os
import posixpath
import re
import socket
import struct
from typing import Any, Protocol

import attrs

from nri_nvidia import errors
from nri_nvidia.config import model
from nri_nvidia.daemon import hookplace, ledger, statedir, worker
from nri_nvidia.edits import model as edits_model
from nri_nvidia.oci import bundle, client, install
from nri_nvidia.render import oci as render
from nri_nvidia.request import container as containers
from nri_nvidia.request import mountlist

logger = logging.getLogger(__name__)

_LIMIT = 8.0
"""Seconds for an answer: less than the caller waits."""
_READING = 5.0
_INSTALLING = 60.0
_LONGEST = 4 << 20
_LONGEST_OF_USERS = 1 << 18
"""It takes a tenth of a second to read; nothing else is done meanwhile."""
_MOST_OF_USERS = 16
"""Callers other than root that are served at a time."""
_DIGITS = re.compile(r"[0-9a-f]{64}")
_CREDENTIALS = struct.Struct("3i")


class Decider(Protocol):
    """What decides."""

    async def create_container(
        self, container: containers.Container, deadline: float
    ) -> edits_model.ContainerEdits:
        """Decide by `deadline` (loop time); raise Error to have the creation refused."""


class Holders(Protocol):
    """What keeps who holds something."""

    def hold(self, container_id: str, pid: int, *, stays: bool, cgroup: str) -> None:
        """Note that a container came from this process, and have it forgotten in time."""


@attrs.frozen(kw_only=True)
class Caller:
    """The process at the other end, as the kernel tells (unix(7), SO_PEERCRED)."""

    pid: int
    uid: int


class RuntimeDoor:
    """Serves the socket."""

    def __init__(self, decider: Decider, holders: Holders) -> None:
        self.path = ""
        self._decider = decider
        self._holders = holders
        self._server: asyncio.Server | None = None
        self._of_users = 0
        self._turn = asyncio.Lock()
        self._settings = model.Hook()
        self._markers: tuple[bytes, ...] = ()
        self._changed = asyncio.Event()
        self._writer = worker.Worker("runtime client")

    def use(self, settings: model.Hook, markers: tuple[bytes, ...]) -> None:
        """Have the program that asks us in place by these settings; see `keep_client`."""
        self._settings, self._markers = settings, markers
        self._changed.set()

    async def keep_client(self, place: hookplace.HookPlace) -> None:
        """Write that program whenever the settings change; for ever, as a task.

        Without it a container takes longer, and one is looked at that asks for nothing.
        """
        while True:
            await self._changed.wait()
            self._changed.clear()
            if not self.path:
                continue
            folder = posixpath.join(posixpath.dirname(self.path), "runtime")
            try:
                interpreter = await self._interpreter(place)
                work = functools.partial(
                    install.install_client, folder, interpreter, self._markers
                )
                await self._writer.run(work)
            except (errors.Error, OSError, RuntimeError) as error:
                logger.warning("nri-nvidia-runtime goes on without its own program: %s", error)

    async def _interpreter(self, place: hookplace.HookPlace) -> str:
        if self._settings.enabled:
            return await place.ready(self._settings, _INSTALLING)
        return self._settings.interpreter or await self._writer.run(install.interpreter)

    async def open(self, path: str) -> None:
        """Start to listen; raises HostError."""
        self.path = path
        statedir.free(path)
        try:
            self._server = await asyncio.start_unix_server(self._serve, path=path)
            os.chmod(path, 0o666)  # noqa: S103, PTH101 - rootless engines call as their users
        except OSError as error:
            raise statedir.unusable(path, error) from error

    async def close(self) -> None:
        """Stop to listen."""
        if self._server is not None:
            self._server.close()
            self._server = None
            statedir.remove(self.path)
        self._writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        caller = _caller(writer.get_extra_info("socket"))
        counted = caller.uid != 0
        self._of_users += counted
        try:
            answer = await self._answer(reader, caller)
            writer.write(answer)
            async with asyncio.timeout(_READING):
                await writer.drain()
        except (OSError, TimeoutError):
            logger.debug("a runtime left before it had its answer: process %d", caller.pid)
        except Exception:
            # Without an answer its caller refuses the container, and says that we ended.
            logger.exception("a runtime could not be answered")
        finally:
            self._of_users -= counted
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, caller: Caller) -> bytes:
        try:
            # Read first: who is sent away with the question unread does not get the answer.
            longest = _LONGEST_OF_USERS if caller.uid else _LONGEST
            data = await _read(reader, longest)
            self._require_room(caller)
            if not caller.uid:
                return await self._answer_to(data, caller)
            # One at a time, and between two of them whatever else is to be done: users that ask
            # much at once hold up each other, and no runtime that waits for a decision.
            async with self._turn:
                answer = await self._answer_to(data, caller)
                await asyncio.sleep(0)
                return answer
        except errors.Error as error:
            return json.dumps({"message": errors.printable(str(error))}).encode()

    def _require_room(self, caller: Caller) -> None:
        """Raise RequestError where users would keep the daemon from others."""
        if caller.uid and self._of_users > _MOST_OF_USERS:
            raise errors.RequestError("too many users' containers at once", hint="try again")

    async def _answer_to(self, data: bytes, caller: Caller) -> bytes:
        question = _question(data)
        container = _container(question, caller)
        edits = await self._decide(container)
        if edits:
            stays = question["stays"] is True
            cgroup = _cgroup(question["spec"]) if caller.uid == 0 else ""
            # Another process of root's may ask for the one that was called.
            pid = question["process"] if caller.uid == 0 else 0
            self._holders.hold(container.id, pid or caller.pid, stays=stays, cgroup=cgroup)
        return b'{"patch": %b}' % (render.encoded(edits) if edits else b"{}")

    async def _decide(self, container: containers.Container) -> edits_model.ContainerEdits:
        deadline = asyncio.get_running_loop().time() + _LIMIT
        try:
            async with asyncio.timeout_at(deadline):
                return await self._decider.create_container(container, deadline)
        except TimeoutError:
            raise errors.HostError(
                f"no decision within {_LIMIT:g} s", hint="the daemon's log says why"
            ) from None


async def _read(reader: asyncio.StreamReader, longest: int) -> bytes:
    """Read to the end; what is too long is read too, or its sender would not get the answer."""
    data, length = b"", 0
    try:
        async with asyncio.timeout(_READING):
            while piece := await reader.read(1 << 16):
                length += len(piece)
                if length <= longest:
                    data += piece
    except TimeoutError:
        raise errors.RequestError(f"nothing was asked within {_READING:g} s") from None
    if length > longest:
        raise errors.RequestError(
            f"what the container's config.json holds is {length} bytes, more than {longest}",
            hint="shorten its environment",
            code="config-too-long",
        )
    return data


def _question(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
        protocol, identifier, spec, nested, stays = (
            found[key] for key in ("protocol", "id", "spec", "nested", "stays")
        )
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise errors.RequestError("not the question of nri-nvidia-runtime") from error
    if protocol != client.PROTOCOL:
        raise errors.RequestError(
            f"the runtime speaks version {protocol!r}, this daemon {client.PROTOCOL}",
            hint="restart nri-nvidia",
        )
    if not isinstance(identifier, str) or not isinstance(spec, dict):
        raise errors.RequestError("not the question of nri-nvidia-runtime")
    process = found.get("process")
    return {
        "id": identifier,
        "spec": spec,
        "nested": nested,
        "stays": stays,
        "process": process if type(process) is int and process > 0 else 0,
    }


def _container(question: dict[str, Any], caller: Caller) -> containers.Container:
    """Give the container that is asked for; for other users than root see `_of_user`."""
    shown = bundle.container(question["spec"])
    identifier = errors.printable(question["id"], 128)
    shown = attrs.evolve(
        shown,
        id=ledger.runtime_id(identifier, caller.uid),
        name=shown.name or _short(identifier),
        user_namespace=shown.user_namespace or question["nested"] is True,
    )
    return _of_user(shown, _short(identifier)) if caller.uid else shown


def _short(identifier: str) -> str:
    """Give an engine's 64 digits as people know them."""
    return identifier[:12] if _DIGITS.fullmatch(identifier) else identifier


def _of_user(shown: containers.Container, name: str) -> containers.Container:
    """Give a user's container without what only an engine of root's could vouch for.

    That is a pod's name, the annotations and mounts by which the kubelet hands devices on, and
    rights over the node: by these a rule or the strict preset would give what nobody allotted.
    """
    return containers.Container(
        id=shown.id,
        name=name,
        env=shown.env,
        mounts=tuple(
            mount
            for mount in shown.mounts
            if not f"{posixpath.normpath(mount.destination)}/".startswith(f"{mountlist.ROOT}/")
        ),
        devices=shown.devices,
        hooks=shown.hooks,
        privileged=False,
        user_namespace=True,
    )


def _cgroup(spec: dict[str, Any]) -> str:
    """Give the container's cgroup as its spec names it; a user's word is not looked after."""
    linux = spec.get("linux")
    path = linux.get("cgroupsPath") if isinstance(linux, dict) else None
    return path if isinstance(path, str) else ""


def _caller(channel: Any) -> Caller:
    data = channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(data)
    return Caller(pid=pid, uid=uid)
