# SPDX-License-Identifier: Apache-2.0
"""Settings that are well formed, each for itself, and cannot be meant together."""

from collections.abc import Iterator

import attrs

from nri_nvidia.config import model

_KUBELET = 120
"""Seconds that a kubelet waits for a runtime (`runtimeRequestTimeout`, default 2m)."""
_NO_PLACE = ("/dev", "/proc", "/sys")


@attrs.frozen(kw_only=True)
class Contradiction:
    """A sentence, and the keys that it is about, the one to report it at first."""

    keys: tuple[str, ...]
    message: str


def find(config: model.Config) -> Iterator[Contradiction]:
    """Give each contradiction; defaults hold none, so at least one of its keys was set."""
    request = config.request
    unsupported = request.default_capabilities - request.supported_capabilities
    if unsupported:
        supported = ", ".join(sorted(map(str, request.supported_capabilities))) or "none"
        yield Contradiction(
            keys=("request.default_capabilities",),
            message=f"{', '.join(sorted(map(str, unsupported)))} is not among "
            f"request.supported_capabilities: {supported}",
        )
    yield from _hook(config.hook)
    if config.nri.socket == config.control.socket:
        yield Contradiction(
            keys=("control.socket", "nri.socket"),
            message=f"{config.control.socket} is the runtime's socket, nri.socket: name another",
        )
    if _within(config.inject.volume_dir, config.hook.directory):
        yield Contradiction(
            keys=("inject.volume_dir", "hook.directory"),
            message=f"{config.inject.volume_dir} lies in hook.directory, "
            f"{config.hook.directory}: name another",
        )
    if any(_within(config.inject.library_dir, place) for place in _NO_PLACE):
        yield Contradiction(
            keys=("inject.library_dir",),
            message=f"{config.inject.library_dir}: no runtime mounts files there in a container",
        )


def _hook(hook: model.Hook) -> Iterator[Contradiction]:
    if hook.ldconfig_timeout > hook.timeout:
        yield Contradiction(
            keys=("hook.ldconfig_timeout", "hook.timeout"),
            message=f"ldconfig may take {hook.ldconfig_timeout} s, and the runtime ends the hook "
            f"after hook.timeout, {hook.timeout} s",
        )
    if hook.timeout >= _KUBELET:
        yield Contradiction(
            keys=("hook.timeout",),
            message=f"the hook may take {hook.timeout} s, and a kubelet gives up a container "
            f"after {_KUBELET} s",
        )


def _within(path: str, directory: str) -> bool:
    return f"{path.rstrip('/')}/".startswith(f"{directory.rstrip('/')}/")
