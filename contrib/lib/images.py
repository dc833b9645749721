# SPDX-License-Identifier: Apache-2.0
"""Small container images made of Debian packages and of our probes, as OCI archives.

pause       the probe alone, waiting: every pod's first container
distroless  the probe and /etc/passwd: no shell, no libc, no ldconfig
busybox     static busybox with a link an applet
alpine      musl and busybox, no glibc and no ldconfig that reads ld.so.cache
debian      this machine's release: glibc, bash, dash, coreutils, ldconfig
debian-x11  the release that the driver comes from, with what the driver's libraries load
"""

import hashlib
import io
import json
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import packages
from packages import Apt

SCHEMA = 1
PREFIX = "localhost/nri-nvidia-test"
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PASSWD = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"
GROUP = "root:x:0:\nvideo:x:44:\nnogroup:x:65534:\n"
LEFT_OUT = {
    "dpkg",
    "tar",
    "mawk",
    "base-files",
    "debianutils",
    "debconf",
    "libc-gconv-modules-extra",
}
"""What Debian's packages depend on for their installation only."""
# What the driver's libraries load beside each other and libc, by the packages of Debian 13.
DRIVER_NEEDS = (
    "libx11-6", "libxext6", "libxcb1", "libssl3t64", "libdrm2", "libwayland-client0",
    "libwayland-server0", "libvdpau1", "libtirpc3t64", "libglvnd0", "ocl-icd-libopencl1",
)  # fmt: skip
SHELL = ("bash", "dash", "coreutils", "grep", "libc-bin", "libgcc-s1", "libstdc++6")


def provide(apt: Apt, directory: Path, driver_suite: str, *, update: bool) -> list[str]:
    """Build the images that are missing and write images.json; return a line an image."""
    probes = build_probes(directory.parent / "probe")
    builders: dict[str, Callable[[Path], str]] = {
        "pause": bare,
        "distroless": bare,
        "busybox": lambda tree: busybox(apt, tree),
        "alpine": lambda tree: alpine(apt, tree),
        "debian": lambda tree: debian(apt, tree, apt.release, SHELL),
        "debian-x11": lambda tree: debian(apt, tree, driver_suite, (*SHELL, *DRIVER_NEEDS)),
    }
    index = directory / "images.json"
    made = fingerprint(probes)
    records = {} if update else known(index, made)
    for name, build in builders.items():
        if name not in records or not Path(records[name]["archive"]).exists():
            records[name] = build_image(name, build, probes, directory)
    packages.write(index, {"schema": SCHEMA, "made_of": made, "images": records})
    return [
        f"image {name}: {each['what']}, {each['bytes'] >> 10} KiB"
        for name, each in records.items()
    ]


def known(index: Path, made: str) -> dict[str, dict[str, Any]]:
    """Return the records of images that today's probes and this module made."""
    try:
        document = json.loads(index.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    same = document.get("schema") == SCHEMA and document.get("made_of") == made
    return document["images"] if same else {}


def fingerprint(probes: Path) -> str:
    """Return a digest of what an image is made of beside packages."""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for path in sorted(Path(__file__).with_name("probe").iterdir()):
        digest.update(path.read_bytes())
    digest.update(str(probes.parent).encode())
    return digest.hexdigest()


def build_probes(directory: Path) -> Path:
    """Compile the probes where their sources are newer."""
    sources = Path(__file__).with_name("probe")
    directory.mkdir(parents=True, exist_ok=True)
    for name, options in (("probe", ["-static"]), ("probe-dlopen", [])):
        source, program = sources / f"{name}.c", directory / name
        if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
            partial = directory / f".{name}.partial"
            packages.run(["gcc", "-O2", "-Wall", "-Wextra", *options, "-o", partial, source])
            partial.rename(program)
    return directory


def bare(tree: Path) -> str:
    """Make a root that holds names of users and nothing to run."""
    for name in ("etc", "dev", "proc", "sys", "tmp"):
        (tree / name).mkdir()
    users(tree)
    return "one static program"


def busybox(apt: Apt, tree: Path) -> str:
    """Make a root of static busybox."""
    package = apt.only("busybox-static", apt.release)
    packages.skeleton(tree)
    users(tree)
    with tempfile.TemporaryDirectory() as work:
        packages.unpack(apt.fetch([package])[0], Path(work))
        program = next(path for path in Path(work).rglob("busybox") if is_program(path))
        shutil.copy2(program, tree / "usr/bin/busybox")
    applets = packages.run([tree / "usr/bin/busybox", "--list"]).split()
    for name in {*applets} - {"busybox"}:
        (tree / "usr/bin" / name).symlink_to("busybox")
    return f"busybox {package.upstream}"


def alpine(apt: Apt, tree: Path) -> str:
    """Make a root like Alpine's: musl's loader, its search path, busybox, no glibc."""
    told = busybox(apt, tree)
    package = apt.only("musl", apt.release)
    packages.unpack(apt.fetch([package])[0], tree)
    (tree / "etc/alpine-release").write_text("3.22.0\n", encoding="utf-8")
    (tree / "etc/os-release").write_text('ID=alpine\nNAME="like Alpine"\n', encoding="utf-8")
    (tree / "usr/bin/ldconfig").unlink(missing_ok=True)
    return f"musl {package.upstream}, {told}"


def debian(apt: Apt, tree: Path, suite: str, names: Sequence[str]) -> str:
    """Make a small root of one Debian release, with a loader cache."""
    packages.skeleton(tree)
    users(tree)
    chosen = [each for each in apt.closure(names, suite) if each.name not in LEFT_OUT]
    for archive in apt.fetch(chosen):
        packages.unpack(archive, tree)
    for name in ("usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info"):
        shutil.rmtree(tree / name, ignore_errors=True)
    (tree / "usr/bin/sh").unlink(missing_ok=True)
    (tree / "usr/bin/sh").symlink_to("dash")
    (tree / "etc/os-release").write_text(
        f"ID=debian\nVERSION_CODENAME={suite}\n", encoding="utf-8"
    )
    packages.run(["chroot", tree, "/sbin/ldconfig"])
    libc = next(each for each in chosen if each.name == "libc6")
    return f"{suite}, glibc {libc.upstream}, {len(chosen)} packages"


def users(tree: Path) -> None:
    """Write the names of users and groups."""
    (tree / "etc/passwd").write_text(PASSWD, encoding="utf-8")
    (tree / "etc/group").write_text(GROUP, encoding="utf-8")


def is_program(path: Path) -> bool:
    """Return whether a path is a program rather than a link or a paper of the same name."""
    return path.is_file() and not path.is_symlink() and path.stat().st_mode & 0o111 != 0


def build_image(
    name: str, build: Callable[[Path], str], probes: Path, directory: Path
) -> dict[str, Any]:
    """Build one root and write it as an OCI archive; return its record."""
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory, prefix=".root-") as work:
        tree = Path(work)
        tree.chmod(0o755)
        what = build(tree)
        shutil.copy2(probes / "probe", tree / "probe")
        if (tree / "usr/sbin/ldconfig").exists():
            shutil.copy2(probes / "probe-dlopen", tree / "probe-dlopen")
        layer = pack(tree)
    digest = hashlib.sha256(layer).hexdigest()
    reference = f"{PREFIX}/{name}:1"
    config = {
        "architecture": architecture(),
        "os": "linux",
        "config": {"Env": [PATH], "Entrypoint": ["/probe", "pause"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    archive = directory / f"{name}.tar"
    write_archive(archive, reference, config, layer)
    return {
        "reference": reference,
        "archive": str(archive),
        "what": what,
        "bytes": archive.stat().st_size,
        "layer": {"digest": f"sha256:{digest}", "size": len(layer)},
        "config": config,
    }


def architecture() -> str:
    """Return the machine's name as images use it, which is Debian's too."""
    return packages.run(["dpkg", "--print-architecture"]).strip()


def pack(tree: Path) -> bytes:
    """Return a tree as a tar in which nothing depends on when it was made."""
    out = io.BytesIO()

    def timeless(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.mtime = 0
        return member

    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        tar.add(tree, arcname=".", filter=timeless)
    return out.getvalue()


def write_archive(archive: Path, reference: str, config: object, layer: bytes) -> None:
    """Write an OCI image layout with one image into a tar."""
    media = "application/vnd.oci.image"
    blobs: dict[str, bytes] = {}

    def blob(kind: str, data: bytes) -> dict[str, object]:
        digest = hashlib.sha256(data).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = data
        return {"mediaType": f"{media}.{kind}", "digest": f"sha256:{digest}", "size": len(data)}

    def document(kind: str, content: object) -> dict[str, object]:
        return blob(kind, json.dumps(content).encode())

    manifest = document("manifest.v1+json", {
        "schemaVersion": 2,
        "mediaType": f"{media}.manifest.v1+json",
        "config": document("config.v1+json", config),
        "layers": [blob("layer.v1.tar", layer)],
    })  # fmt: skip
    manifest["annotations"] = {"io.containerd.image.name": reference}
    blobs["oci-layout"] = b'{"imageLayoutVersion": "1.0.0"}'
    blobs["index.json"] = json.dumps({"schemaVersion": 2, "manifests": [manifest]}).encode()
    partial = archive.with_name(f".{archive.name}.partial")
    with tarfile.open(partial, "w") as tar:
        for name, data in blobs.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    partial.rename(archive)
