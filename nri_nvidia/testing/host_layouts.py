# SPDX-License-Identifier: Apache-2.0
"""Where each kind of simulated host keeps the driver, as its distribution or installer does.

Sources: Debian's and Ubuntu's packages; NVIDIA's packages for RHEL and SUSE; nixpkgs
(`nvidia-x11`, `hardware.graphics`); siderolabs/extensions (`nvidia-driver`); GKE's driver
installer; Flatcar's `nvidia.service`; Bottlerocket's `kmod-nvidia` package; the GPU operator.
"""

import pathlib

import attrs


@attrs.frozen(kw_only=True)
class Layout:
    """A layout; paths have no leading slash and hold `{version}` for the driver's.

    `prefix` is the driver root. `links` are made before anything is written, so that what is
    written goes where they lead; `farm` is a directory with links to the libraries.
    `firmware_path` is what the kernel is told to search first.
    """

    os_release: str
    libraries: str
    programs: str
    libraries32: str = "usr/lib32"
    prefix: str = ""
    share: str = "usr/share"
    etc: str = "etc"
    firmware: str = "usr/lib/firmware"
    firmware_path: str = ""
    farm: str = ""
    links: tuple[tuple[str, str], ...] = ()

    def at(self, top: pathlib.Path, part: str, version: str) -> pathlib.Path:
        """Give the place of a part below the driver root."""
        return top / self.prefix / part.format(version=version)


MERGED_USR = (
    ("bin", "usr/bin"), ("sbin", "usr/sbin"), ("lib", "usr/lib"), ("lib64", "usr/lib64"),
)  # fmt: skip
_STORE = "nix/store/4jqhk6cq1q1bndbm6bc3yb0k3vbw5hq7-nvidia-x11-{version}-6.12.31"
_STORE32 = "nix/store/0r0dy6nsn2zqn6ylm7ndd8a9z0kmm2yv-nvidia-x11-{version}-lib32"
_SYSTEM = "nix/store/9y8rbv2m9yzv6bnl2w7dk3cnlxx5pn6l-nixos-system-node-25.05"
_GRAPHICS = "nix/store/ckh3v6m7jz0l2vxzq3xwbz8d6yi7s7rp-graphics-drivers"
_COS = "home/kubernetes/bin/nvidia"
_GLIBC = "usr/local/glibc"
_OPT = "opt/nvidia/{version}"


def _ubuntu(triplet: str) -> Layout:
    return Layout(
        os_release="ID=ubuntu\nID_LIKE=debian\n",
        libraries=f"usr/lib/{triplet}",
        libraries32="usr/lib/i386-linux-gnu",
        programs="usr/bin",
        links=MERGED_USR,
    )


LAYOUTS: dict[str, Layout] = {
    "debian": Layout(
        os_release='ID=debian\nPRETTY_NAME="simulated debian"\n',
        libraries="usr/lib/x86_64-linux-gnu/nvidia/current",
        libraries32="usr/lib/i386-linux-gnu/nvidia/current",
        programs="usr/lib/nvidia/current",
        links=MERGED_USR,
    ),
    "ubuntu": attrs.evolve(
        _ubuntu("x86_64-linux-gnu"), os_release='ID=ubuntu\nPRETTY_NAME="simulated ubuntu"\n'
    ),
    "ubuntu-arm": _ubuntu("aarch64-linux-gnu"),
    "rhel": Layout(
        os_release='ID=rhel\nPRETTY_NAME="simulated rhel"\n',
        libraries="usr/lib64",
        libraries32="usr/lib",
        programs="usr/bin",
        links=MERGED_USR,
    ),
    "fedora": Layout(
        os_release="ID=fedora\nVERSION_ID=42\nVARIANT_ID=coreos\n",
        libraries="usr/lib64",
        libraries32="usr/lib",
        programs="usr/bin",
        links=MERGED_USR,
    ),
    "suse": Layout(
        os_release='ID="sles"\nVERSION_ID="15.6"\nID_LIKE="suse"\n',
        libraries="usr/lib64",
        libraries32="usr/lib",
        programs="usr/bin",
        firmware="lib/firmware",
    ),
    "nixos": Layout(
        os_release='ID=nixos\nVERSION_ID="25.05"\n',
        libraries=f"{_STORE}/lib",
        libraries32=f"{_STORE32}/lib",
        programs=f"{_SYSTEM}/sw/bin",
        share=f"{_GRAPHICS}/share",
        etc=f"{_GRAPHICS}/etc",
        firmware="nix/store/7n1dl8sp9nl1xpnq2q9c8zb6w0ma8wzj-firmware/lib/firmware",
        firmware_path="/nix/store/7n1dl8sp9nl1xpnq2q9c8zb6w0ma8wzj-firmware/lib/firmware",
        farm=f"{_GRAPHICS}/lib",
        links=(
            ("run/opengl-driver", f"/{_GRAPHICS}"),
            (
                "run/opengl-driver-32",
                "/nix/store/0r0dy6nsn2zqn6ylm7ndd8a9z0kmm2yv-nvidia-x11-{version}-lib32",
            ),
            ("run/current-system", f"/{_SYSTEM}"),
        ),
    ),
    "talos": Layout(
        os_release='ID=talos\nNAME="Talos"\nVERSION_ID=v1.11.2\n',
        libraries=f"{_GLIBC}/usr/lib64",
        libraries32=f"{_GLIBC}/usr/lib",
        programs=f"{_GLIBC}/usr/bin",
        share=f"{_GLIBC}/usr/share",
        etc=f"{_GLIBC}/etc",
        links=MERGED_USR,
    ),
    "cos": Layout(
        os_release="ID=cos\nVERSION_ID=117\nBUILD_ID=18613.263.4\n",
        libraries=f"{_COS}/lib64",
        libraries32="usr/lib",
        programs=f"{_COS}/bin",
        share=_COS,
        etc=_COS,
        firmware=f"{_COS}/firmware",
        firmware_path=f"/{_COS}/firmware",
    ),
    "flatcar": Layout(
        os_release="ID=flatcar\nID_LIKE=coreos\nVERSION_ID=4230.2.1\n",
        libraries=f"{_OPT}/usr/lib64",
        libraries32=f"{_OPT}/usr/lib",
        programs=f"{_OPT}/usr/bin",
        share=f"{_OPT}/usr/share",
        etc=f"{_OPT}/etc",
        links=(*MERGED_USR, ("opt/nvidia/current", "{version}")),
    ),
    "bottlerocket": Layout(
        os_release="ID=bottlerocket\nVERSION_ID=1.44.0\nVARIANT_ID=aws-k8s-1.33-nvidia\n",
        libraries="x86_64-bottlerocket-linux-gnu/sys-root/usr/lib/nvidia/tesla",
        programs="usr/libexec/nvidia/tesla/bin",
        links=(("usr", "x86_64-bottlerocket-linux-gnu/sys-root/usr"), *MERGED_USR),
    ),
    "operator": attrs.evolve(
        _ubuntu("x86_64-linux-gnu"),
        os_release="ID=rhel\nVARIANT_ID=coreos\nVERSION_ID=9.6\n",
        prefix="run/nvidia/driver",
    ),
    "cache": Layout(
        os_release='ID=linux\nPRETTY_NAME="simulated linux"\n',
        libraries="opt/vendor/nvidia/lib64",
        libraries32="opt/vendor/nvidia/lib32",
        programs="usr/bin",
        links=MERGED_USR,
    ),
}
