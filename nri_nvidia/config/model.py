# SPDX-License-Identifier: Apache-2.0
"""Every setting, its unit and why it has that default."""

import ipaddress
from collections.abc import Callable
from typing import Any

import attrs

from nri_nvidia import errors, pipeline
from nri_nvidia.config import access, place
from nri_nvidia.edits import options as edit_options
from nri_nvidia.host import options as host_options
from nri_nvidia.host import presets
from nri_nvidia.request import model as request_model
from nri_nvidia.request import parse, policy

_STEPS = ("proc", "links", "ldcache", "profile")
_DAY = 86400
OFF, ALL = "off", "all"
"""Of `nri.validate`: nothing is looked at, and all that plugins give."""
_LEVELS = ("debug", "info", "warning", "error")


def _absolute(_: object, _attribute: "attrs.Attribute[str]", value: str) -> None:
    if not value.startswith("/"):
        raise ValueError(f"{value!r} is not an absolute path")
    if "\0" in value:
        raise ValueError(f"{value!r} holds a character that no path can hold")


def _loader_path(_: object, attribute: "attrs.Attribute[str]", value: str) -> None:
    """Refuse what ld.so.conf could not hold as it stands: the hook would, at each container."""
    _absolute(_, attribute, value)
    names = value.strip("/").split("/")
    plain = all(c.isascii() and (c.isalnum() or c in "._+-/") for c in value)
    if not plain or any(name in {"", ".", ".."} for name in names):
        raise ValueError(f"{value!r} may hold letters, digits and . _ + - in its names only")


def _absolute_or_empty(_: object, attribute: "attrs.Attribute[str]", value: str) -> None:
    if value:
        _absolute(_, attribute, value)


def _seconds(_: object, _attribute: "attrs.Attribute[Any]", value: float) -> None:
    if not 0 < value <= _DAY:
        raise ValueError(f"{value!r} is not a number of seconds above 0, up to {_DAY}")


def _one_of(*allowed: str) -> Callable[[object, "attrs.Attribute[str]", str], None]:
    def check(_: object, _attribute: "attrs.Attribute[str]", value: str) -> None:
        if value not in allowed:
            raise ValueError(f"{value!r} is none of {', '.join(allowed)}")

    return check


@attrs.frozen(kw_only=True)
class Nri:
    """`[nri]`: how the runtime is reached. `index` (two digits) orders the runtime's plugins.

    Not `enabled`, no runtime is looked for: containers come by other doors alone. `validate` has
    containers refused for what other plugins make of our decision (`ours`), or for any device of
    NVIDIA's that another plugin gives (`all`). It is off, since a node may mean such a plugin.
    """

    enabled: bool = True
    socket: str = attrs.field(default="/var/run/nri/nri.sock", validator=_absolute)
    name: str = attrs.field(default="nri-nvidia")
    index: str = attrs.field(default="10")
    validate: str = attrs.field(default=OFF, validator=_one_of(OFF, "ours", ALL))

    @index.validator
    def _two_digits(self, _attribute: "attrs.Attribute[str]", value: str) -> None:
        if len(value) != 2 or not (value.isascii() and value.isdigit()):
            raise ValueError(f'{value!r} is not two digits, e.g. "10"')

    @name.validator
    def _plain(self, _attribute: "attrs.Attribute[str]", value: str) -> None:
        # NRI 0.12 accepts these characters only.
        if not value or not all(c.isascii() and (c.isalnum() or c in "_.+-") for c in value):
            raise ValueError(f"{value!r} may hold letters, digits and _ . + - only")


@attrs.frozen(kw_only=True)
class Host:
    """`[host]`: where the driver is.

    `preset` is the kind of host, `auto` for what its files show. `driver_root` holds the driver's
    files as if it were `/`, `dev_root` holds `dev`; empty, the preset says. `root` is where proc
    and sys are read. `nvml_timeout` is in seconds; NVML takes that long only when it hangs. After
    `nvml_refresh` seconds it is asked again, behind the answer to a container: a GPU that falls
    off the bus shows nowhere else, and to ask wakes GPUs that sleep, so not more often.
    `load_modules` is off, since a node without the driver may be so for a reason (an upgrade, a
    driver container that comes later); `modprobe` is the kernel's own tool unless named.
    """

    root: str = attrs.field(default="/", validator=_absolute)
    preset: str = attrs.field(default=presets.AUTO, validator=_one_of(*presets.NAMES))
    driver_root: str = attrs.field(default="", validator=_absolute_or_empty)
    dev_root: str = attrs.field(default="", validator=_absolute_or_empty)
    library_search_paths: tuple[str, ...] = ()
    create_device_nodes: bool = True
    dev_char_symlinks: bool = True
    nvml_timeout: float = attrs.field(default=10.0, validator=_seconds)
    nvml_refresh: float = attrs.field(default=600.0, validator=_seconds)
    load_modules: bool = False
    modprobe: str = attrs.field(default="", validator=_absolute_or_empty)
    modules_timeout: float = attrs.field(default=60.0, validator=_seconds)


@attrs.frozen(kw_only=True)
class Request:
    """`[request]`: how the NVIDIA_* variables are read; NVIDIA's own defaults."""

    accept_env_when_unprivileged: bool = True
    accept_volume_mounts: bool = False
    supported_capabilities: frozenset[request_model.Capability] = request_model.ALL_CAPABILITIES
    default_capabilities: frozenset[request_model.Capability] = request_model.DEFAULT_CAPABILITIES
    disable_require: bool = False
    swarm_resources: tuple[str, ...] = ()
    annotation_prefixes: tuple[str, ...] = ("cdi.k8s.io/",)
    accept_pod_annotations: bool = False
    management_namespaces: tuple[str, ...] = ()
    ignore_imex_channels: bool = False


@attrs.frozen(kw_only=True)
class Inject:
    """`[inject]`: where driver files go in a container, and whose CUDA driver it uses.

    `env` are entries `NAME=VALUE` for what is given a GPU or the driver, where it has no such
    variable itself; none, since programs are used to what they find.
    """

    library_dir: str = attrs.field(default=place.LIBRARY_DIR, validator=_loader_path)
    layout: str = attrs.field(default="volume", validator=_one_of("files", "volume"))
    volume_dir: str = attrs.field(default="/var/lib/nri-nvidia/driver", validator=_absolute)
    cuda_compat: str = attrs.field(default="auto", validator=_one_of("auto", "always", "never"))
    cuda_compat_dir: str = attrs.field(default="/usr/local/cuda/compat", validator=_loader_path)
    env: tuple[str, ...] = attrs.field(default=())

    @env.validator
    def _entries(
        self, _attribute: "attrs.Attribute[tuple[str, ...]]", value: tuple[str, ...]
    ) -> None:
        for entry in value:
            name, separator, _ = entry.partition("=")
            if not name or not separator or "\0" in entry:
                raise ValueError(f'{entry!r} is no variable, write it as "NAME=VALUE"')
            if name == parse.VISIBLE_DEVICES:
                raise ValueError(f"{name} is the container's own to say")


@attrs.frozen(kw_only=True)
class Hook:
    """`[hook]`: the one hook in a container.

    `directory` must be readable by every uid: containers in a user namespace run the hook as one.
    `timeout` is the runtime's limit for the hook in seconds, `ldconfig_timeout` that for ldconfig
    in it. `on_error` says whether a container starts when a step failed, `warm` whether a process
    stands ready to do the hook's work.
    """

    enabled: bool = True
    steps: tuple[str, ...] = attrs.field(default=_STEPS)
    directory: str = attrs.field(default="/run/nri-nvidia/hook", validator=_absolute)
    interpreter: str = attrs.field(default="", validator=_absolute_or_empty)
    ldconfig: str = attrs.field(default="", validator=_absolute_or_empty)
    timeout: int = attrs.field(default=10, validator=_seconds)
    ldconfig_timeout: int = attrs.field(default=5, validator=_seconds)
    on_error: str = attrs.field(default="continue", validator=_one_of("continue", "fail"))
    warm: bool = True

    @property
    def script(self) -> str:
        """The installed hook."""
        return f"{self.directory.rstrip('/')}/nri-nvidia-hook"

    @steps.validator
    def _known(
        self, _attribute: "attrs.Attribute[tuple[str, ...]]", value: tuple[str, ...]
    ) -> None:
        unknown = sorted(set(value) - set(_STEPS))
        if unknown:
            raise ValueError(f"{', '.join(unknown)}: the steps are {', '.join(_STEPS)}")


@attrs.frozen(kw_only=True)
class Control:
    """`[control]`: the socket that `status` asks; root may, and the members of `group`."""

    socket: str = attrs.field(default=place.CONTROL_SOCKET, validator=_absolute)
    group: str = ""


@attrs.frozen(kw_only=True)
class Metrics:
    """`[metrics]`: where `/metrics`, `/healthz` and `/readyz` are served; empty for nowhere."""

    listen: str = attrs.field(default="")

    @listen.validator
    def _address(self, _attribute: "attrs.Attribute[str]", value: str) -> None:
        if value and not value.startswith("unix:/") and not _is_address(value):
            raise ValueError(
                f"{value!r} is neither ADDRESS:PORT, as 127.0.0.1:9402 or [::]:9402, "
                "nor unix:/PATH"
            )


def _is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        address = ipaddress.ip_address(bare)
    except ValueError:
        return False
    known = port.isascii() and port.isdigit() and int(port[:6]) < 65536
    return known and (address.version == 6) == (bare != host)


@attrs.frozen(kw_only=True)
class Cdi:
    """`[cdi]`: specifications of this host that the daemon keeps for engines to read."""

    keep: bool = False
    directory: str = attrs.field(default="/var/run/cdi", validator=_absolute)
    kinds: tuple[str, ...] = attrs.field(default=("gpu",))

    @kinds.validator
    def _known(
        self, _attribute: "attrs.Attribute[tuple[str, ...]]", value: tuple[str, ...]
    ) -> None:
        known = ("gpu", *map(str, request_model.Group), "imex-channel")
        unknown = sorted(set(value) - set(known))
        if unknown:
            raise ValueError(f"{', '.join(unknown)}: the kinds are {', '.join(known)}")


@attrs.frozen(kw_only=True)
class Log:
    """`[log]`: what is written to standard error."""

    level: str = attrs.field(default="info", validator=_one_of(*_LEVELS))
    format: str = attrs.field(default="text", validator=_one_of("text", "json"))


@attrs.frozen(kw_only=True)
class Config:
    """All settings."""

    nri: Nri = attrs.field(factory=Nri)
    host: Host = attrs.field(factory=Host)
    request: Request = attrs.field(factory=Request)
    policy: access.Policy = attrs.field(factory=access.Policy)
    policy_rules: tuple[access.Rule, ...] = ()
    inject: Inject = attrs.field(factory=Inject)
    hook: Hook = attrs.field(factory=Hook)
    control: Control = attrs.field(factory=Control)
    metrics: Metrics = attrs.field(factory=Metrics)
    cdi: Cdi = attrs.field(factory=Cdi)
    log: Log = attrs.field(factory=Log)

    def host_options(self) -> host_options.Options:
        """Give what a scan needs."""
        return host_options.Options(
            root=self.host.root,
            preset=self.host.preset,
            driver_root=self.host.driver_root,
            dev_root=self.host.dev_root,
            library_search_paths=self.host.library_search_paths,
            create_device_nodes=self.host.create_device_nodes,
            dev_char_symlinks=self.host.dev_char_symlinks,
            nvml_timeout=self.host.nvml_timeout,
            nvml_refresh=self.host.nvml_refresh,
            load_modules=self.host.load_modules,
            modprobe=self.host.modprobe,
            modules_timeout=self.host.modules_timeout,
        )

    def rules(self, *, interpreter: str, report_socket: str = "") -> pipeline.Policy:
        """Give what a decision needs; `interpreter` is used where none is configured."""
        hook = edit_options.HookOptions(
            interpreter=self.hook.interpreter or interpreter,
            script=self.hook.script,
            ldconfig=self.hook.ldconfig,
            skipped=tuple(sorted(set(_STEPS) - set(self.hook.steps))),
            on_error=self.hook.on_error,
            timeout=self.hook.timeout,
            step_timeout=self.hook.ldconfig_timeout,
            report_socket=report_socket,
        )
        return pipeline.Policy(
            request=policy.RequestPolicy(
                accept_env_when_unprivileged=self.request.accept_env_when_unprivileged,
                accept_volume_mounts=self.request.accept_volume_mounts,
                supported_capabilities=self.request.supported_capabilities,
                default_capabilities=self.request.default_capabilities,
                disable_require=self.request.disable_require,
                swarm_resources=self.request.swarm_resources,
                annotation_prefixes=self.request.annotation_prefixes,
                accept_pod_annotations=self.request.accept_pod_annotations,
                management_namespaces=self.request.management_namespaces,
                ignore_imex_channels=self.request.ignore_imex_channels,
                access=access.access(self.policy, self.policy_rules),
            ),
            inject=edit_options.InjectOptions(
                library_dir=self.inject.library_dir.rstrip("/"),
                layout=self.inject.layout,
                cuda_compat=self.inject.cuda_compat,
                cuda_compat_dir=self.inject.cuda_compat_dir.rstrip("/"),
                env=self.inject.env,
                hook=hook if self.hook.enabled else None,
            ),
        )


class Invalid(errors.ConfigError):
    """Raised with every fault of a configuration at once, a line each.

    `rest` are the settings without what is wrong, None where a text could not be read at all.
    """

    def __init__(self, faults: tuple[str, ...], rest: "Config | None" = None) -> None:
        super().__init__("\n".join(faults))
        self.faults = faults
        self.rest = rest
