# SPDX-License-Identifier: Apache-2.0
"""Makes the pictures of the README: what commands print, of a daemon on a simulated host.

Each picture carries the text that it shows, so that a test can hold it against what the commands
print today. The runtime is the one that ships in `nri_nvidia.testing`; nothing is installed.
"""

import asyncio
import contextlib
import importlib
import json
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from nri_nvidia._api.nri.pkg.api import v1alpha1 as api  # noqa: E402
from nri_nvidia.testing import host, host_spec, runtime  # noqa: E402
from tests.containerd import daemons  # noqa: E402

PICTURES = ROOT / "docs"
KEY = "Comment"
"""The keyword of PNG under which a picture keeps its text."""
MIG = (
    host_spec.MigSpec(gi=1),
    host_spec.MigSpec(gi=2, profile="3g.40gb", memory_bytes=42144366592),
)
NODE = host_spec.HostSpec(
    gpus=(*(host_spec.GpuSpec(),) * 3, host_spec.GpuSpec(mig_enabled=True, mig=MIG))
)
CREATED = (
    ("ml", "train-0", "trainer", ("NVIDIA_VISIBLE_DEVICES=0,1",)),
    ("ml", "notebook-7", "jupyter", ("NVIDIA_VISIBLE_DEVICES=3:0",)),
    (
        "monitoring",
        "exporter-x2v",
        "exporter",
        ("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=utility"),
    ),
)
REFUSED = ("ml", "train-1", "trainer", ("NVIDIA_VISIBLE_DEVICES=GPU-typo",))
COLUMNS = 96
SIZE, LINE, EDGE = 13, 18, 12
"""Of letters, lines and the margin, in pixels."""
PAPER, INK, COMMAND = "#1e1e24", "#dcdccc", "#8fd08f"
VERSIONS = {"containerd": "1.7.24", "runc": "1.1.5", "systemd": "252"}


def texts() -> dict[str, str]:
    """Give, by the name of the picture, the commands and what each prints."""
    directory = Path(tempfile.mkdtemp(prefix="nnp-", dir="/tmp"))
    try:
        directory.chmod(0o755)
        host.build(directory / "node", NODE)
        return {**asyncio.run(_living(directory)), "check": _check(directory)}
    finally:
        shutil.rmtree(directory)


async def _living(directory: Path) -> dict[str, str]:
    """Have containers created under a daemon, one refused, and ask of them."""
    async with asyncio.timeout(90), (rt := runtime.Runtime()).listening(directory / "nri.sock"):
        daemon = daemons.Daemon(directory / "nri.sock", directory / "node")
        try:
            daemon.start()
            await rt.attached()
            await asyncio.to_thread(daemon.ready)
            await asyncio.to_thread(daemon.nvml_answered)
            for number, (*names, environment) in enumerate(CREATED):
                adjusted = await rt.create(*_container(number, names, environment))
                _report(daemon, adjusted)
            with contextlib.suppress(runtime.CreationFailed):
                await rt.create(*_container(len(CREATED), REFUSED[:3], REFUSED[3]))
            await asyncio.to_thread(
                daemon.until,
                lambda: all(entry["hook"] for entry in daemon.status()["containers"]),
                "the hooks' reports",
            )
            said = lambda *words: asyncio.to_thread(_asked, daemon, *words)  # noqa: E731
            return {
                "status": await said("status"),
                "explain": await said("explain", "/".join(REFUSED[:3])),
            }
        finally:
            await asyncio.to_thread(daemon.close)


def _container(
    number: int, names: Sequence[str], environment: Sequence[str]
) -> tuple[api.Container, api.PodSandbox]:
    namespace, pod, name = names
    sandbox = api.PodSandbox(id=f"pod{number}", name=pod, namespace=namespace)
    container = api.Container(
        id=f"{number + 0xC0FFEE:064x}",
        pod_sandbox_id=sandbox.id,
        name=name,
        env=[*environment],
        linux=api.LinuxContainer(),
    )
    return container, sandbox


def _report(daemon: daemons.Daemon, adjusted: api.ContainerAdjustment) -> None:
    """Tell what a container's hook would: no container runs here."""
    words = list(adjusted.hooks.create_container[0].args)
    told = {"token": words[words.index("--token") + 1], "ok": True, "steps": [], "duration_ms": 12}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(json.dumps(told).encode(), str(daemon.directory / "hook.sock"))


def _asked(daemon: daemons.Daemon, *words: str) -> str:
    return shown(("nri-nvidia", *words), daemon.ask(*words).stdout)


def _check(directory: Path) -> str:
    """Look at the node after half an upgrade, under a containerd with NRI off."""
    node = directory / "node"
    (node / "versions.json").write_text(json.dumps(VERSIONS), encoding="utf-8")
    (node / "etc/containerd").mkdir(parents=True)
    (node / "etc/containerd/config.toml").write_text("version = 2\n", encoding="utf-8")
    (node / "sys/module/nvidia/version").write_text("535.161.07\n", encoding="utf-8")
    words = ("check", "--host", "node")
    done = subprocess.run(
        [daemons.COMMAND, *words], check=False, capture_output=True, text=True, cwd=directory
    )
    return shown(("nri-nvidia", *words), done.stdout)


def shown(words: Sequence[str], output: str) -> str:
    """Give a command and its output as a terminal has them."""
    return f"$ {' '.join(words)}\n{output.rstrip()}\n"


# Drawing


def draw(text: str, path: Path) -> None:
    """Write a text as a terminal shows it, in few colours, which keeps the file small."""
    image_module, drawing, fonts, png = (
        importlib.import_module(f"PIL.{name}")
        for name in ("Image", "ImageDraw", "ImageFont", "PngImagePlugin")
    )
    place = Path(importlib.import_module("matplotlib").get_data_path(), "fonts/ttf")
    plain, bold = (
        fonts.truetype(str(place / f"DejaVuSansMono{kind}.ttf"), SIZE) for kind in ("", "-Bold")
    )
    lines = [piece for line in text.splitlines() for piece in wrapped(line)]
    width = plain.getlength("m")
    size = (int(width * max(map(len, lines))) + 2 * EDGE, len(lines) * LINE + 2 * EDGE)
    image = image_module.new("RGB", size, PAPER)
    pen = drawing.Draw(image)
    for row, line in enumerate(lines):
        is_command = line.startswith("$ ")
        at = (EDGE, EDGE + row * LINE)
        pen.text(at, line, fill=COMMAND if is_command else INK, font=bold if is_command else plain)
    kept = png.PngInfo()
    kept.add_itxt(KEY, text)
    image.quantize(64).save(path, format="PNG", optimize=True, pnginfo=kept)


def wrapped(line: str) -> list[str]:
    """Break a line where a terminal does; an empty one is one line too."""
    return [line[at : at + COLUMNS] for at in range(0, len(line), COLUMNS)] or [""]


def carried(path: Path) -> str:
    """Give the text that a picture keeps: the iTXt chunk of PNG, not compressed."""
    data = path.read_bytes()
    at = 8
    while at < len(data):
        length, kind = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8]
        content = data[at + 8 : at + 8 + length]
        if kind == b"iTXt" and content.startswith(f"{KEY}\0".encode()):
            return content[len(KEY) + 3 :].split(b"\0", 2)[2].decode()
        at += length + 12
    raise ValueError(f"{path} keeps no text: make it anew by contrib/pictures")


def main() -> int:
    """Make all pictures; 1 where there is nothing to draw with."""
    try:
        importlib.import_module("matplotlib")
    except ImportError:
        print(
            "contrib/pictures: needs matplotlib: .venv/bin/pip install --group bench",
            file=sys.stderr,
        )
        return 1
    PICTURES.mkdir(exist_ok=True)
    for name, text in texts().items():
        path = PICTURES / f"{name}.png"
        draw(text, path)
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
