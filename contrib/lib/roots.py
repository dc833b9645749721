# SPDX-License-Identifier: Apache-2.0
"""A small Debian root of any release, unpacked by the private apt and installed by its own dpkg.

Called by contrib/lib/debian-root and contrib/lib/nspawn.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import packages
from packages import Apt, SetupError

CACHE = Path(__file__).parents[2] / ".cache"
ALWAYS = ("?essential", "apt", "ca-certificates", "debian-archive-keyring", "mount")
ENTER = """
mount -t proc proc "$0/proc"
mount --rbind /dev "$0/dev"
exec chroot "$0" sh /debs/install
"""
# How the machine reaches the network is not the distribution's to know.
NETWORK = (
    "etc/resolv.conf",
    "etc/hosts",
    "etc/pip.conf",
    "etc/xdg/pip",
    "etc/ssl/certs/ca-certificates.crt",
)


def main() -> int:
    """Make the root that the command line asks for; return the exit status."""
    apt = Apt(CACHE / "apt")
    try:
        if sys.argv[1:] == ["--nspawn"]:
            print(nspawn(apt, CACHE / "nspawn"))
        else:
            suite, directory, *names = sys.argv[1:]
            build(apt, suite, Path(directory).resolve(), names)
    except SetupError as error:
        print(f"contrib/lib/debian-root: {error}", file=sys.stderr)
        return 1
    return 0


def build(apt: Apt, suite: str, place: Path, names: list[str]) -> None:
    """Unpack and configure; the directory appears when it is whole."""
    with packages.Staged(place) as work:
        packages.skeleton(work)
        line = apt.line(suite)
        archives = apt.fetch(apt.closure([*ALWAYS, *names], suite, line))
        for archive in archives:
            packages.unpack(archive, work)
        install(work, archives)
        settle(work, line)
    print(f"{place}: {suite}, {len(archives)} packages, {apt.fetched / 1e6:.0f} MB fetched")


def nspawn(apt: Apt, place: Path) -> Path:
    """Unpack systemd-nspawn of the machine's own release with its libraries; return where."""
    if not place.exists():
        with packages.Staged(place) as work:
            packages.skeleton(work)
            closure = apt.closure(["systemd-container"], apt.release)
            ours = re.compile(r"systemd|lib")
            wanted = [each for each in closure if ours.match(each.name) and each.name != "libc6"]
            for archive in apt.fetch(wanted):
                packages.unpack(archive, work)
    return place


def install(root: Path, archives: list[Path]) -> None:
    """Have the root's own dpkg install what is unpacked already, so that its scripts can run."""
    for name in ("status", "available"):
        (root / "var/lib/dpkg" / name).touch()
    if not (root / "usr/bin/sh").exists():
        (root / "usr/bin/sh").symlink_to("dash")
    policy = root / "usr/sbin/policy-rc.d"
    policy.write_text("#!/bin/sh\nexit 101\n", encoding="utf-8")
    policy.chmod(0o755)
    debs = root / "debs"
    debs.mkdir()
    for archive in archives:
        shutil.copy(archive, debs)
    (debs / "install").write_text(
        "set -e\n"
        "dpkg --install --force-depends --force-unsafe-io /debs/*.deb\n"
        "dpkg --configure --pending\n",
        encoding="utf-8",
    )
    environment = {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "DEBIAN_FRONTEND": "noninteractive",
        "LC_ALL": "C.UTF-8",
    }
    log = root.with_name(f"{root.name}.log")
    with log.open("wb") as out:
        done = subprocess.run(
            ["unshare", "--mount", "--propagation", "private", "sh", "-ec", ENTER, root],
            check=False, stdout=out, stderr=out, env=environment,
        )  # fmt: skip
    if done.returncode:
        tail = log.read_text(encoding="utf-8", errors="replace")[-3000:]
        raise SetupError(f"dpkg in the new root failed; {log} ends:\n{tail}")
    log.unlink()
    shutil.rmtree(debs)


def settle(root: Path, line: str) -> None:
    """Give the root the machine's ways to its mirror and package index."""
    signed = re.sub(r"arch=\S+ ", "", line)
    (root / "etc/apt/sources.list").write_text(signed, encoding="utf-8")
    for path in (root / "etc/apt/sources.list.d").glob("*"):
        path.unlink()
    told = packages.run(["apt-config", "dump"])
    own = [each for each in told.splitlines() if re.match(r"Acquire::(http|https|Check)", each)]
    (root / "etc/apt/apt.conf.d/00machine").write_text("\n".join(own) + "\n", encoding="utf-8")
    for name in NETWORK:
        if Path("/", name).exists():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            packages.run(["cp", "-rL", "--remove-destination", f"/{name}", root / name])
    root.chmod(0o755)


if __name__ == "__main__":
    sys.exit(main())
