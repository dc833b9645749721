# SPDX-License-Identifier: Apache-2.0
"""What the kernel says about GPUs, in /proc and /sys. Everything that cannot be read is absent."""

import re

import attrs

from .root import Root

_GPUS = "/proc/driver/nvidia/gpus"
_CAPABILITIES = "/proc/driver/nvidia/capabilities"
_MIG_MINORS = "/proc/driver/nvidia-caps/mig-minors"

_BUS_ID = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?", re.IGNORECASE)
_UUID = re.compile(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_VERSION = re.compile(r"\d{1,6}(?:\.\d{1,6}){1,3}")
# "Kernel Module  550.163.01  Tue Apr …"; the open module says "Kernel Module for x86_64  550…".
_MODULE_LINE = re.compile(r"Kernel Module(?:\s+for\s+\S+)?\s+(\d{1,6}(?:\.\d{1,6}){1,3})\b")
# Majors that are looked for beside those whose names begin with nvidia.
_FURTHER_MAJORS = {"gdrdrv"}
_CAP = re.compile(r"(?:config|monitor|gpu\d{1,3}/gi\d{1,3}(?:/ci\d{1,3})?/access)")

_MAJORS, _MINORS = 1 << 12, 1 << 20
"""How many there may be of a device number's parts (include/linux/kdev_t.h, MINORBITS)."""


@attrs.frozen(kw_only=True)
class ProcGpu:
    """A GPU as /proc/driver/nvidia/gpus/BUS/information shows it; minor -1 where it says none."""

    bus_id: str
    uuid: str = ""
    minor: int = -1
    name: str = ""
    excluded: bool = False


@attrs.frozen(kw_only=True)
class Capability:
    """A node of nvidia-caps: its minor and the permission bits that the driver asks for."""

    minor: int
    mode: int = 0o444


def normal_bus_id(text: str) -> str:
    """Give a PCI address in sysfs' form (`0000:07:00.0`), empty if it is none.

    NVML writes the domain with eight digits; the first four go when they are zero.
    """
    match = _BUS_ID.fullmatch(text.strip())
    if match is None:
        return ""
    domain, bus, device, function = match.groups()
    return f"{int(domain, 16):04x}:{bus}:{device}.{function or 0}".lower()


def bus_key(bus_id: str) -> tuple[int, ...]:
    """Give the key that sorts normal addresses in PCI order."""
    return tuple(int(part, 16) for part in re.split("[:.]", bus_id))


def gpus(root: Root) -> tuple[ProcGpu, ...]:
    """Give the GPUs of the loaded driver in PCI order."""
    found: dict[str, ProcGpu] = {}
    for name in root.entries(_GPUS):
        gpu = parse_information(root.text(f"{_GPUS}/{name}/information") or "", name)
        if gpu is not None:
            found[gpu.bus_id] = gpu
    return tuple(found[key] for key in sorted(found, key=bus_key))


def parse_information(text: str, directory: str) -> ProcGpu | None:
    """Read an `information` file; the address is that in it, else the directory's name."""
    fields = _fields(text)
    bus_id = normal_bus_id(fields.get("bus location", "")) or normal_bus_id(directory)
    if not bus_id:
        return None
    uuid = fields.get("gpu uuid", "")
    return ProcGpu(
        bus_id=bus_id,
        # Until its first use by a process the driver shows question marks here.
        uuid=_normal_uuid(uuid),
        minor=_number(fields.get("device minor", ""), _MINORS),
        name=fields.get("model", ""),
        excluded=fields.get("gpu excluded", "").lower() == "yes",
    )


def module_version(root: Root) -> str:
    """Give the version of the loaded kernel module, empty if none is loaded."""
    text = (root.text("/sys/module/nvidia/version") or "").strip()
    if _VERSION.fullmatch(text):
        return text
    match = _MODULE_LINE.search(root.text("/proc/driver/nvidia/version") or "")
    return match.group(1) if match else ""


def module_loaded(root: Root, name: str) -> bool:
    """Tell whether a kernel module is there."""
    if root.stat(f"/sys/module/{name}") is not None:
        return True
    lines = (root.text("/proc/modules") or "").splitlines()
    return any(line.startswith(f"{name} ") for line in lines)


def majors(root: Root) -> dict[str, int]:
    """Give the character majors of NVIDIA devices from /proc/devices.

    Drivers before 550 call their own `nvidia-frontend`; both names are given for either.
    """
    found: dict[str, int] = {}
    for line in (root.text("/proc/devices") or "").splitlines():
        if line.startswith("Block devices"):
            break
        parts = line.split()
        if len(parts) == 2 and (parts[1].startswith("nvidia") or parts[1] in _FURTHER_MAJORS):
            number = _number(parts[0], _MAJORS)
            if number >= 0:
                found.setdefault(parts[1], number)
    for name, alias in (("nvidia", "nvidia-frontend"), ("nvidia-frontend", "nvidia")):
        if name in found:
            found.setdefault(alias, found[name])
    return found


def mig_minors(root: Root) -> dict[str, int]:
    """Give the minors of every capability that could exist (`gpu0/gi1/access`)."""
    found: dict[str, int] = {}
    for line in (root.text(_MIG_MINORS) or "").splitlines():
        parts = line.split(" ")
        number = _number(parts[1], _MINORS) if len(parts) == 2 else -1
        if number >= 0 and _CAP.fullmatch(parts[0]):
            found[parts[0]] = number
    return found


def capabilities(root: Root) -> dict[str, Capability]:
    """Give the capabilities that exist now, from the `access` files of the MIG tree."""
    found: dict[str, Capability] = {}
    for name in ("config", "monitor"):
        _add(found, name, root.text(f"{_CAPABILITIES}/mig/{name}"))
    for gpu in _matching(root, _CAPABILITIES, "gpu"):
        top = f"{_CAPABILITIES}/{gpu}/mig"
        for gi in _matching(root, top, "gi"):
            _add(found, f"{gpu}/{gi}/access", root.text(f"{top}/{gi}/access"))
            for ci in _matching(root, f"{top}/{gi}", "ci"):
                path = f"{top}/{gi}/{ci}/access"
                _add(found, f"{gpu}/{gi}/{ci}/access", root.text(path))
    return found


def hardware(root: Root) -> bool:
    """Tell whether an NVIDIA display device (PCI class 0x03xxxx) is there, driver or not."""
    devices = "/sys/bus/pci/devices"
    for name in root.entries(devices):
        if _hex(root.text(f"{devices}/{name}/vendor")) != 0x10DE:
            continue
        if _hex(root.text(f"{devices}/{name}/class")) >> 16 == 0x03:
            return True
    return bool(root.entries(_GPUS))


def parameters(root: Root) -> dict[str, int]:
    """Give the numeric parameters of the driver (`DeviceFileMode: 438`) by lower-case name."""
    fields = _fields(root.text("/proc/driver/nvidia/params") or "")
    return {key: int(value) for key, value in fields.items() if _number(value) >= 0}


def drm_names(root: Root, bus_id: str) -> tuple[str, ...]:
    """Give the DRM names (`card1`, `renderD129`) of the PCI device."""
    return root.entries(f"/sys/bus/pci/devices/{bus_id}/drm")


def kernel_release(root: Root) -> str:
    """Give the running kernel's release, empty if it is not told."""
    return (root.text("/proc/sys/kernel/osrelease") or "").strip()


def _add(found: dict[str, Capability], key: str, text: str | None) -> None:
    fields = _fields(text or "")
    minor = _number(fields.get("devicefileminor", ""), _MINORS)
    if minor < 0:
        return
    mode = _number(fields.get("devicefilemode", ""))
    found[key] = Capability(minor=minor, mode=mode & 0o777 if mode > 0 else 0o444)


def _matching(root: Root, directory: str, prefix: str) -> tuple[str, ...]:
    return tuple(
        name
        for name in root.entries(directory)
        if name.startswith(prefix) and _number(name.removeprefix(prefix)) >= 0
    )


def _fields(text: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in text.splitlines())
    return {key.strip().lower(): value.strip() for key, sep, value in pairs if sep}


def _normal_uuid(text: str) -> str:
    match = _UUID.fullmatch(text)
    return "GPU-" + text[4:].lower() if match else ""


def _number(text: str, limit: int = 1 << 30) -> int:
    """Give a decimal number below a limit, -1 if the text is none."""
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1
    return number if number < limit else -1


def _hex(text: str | None) -> int:
    try:
        return int((text or "").strip(), 16)
    except ValueError:
        return 0
