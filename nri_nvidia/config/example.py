# SPDX-License-Identifier: Apache-2.0
"""A file of settings that sets nothing: each key explained, with its default, in comments."""

import json
import textwrap
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import attrs

from nri_nvidia.config import access, model
from nri_nvidia.request import model as request_model

HEAD = """\
# Settings of nri-nvidia. Every key is optional; what stands here in comments is the default.
# "nri-nvidia config --check FILE" says what is wrong with a file, "nri-nvidia config" what is in
# force, "systemctl reload nri-nvidia" has it read again.
"""
_GROUPS = {
    "nri": "How the container runtime is reached.",
    "host": "Where the driver is, and what is made on the host.",
    "request": "How the NVIDIA_* variables of containers are read.",
    "policy": "Who may have what, where no rule decides.",
    "inject": "Where driver files go in a container, and whose CUDA driver it uses.",
    "hook": "The one hook in a container.",
    "control": "The socket that status and explain ask.",
    "metrics": "Metrics and health.",
    "cdi": "CDI specifications of this host that the daemon keeps.",
    "log": "What is written to standard error.",
}
_KEYS = {
    "nri.enabled": "false: look for no runtime, serve nri-nvidia-runtime and CDI alone.",
    "nri.socket": "The runtime's NRI socket.",
    "nri.name": "The plugin's name: letters, digits and _ . + -",
    "nri.validate": "ours: refuse a container in which another plugin changed what it was given,\n"
    "or gives it a GPU as well; all: refuse any that gets an NVIDIA device from another plugin.\n"
    "Needs containerd 2.2 or later; counts from the next connection on.",
    "nri.index": "Two digits: the plugin's place among the runtime's plugins.",
    "host.root": "Where proc and sys are read.",
    "host.preset": "The kind of host; auto: what its files show. nri-nvidia devices says which.",
    "host.driver_root": "What holds the driver's files as if it were /; empty: the preset says.",
    "host.dev_root": "What holds dev; empty: the preset says.",
    "host.library_search_paths": "Directories below the driver root, instead of the known ones.",
    "host.create_device_nodes": "Make missing device nodes from the numbers in /proc/devices.",
    "host.dev_char_symlinks": "Make missing links /dev/char/MAJOR:MINOR, as udev does.",
    "host.nvml_timeout": "Seconds that NVML may take to answer; no container waits for it.",
    "host.nvml_refresh": "Seconds after which NVML is asked again; each time wakes sleeping GPUs.",
    "host.load_modules": "Load the driver's kernel modules where a GPU is there and they are not.",
    "host.modprobe": "The program that loads them; empty: the kernel's own.",
    "host.modules_timeout": "Seconds that it may take.",
    "request.accept_env_when_unprivileged": "Unprivileged containers may ask by variables.",
    "request.accept_volume_mounts": (
        "Containers may ask by mounts below /var/run/nvidia-container-devices."
    ),
    "request.supported_capabilities": "What NVIDIA_DRIVER_CAPABILITIES may name here.",
    "request.default_capabilities": "What a container has that names none.",
    "request.disable_require": "Do not enforce NVIDIA_REQUIRE_*.",
    "request.swarm_resources": "Variables that replace NVIDIA_VISIBLE_DEVICES where set.",
    "request.annotation_prefixes": "Of a container's annotations that hold CDI names.",
    "request.accept_pod_annotations": (
        "Serve pods' annotations nvidia.cdi.k8s.io/..., in the place of NVIDIA's NRI plugin."
    ),
    "request.management_namespaces": "Whose pods may manage MIG, as privileged containers may.",
    "request.ignore_imex_channels": "No request for an IMEX channel counts.",
    "policy.preset": 'compatible: as NVIDIA\'s stack. strict: short for it, policy = "strict".',
    "policy.exclusive": "A GPU or MIG device is held by one container at a time.",
    "policy.cri_socket": "Where images' variables are asked; empty: the runtime's usual socket.",
    "policy.cri_timeout": "Seconds that this may take, part of what a creation may take.",
    "inject.library_dir": "The driver's directory in containers.",
    "inject.layout": "volume: one mount of a prepared directory. files: a mount for each file.",
    "inject.volume_dir": "Where such directories are prepared; only root may write there.",
    "inject.cuda_compat": (
        "An image's newer CUDA driver. auto: on GPUs for data centers; always: by its version "
        "alone; never."
    ),
    "inject.cuda_compat_dir": "Where images have it.",
    "inject.env": 'Variables for GPU containers that lack them: ["CUDA_DEVICE_ORDER=PCI_BUS_ID"]',
    "hook.enabled": "Without it programs and libraries are there, but found by no cache or link.",
    "hook.steps": (
        "What it does: hide other GPUs in /proc, link programs and modules, list libraries, name "
        "the GPUs to EGL."
    ),
    "hook.directory": "Where it is installed; every user must be able to read it.",
    "hook.interpreter": "The Python that runs it, 3.9 or later; empty: found.",
    "hook.ldconfig": "The host's ldconfig; empty: found.",
    "hook.timeout": "The runtime's limit for the hook, in seconds.",
    "hook.ldconfig_timeout": "The limit for ldconfig in it, in seconds.",
    "hook.warm": "Whether a process stands ready, so that no hook has to start Python.",
    "hook.on_error": "Whether a container starts when a step failed: continue or fail.",
    "control.socket": "Root may connect, and the members of the group below.",
    "control.group": "A name or number; its members see the names of all containers.",
    "metrics.listen": (
        "127.0.0.1:9402, [::]:9402 or unix:/run/nri-nvidia/metrics.sock; empty: nowhere."
    ),
    "cdi.keep": "Write them, and again whenever the host changes.",
    "cdi.directory": "Where.",
    "cdi.kinds": "gpu, gds, mofed, gdrcopy, nvswitch, imex-channel.",
    "log.level": "debug, info, warning or error.",
    "log.format": "text or json.",
}
_RULES = """\
# Rules over who may have what: the first that is met decides. Any number of such tables.
#[[policy_rules]]
#action = "allow"            # or ignore (create it without), or deny (refuse the creation)
"""
_RULE_KEYS = {
    "action": "what the rule does",
    "name": "for reasons and logs",
    "namespaces": 'patterns, as "ml-*"',
    "labels": "patterns by name, all of which must be met",
    "annotations": "as labels",
    "runtime_handlers": 'patterns, as "kata*"; "" is the default one',
    "sources": "where it was asked: env, image, pod, mount, annotation, ...",
    "privileged": "whether the container is privileged",
    "devices": "what is asked for: none, all, index, uuid, cdi, management, ...",
    "max_devices": "how many an allowing rule gives at most",
    "over_max": "what happens above it: deny or ignore",
    "shares": "the container only looks at GPUs that others hold",
}


def text(given: Mapping[str, Any] = types.MappingProxyType({}), notes: Iterable[str] = ()) -> str:
    """Give the file, which sets what is given by `group.key`, and else nothing.

    A key without a text has its default alone. Notes are put at the top, a line each.
    """
    defaults = model.Config()
    parts = [HEAD + "".join(f"# {note}\n" for note in notes)]
    for group in attrs.fields(model.Config):
        content = getattr(defaults, group.name)
        if attrs.has(type(content)):
            parts.append(_group(group.name, content, given))
        else:
            parts.append(_RULES + "".join(_rule_keys()))
    return "\n".join(parts)


def _group(name: str, content: Any, given: Mapping[str, Any]) -> str:
    lines = [f"# {_GROUPS.get(name, name)}", f"[{name}]"]
    for field in attrs.fields(type(content)):
        lines += textwrap.wrap(_KEYS.get(f"{name}.{field.name}", ""), 97, initial_indent="# ",
                               subsequent_indent="# ")  # fmt: skip
        default = f"#{field.name} = {_toml(getattr(content, field.name))}"
        key = f"{name}.{field.name}"
        lines.append(f"{field.name} = {_toml(given[key])}" if key in given else default)
    return "\n".join(lines) + "\n"


def _rule_keys() -> Iterator[str]:
    for field in attrs.fields(access.Rule):
        if field.name == "action":
            continue
        default = field.default
        if isinstance(default, attrs.Factory):  # type: ignore[arg-type]
            default = {}
        shown = (
            _toml(default) if default is not None else _toml(1 if "max" in field.name else False)
        )
        yield f"#{f'{field.name} = {shown}':<27} # {_RULE_KEYS.get(field.name, '')}\n"


def _toml(value: Any) -> str:
    match value:
        case Mapping():
            return "{}"
        case frozenset():
            if value == request_model.ALL_CAPABILITIES:
                return '["all"]'
            return json.dumps(sorted(map(str, value)))
        case tuple() | list():
            return json.dumps(list(value))
        case _:
            return json.dumps(value)
