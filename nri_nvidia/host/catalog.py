# SPDX-License-Identifier: Apache-2.0
"""Which files make up the driver, by capability, and where distributions keep them.

The groups are those of NVIDIA's container library (libnvidia-container, `src/nvc_info.c`); the
names that only the container toolkit knows (`pkg/nvcdi/driver-nvml.go`,
`internal/discover/graphics.go`) stand in the group that their users ask for.
"""

_UTILITY = (
    "libnvidia-ml",
    "libnvidia-cfg",
    "libnvidia-nscq",
    "libnvidia-sandboxutils",
)
_COMPUTE = (
    "libcuda",
    "libcudadebugger",
    "libnvidia-opencl",
    "libnvidia-gpucomp",
    "libnvidia-ptxjitcompiler",
    "libnvidia-fatbinaryloader",
    "libnvidia-allocator",
    "libnvidia-compiler",
    "libnvidia-pkcs11",
    "libnvidia-pkcs11-openssl3",
    "libnvidia-nvvm",
    "libnvidia-nvvm70",
    "libnvidia-tileiras",
)
_VIDEO = (
    "libvdpau_nvidia",
    "libnvidia-encode",
    "libnvidia-opticalflow",
    "libnvcuvid",
)
_GRAPHICS = (
    "libnvidia-eglcore",
    "libnvidia-glcore",
    "libnvidia-tls",
    "libnvidia-glsi",
    "libnvidia-fbc",
    "libnvidia-ifr",
    "libnvidia-rtcore",
    "libnvoptix",
    "libGLX_nvidia",
    "libEGL_nvidia",
    "libGLESv2_nvidia",
    "libGLESv1_CM_nvidia",
    "libnvidia-glvkspirv",
    "libnvidia-cbl",
    "libnvidia-vulkan-producer",
    "libnvidia-present",
    "libnvidia-vksc-core",
    "libnvidia-api",
    "libnvidia-egl-gbm",
    "libnvidia-egl-wayland",
    "libnvidia-egl-wayland2",
    "libnvidia-egl-xcb",
    "libnvidia-egl-xlib",
    "libGL",
    "libEGL",
    "libGLESv1_CM",
    "libGLESv2",
)
_NGX = ("libnvidia-ngx",)

# Library name without `.so…` -> the capability that selects it.
LIBRARIES: dict[str, str] = {
    name: capability
    for capability, names in (
        ("utility", _UTILITY),
        ("compute", _COMPUTE),
        ("video", _VIDEO),
        ("graphics", _GRAPHICS),
        ("ngx", _NGX),
    )
    for name in names
}

# Whatever else carries the driver's version is a library that a later driver has brought; the
# toolkit gives all of them. But these are parts of programs for the host alone, and of X.
OF_THE_HOST = frozenset(
    {"libnvidia-gtk2", "libnvidia-gtk3", "libnvidia-wayland-client", "libglxserver_nvidia"}
)
NEW = frozenset({"compute", "graphics"})

# Selected by one more capability: EGL's GBM platform is of no use without the allocator, which is
# a GBM backend by another name (the toolkit's `graphics.go` links it as one).
ALSO: dict[str, str] = {"libnvidia-allocator": "graphics"}

# These carry a version of their own, or none, and are taken as they are found.
OWN_VERSION = frozenset(
    {
        "libnvidia-nvvm",  # 4.0.0 in drivers 495 to 510
        "libnvidia-nvvm70",
        "libnvidia-api",
        "libnvidia-egl-gbm",
        "libnvidia-egl-wayland",
        "libnvidia-egl-wayland2",
        "libnvidia-egl-xcb",
        "libnvidia-egl-xlib",
    }
)

# Vendor-neutral names belong to the driver only where it was built without GLVND: then the file
# depends on one of the driver's cores.
NEUTRAL = frozenset({"libGL", "libEGL", "libGLESv1_CM", "libGLESv2"})
NEUTRAL_MARKS = ("libnvidia-glcore.so", "libnvidia-eglcore.so")

# The libraries that tell the version of an installation, and without which it is of no use.
LEADING = ("libcuda", "libnvidia-ml")

# Of these two it is the small one, and has its version in its content.
TELLING = "libnvidia-ml"

# Names besides the SONAME under which programs open a library.
EXTRA_NAMES: dict[str, tuple[str, ...]] = {
    "libcuda": ("libcuda.so",),
    "libnvidia-ml": ("libnvidia-ml.so",),
    "libnvidia-opticalflow": ("libnvidia-opticalflow.so",),
    "libGLX_nvidia": ("libGLX_indirect.so.0",),
    "libnvidia-vulkan-producer": ("libnvidia-vulkan-producer.so",),
    "libvdpau_nvidia": ("libvdpau_nvidia.so",),
}

BINARIES: dict[str, str] = {
    "nvidia-smi": "utility",
    "nvidia-debugdump": "utility",
    "nvidia-persistenced": "utility",
    "nv-fabricmanager": "utility",
    "nvidia-cuda-mps-control": "compute",
    "nvidia-cuda-mps-server": "compute",
    # These the toolkit alone gives (`driver-nvml.go`, `graphics.go`).
    "nvidia-imex": "utility",
    "nvidia-imex-ctl": "utility",
    "nvidia-xconfig": "graphics",
}

# Modules of the X server -> where below a library directory of the container's it looks for them.
# The name of the second on the host ends in the driver's version.
XORG_MODULES: dict[str, str] = {
    "nvidia_drv.so": "xorg/modules/drivers",
    "libglxserver_nvidia.so": "xorg/modules/extensions",
}
# A further name by which a library is looked for in a library directory of the container's: GBM's
# backend (the toolkit's `graphics.go`), and VDPAU's, which libvdpau has no other way to find but
# by a name without a number (its `vdpau_wrapper.c`).
BACKENDS: dict[str, str] = {
    "libnvidia-allocator": "gbm/nvidia-drm_gbm.so",
    "libvdpau_nvidia": "vdpau/libvdpau_nvidia.so.1",
}

# Path below /run or /var/run, the capability. A client finds them at the same place.
SOCKETS: dict[str, str] = {
    "nvidia-persistenced/socket": "utility",
    "nvidia-fabricmanager/socket": "utility",
}
MPS_DIRECTORY = "/tmp/nvidia-mps"  # noqa: S108 - the driver's own fixed place

# Path below /etc, /usr/local/share or /usr/share -> where a container's loaders look for it.
CONFIGS: dict[str, tuple[str, str]] = {
    "OpenCL/vendors/nvidia.icd": ("/etc", "compute"),
    "vulkan/icd.d/nvidia_icd.json": ("/etc", "graphics"),
    "vulkan/icd.d/nvidia_icd.x86_64.json": ("/etc", "graphics"),
    "vulkan/icd.d/nvidia_icd.aarch64.json": ("/etc", "graphics"),
    "vulkan/icd.d/nvidia_layers.json": ("/etc", "graphics"),
    "vulkan/implicit_layer.d/nvidia_layers.json": ("/etc", "graphics"),
    "glvnd/egl_vendor.d/10_nvidia.json": ("/usr/share", "graphics"),
    "egl/egl_external_platform.d/09_nvidia_wayland2.json": ("/usr/share", "graphics"),
    "egl/egl_external_platform.d/10_nvidia_wayland.json": ("/usr/share", "graphics"),
    "egl/egl_external_platform.d/15_nvidia_gbm.json": ("/usr/share", "graphics"),
    "egl/egl_external_platform.d/20_nvidia_xcb.json": ("/usr/share", "graphics"),
    "egl/egl_external_platform.d/20_nvidia_xlib.json": ("/usr/share", "graphics"),
    "nvidia/nvoptix.bin": ("/usr/share", "graphics"),
    "X11/xorg.conf.d/10-nvidia.conf": ("/usr/share", "graphics"),
    "X11/xorg.conf.d/nvidia-drm-outputclass.conf": ("/usr/share", "graphics"),
}
VULKAN_MANIFESTS = frozenset(name for name in CONFIGS if "vulkan/icd.d/nvidia_icd" in name)
CONFIG_DIRECTORIES = (
    "/etc",
    "/usr/local/share",
    "/usr/share",
    "/run/opengl-driver/etc",  # NixOS
    "/run/opengl-driver/share",
    "/usr/local/glibc/etc",  # Talos
    "/usr/local/glibc/usr/share",
    "/home/kubernetes/bin/nvidia",  # Container-Optimized OS
    "/opt/nvidia/current/etc",  # Flatcar
    "/opt/nvidia/current/usr/share",
)

TRIPLETS = (
    "x86_64-linux-gnu",
    "aarch64-linux-gnu",
    "powerpc64le-linux-gnu",
    "i386-linux-gnu",
    "arm-linux-gnueabihf",
)

# Below each of these Debian keeps one directory a flavour (current, tesla-535, legacy-390xx).
FLAVOUR_PARENTS = (
    *(f"/usr/lib/{triplet}/nvidia" for triplet in TRIPLETS),
    *(f"/lib/{triplet}/nvidia" for triplet in TRIPLETS),
    "/usr/lib/nvidia",
    "/usr/lib64/nvidia",
    "/usr/lib32/nvidia",
)

LIBRARY_DIRECTORIES = (
    "/usr/lib64",
    *(f"/usr/lib/{triplet}" for triplet in TRIPLETS),
    "/lib64",
    *(f"/lib/{triplet}" for triplet in TRIPLETS),
    *FLAVOUR_PARENTS,
    "/usr/lib",
    "/lib",
    "/usr/lib32",
    "/lib32",
    "/usr/local/lib64",
    "/usr/local/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/usr/local/glibc/usr/lib64",  # Talos
    "/usr/local/glibc/usr/lib",
    "/usr/local/glibc/lib",
    "/usr/X11R6/lib64",  # SUSE
    "/usr/X11R6/lib",
    "/run/opengl-driver/lib",  # NixOS
    "/run/opengl-driver-32/lib",
    "/home/kubernetes/bin/nvidia/lib64",  # Container-Optimized OS
    "/var/lib/nvidia/lib64",
    "/opt/nvidia/current/usr/lib64",  # Flatcar, whatever it calls the tree of a version
    "/opt/nvidia/current/usr/lib",
    "/opt/nvidia/current/lib64",
)

# Flatcar and others keep one tree a version.
VERSIONED_DIRECTORIES = (
    "/opt/nvidia/{version}/usr/lib64",
    "/opt/nvidia/{version}/usr/lib",
    "/opt/nvidia/{version}/lib64",
    "/opt/nvidia/{version}/lib",
)

BINARY_DIRECTORIES = (
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
    "/usr/local/nvidia/bin",
    "/home/kubernetes/bin/nvidia/bin",
    "/var/lib/nvidia/bin",
    "/run/current-system/sw/bin",
    "/usr/local/glibc/usr/bin",
    "/usr/libexec/nvidia/tesla/bin",
    "/opt/nvidia/current/usr/bin",
    "/opt/nvidia/current/bin",
    "/opt/bin",
)
VERSIONED_BINARY_DIRECTORIES = ("/opt/nvidia/{version}/usr/bin", "/opt/nvidia/{version}/bin")

# Below each library directory, and below these, where the X server's modules are.
XORG_TOPS = ("/usr/lib/xorg", "/usr/lib64/xorg", "/usr/X11R6/lib", "/usr/X11R6/lib64")
XORG_PLACES = (
    "modules/drivers",
    "modules/extensions",
    "modules/updates/drivers",
    "modules/updates/extensions",
)

# Files of 64-bit and 32-bit drivers by the host's architecture: ELF machine numbers.
MACHINES: dict[str, tuple[int, int]] = {
    "x86_64": (62, 3),
    "aarch64": (183, 40),
    "ppc64le": (21, 20),
}

# The directory of the leading library -> what the layout is called.
LAYOUTS: tuple[tuple[str, str], ...] = (
    (r"/(?:usr/)?lib/[^/]+-linux-gnu[^/]*/nvidia/[^/]+", "debian"),
    (r"/(?:usr/)?lib/[^/]+-linux-gnu[^/]*", "ubuntu"),
    (r"/(?:usr/)?lib64(?:/nvidia(?:/[^/]+)?)?", "rhel"),
    (r"/nix/store/.*", "nixos"),
    (r"/home/kubernetes/bin/nvidia/.*|/var/lib/nvidia/.*", "cos"),
    (r"/opt/nvidia/.*", "flatcar"),
    (r"/usr/local/glibc/.*", "talos"),
    (r"(?:/[^/]+-bottlerocket-linux-gnu/sys-root)?/usr/lib/nvidia/tesla.*", "bottlerocket"),
    (r".*", "generic"),
)
