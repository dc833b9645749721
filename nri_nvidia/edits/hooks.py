# SPDX-License-Identifier: Apache-2.0
"""The hook that makes the driver's files findable in a container."""

import posixpath
from collections.abc import Iterable

from nri_nvidia.edits import model, options
from nri_nvidia.request import container as containers

NAME = "nri-nvidia-hook"
SHELL = "/bin/sh"
_AMONG = 8  # of a hook's words is its script
# A hook without an environment inherits the image's, as root (CVE-2025-23266).
# With this locale Python looks for no other, which takes a quarter of a millisecond.
_ENVIRONMENT = ("LC_ALL=C", "PATH=/usr/sbin:/usr/bin:/sbin:/bin")


def build(
    mounts: Iterable[model.MountEdit],
    programs: Iterable[str],
    aliases: Iterable[tuple[str, str]],
    inject: options.InjectOptions,
    *,
    more: Iterable[str] = (),
    token: str = "",
) -> model.ContainerEdits:
    """Give the hook for these mounts, or nothing where it would have nothing to do.

    `programs` are names below `bin` to link into /usr/bin, `aliases` names of libraries to make
    beside them, each with the SONAME that it stands for. `more` are further arguments
    (`compat`, `inside`).
    """
    hook = inject.hook
    inside = inject.library_dir + "/"
    below = [m for m in mounts if (m.destination + "/").startswith(inside)]
    if hook is None or not below:
        return model.ContainerEdits()
    # -I and -S: nothing of the container or of a site directory is imported.
    args = [hook.interpreter, "-I", "-S", hook.script, "--library-dir", inject.library_dir]
    args += [part for name in sorted(programs) for part in ("--link", name)]
    args += [part for name, soname in aliases for part in ("--alias", f"{name}={soname}")]
    args += more
    args += ["--ldconfig", hook.ldconfig] if hook.ldconfig else []
    args += [part for step in hook.skipped for part in ("--skip", step)]
    args += ["--timeout", str(hook.step_timeout), "--on-error", hook.on_error]
    if hook.report_socket and token:
        args += ["--report", hook.report_socket, "--token", token]
    if hook.warm:
        # The script goes on as Python where nobody stands ready any more.
        args = [SHELL, f"{hook.script}.sh", hook.warm, *args]
    return model.ContainerEdits(
        hooks=(
            model.HookEdit(
                stage="createContainer",
                path=args[0],
                args=tuple(args),
                env=_ENVIRONMENT,
                timeout=hook.timeout,
            ),
        )
    )


def is_ours(hook: containers.Hook) -> bool:
    """Tell a hook of ours in a spec, whichever version and place it was installed from."""
    return any(posixpath.basename(part) == NAME for part in (hook.path, *hook.args[:_AMONG]))
