# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's own user space, as Debian splits it into packages, unpacked as a root of its own.

Nothing of it can work without the kernel module; it is there for its files: real names, real
SONAMEs, Debian's links of alternatives and a loader cache over them. It is fetched from the
distribution's non-free component by whoever runs this, and never handed on.
"""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import packages
from packages import Apt, Package, SetupError

SCHEMA = 2
LIMIT = 60_000_000
"""Bytes of one archive; what is bigger adds nothing for what it costs."""
NAMES = (
    "libcuda1", "libcudadebugger1", "libegl-nvidia0", "libgl1-nvidia-glvnd-glx",
    "libgles-nvidia1", "libgles-nvidia2", "libglx-nvidia0", "libnvcuvid1",
    "libnvidia-allocator1", "libnvidia-api1", "libnvidia-cfg1", "libnvidia-eglcore",
    "libnvidia-encode1", "libnvidia-fbc1", "libnvidia-glcore", "libnvidia-glvkspirv",
    "libnvidia-gpucomp", "libnvidia-ml1", "libnvidia-ngx1", "libnvidia-nvvm4",
    "libnvidia-opticalflow1", "libnvidia-pkcs11-openssl3", "libnvidia-ptxjitcompiler1",
    "libnvidia-rtcore", "libnvoptix1", "nvidia-alternative", "nvidia-cuda-mps",
    "nvidia-egl-common", "nvidia-egl-icd", "nvidia-opencl-common", "nvidia-opencl-icd",
    "nvidia-persistenced", "nvidia-powerd", "nvidia-smi", "nvidia-vdpau-driver",
    "nvidia-vulkan-common", "nvidia-vulkan-icd", "libnvidia-egl-gbm1",
    "libnvidia-egl-wayland1", "nvidia-xconfig", "xserver-xorg-video-nvidia",
    "firmware-nvidia-gsp",
)  # fmt: skip
OWN_VERSION = {"libnvidia-egl-gbm1", "libnvidia-egl-wayland1"}
NAMES32 = (
    "libcuda1", "libegl-nvidia0", "libgles-nvidia1", "libgles-nvidia2", "libglx-nvidia0",
    "libnvcuvid1", "libnvidia-allocator1", "libnvidia-egl-gbm1", "libnvidia-eglcore",
    "libnvidia-encode1", "libnvidia-fbc1", "libnvidia-glcore", "libnvidia-gpucomp",
    "libnvidia-ml1", "libnvidia-opticalflow1", "nvidia-opencl-icd", "nvidia-vdpau-driver",
)  # fmt: skip
"""For 32-bit programs; of all that there is what no other needs is left out, for its size."""
PAPERS = re.compile(r"^/usr/share/(doc|bug|lintian|man)/")


def choose(apt: Apt) -> Package:
    """Return the newest libcuda1 of this release and Debian 13."""
    found = packages.newest(
        each for each in apt.versions("libcuda1") if each.suite in {apt.release, "trixie"}
    )
    if found is None:
        raise SetupError("the mirror offers no libcuda1: does it lack the component non-free?")
    return found


def provide(apt: Apt, directory: Path, *, update: bool) -> tuple[str, str]:
    """Unpack the driver if it is missing and write driver.json; return its suite and a line."""
    index = directory / "driver.json"
    record = None if update else known(index)
    if record is None:
        record = unpack(apt, directory, choose(apt))
        packages.write(index, record)
    skipped = f", without {', '.join(record['skipped'])} (size)" if record["skipped"] else ""
    line = f"driver: {record['version']} ({record['suite']}), {len(record['packages'])} packages"
    return str(record["suite"]), line + skipped


def known(index: Path) -> dict[str, Any] | None:
    """Return the record of a driver that this version of the script unpacked."""
    try:
        record = json.loads(index.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if record.get("schema") != SCHEMA or not Path(record["root"], "etc/ld.so.cache").exists():
        return None
    return dict(record)


def unpack(apt: Apt, directory: Path, cuda: Package) -> dict[str, Any]:
    """Fetch and unpack one version of every package; return its record.

    The record tells for each package the paths of its files and links, papers left out; one for
    32-bit programs is named with its architecture, `libcuda1:i386`.
    """
    offered = of_version(cuda, apt.suite(NAMES, cuda.suite))
    sizes = apt.sizes(offered)
    wanted = [each for each in offered if sizes[each.name] <= LIMIT]
    if apt.architecture in packages.FOREIGN:
        foreign, _ = packages.FOREIGN[apt.architecture]
        wanted += of_version(cuda, apt.suite(NAMES32, cuda.suite, foreign))
    place = directory / cuda.upstream
    contents = {}
    with packages.Staged(place) as work:
        packages.skeleton(work)
        for package, archive in zip(wanted, apt.fetch(wanted), strict=True):
            packages.unpack(archive, work)
            native = package.architecture == apt.architecture
            name = package.name if native else f"{package.name}:{package.architecture}"
            contents[name] = [path for path in packages.members(archive) if not PAPERS.match(path)]
        for name in ("doc", "bug", "lintian", "man"):
            shutil.rmtree(work / "usr/share" / name, ignore_errors=True)
        link(work, packages.control(archive_of(apt, wanted, "nvidia-alternative"), "postinst"))
        triplets = sorted(path.name for path in (work / "usr/lib").glob("*-linux-gnu"))
        places = [f"{top}/{each}\n" for each in triplets for top in ("/lib", "/usr/lib")]
        conf = "".join(["/usr/local/lib\n", *places])
        (work / "etc/ld.so.conf").write_text(conf, encoding="utf-8")
        packages.run(["/sbin/ldconfig", "-r", work])
    return {
        "schema": SCHEMA,
        "version": cuda.upstream,
        "suite": cuda.suite,
        "root": str(place),
        "packages": contents,
        "skipped": [each.name for each in offered if each not in wanted],
    }


def of_version(cuda: Package, offered: list[Package]) -> list[Package]:
    """Return the packages of the driver's version, and those that have one of their own."""
    return [each for each in offered if each.upstream == cuda.upstream or each.name in OWN_VERSION]


def archive_of(apt: Apt, wanted: list[Package], name: str) -> Path:
    return apt.fetch([each for each in wanted if each.name == name])[0]


def link(root: Path, script: str) -> None:
    """Make the links that update-alternatives would, as nvidia-alternative's postinst asks it to.

    There each is a call: add_slave LINK NAME TARGET, or, once for each directory of libraries,
    add_multiarch_slave DIRECTORY BELOW FILE DIRECTORY BELOW.
    """
    triplets = ["", *(f"/{path.name}" for path in (root / "usr/lib").glob("*-linux-gnu"))]
    for one in re.finditer(r"\s\$\(add_slave (/\S+) (\S+) (/\S+)\)", script):
        slave(root, one[1], f"nvidia--{one[2]}", one[3])
    for many in re.finditer(
        r"\s\$\(add_multiarch_slave (/\S+) (\S+) (\S+) (/\S+) (\S+)\)", script
    ):
        target, below, file, source, deep = (part.strip('"') for part in many.groups())
        for triplet in triplets:
            name = f"nvidia--{file}{triplet.replace('/', '-')}"
            slave(
                root, f"{target}{triplet}/{below}{file}", name, f"{source}{triplet}/{deep}{file}"
            )


def slave(root: Path, place: str, name: str, source: str) -> None:
    """Make one alternative's two links where what they lead to is there."""
    link_path, alternative = root / place[1:], root / "etc/alternatives" / name
    if not (root / source[1:]).is_file() or not link_path.parent.is_dir() or link_path.exists():
        return
    alternative.parent.mkdir(exist_ok=True)
    alternative.unlink(missing_ok=True)
    alternative.symlink_to(source)
    link_path.unlink(missing_ok=True)
    link_path.symlink_to(f"/etc/alternatives/{name}")
