# SPDX-License-Identifier: Apache-2.0
"""How the edits are made, as the operator set it."""

import attrs


@attrs.frozen(kw_only=True, cache_hash=True)
class HookOptions:
    """How the hook is run.

    `script` is the installed hook, `interpreter` a Python that any uid may execute. `ldconfig` is
    the host's, empty for the hook's own choice. `skipped` names steps to leave out. `timeout` and
    `step_timeout` are seconds: the runtime's limit for the hook and the hook's for ldconfig.
    `warm` is the directory of the process that stands ready to do its work, empty for none.
    """

    interpreter: str = "/usr/bin/python3"
    script: str = "/run/nri-nvidia/hook/nri-nvidia-hook"
    ldconfig: str = ""
    skipped: tuple[str, ...] = ()
    on_error: str = "continue"
    timeout: int = 10
    step_timeout: int = 5
    report_socket: str = ""
    warm: str = ""


@attrs.frozen(kw_only=True, cache_hash=True)
class InjectOptions:
    """Where driver files go in a container: everything of ours is below `library_dir`.

    `layout` is `files`, a bind mount each, or `volume`, one of a prepared directory where that is
    ready. `cuda_compat` says whether an image's newer CUDA driver in its `cuda_compat_dir` is
    used: `auto` (by the kind of GPU), `always` (by its version alone) or `never`. `env` are
    variables, `NAME=VALUE`, for containers that have none of the name.
    """

    library_dir: str = "/usr/local/nvidia"
    layout: str = "files"
    cuda_compat: str = "auto"
    cuda_compat_dir: str = "/usr/local/cuda/compat"
    env: tuple[str, ...] = ()
    hook: HookOptions | None = attrs.field(factory=HookOptions)
