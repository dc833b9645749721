# SPDX-License-Identifier: Apache-2.0
"""All that a container has and may do, in both layouts of the driver's files, kind by kind.

What is compared is what is seen inside, what the runtime was told, and what the hook is asked for:
of /proc/driver/nvidia, which no machine without a driver has, the latter alone.
"""

import asyncio

import attrs
import pytest

from nri_nvidia.testing import host as simulated
from nri_nvidia.testing import host_spec

from . import conftest, daemons, test_compat

DIRECTORY = "/usr/local/nvidia"
ENGINE = "containerd-2"
RUNTIMES = ("runc", "crun")
LAYOUTS = ("files", "volume")
MIG = (host_spec.MigSpec(gi=1), host_spec.MigSpec(gi=2))
HOST = host_spec.HostSpec(
    gpus=(
        host_spec.GpuSpec(mig_enabled=True, mig=MIG),
        host_spec.GpuSpec(),
        host_spec.GpuSpec(),
    ),
    compat32=True,
    drm=True,
    graphics=True,
    imex_channels=(0,),
    groups=host_spec.GROUPS,
)


@attrs.frozen(kw_only=True)
class Kind:
    """One kind of container: what it asks for, of which image, and what else it is."""

    devices: str = "1"
    capabilities: str | None = None
    image: str = "debian"
    more: dict = attrs.field(factory=dict)
    wishes: dict = attrs.field(factory=dict)

    @property
    def env(self):
        given = {"NVIDIA_DRIVER_CAPABILITIES": self.capabilities} if self.capabilities else {}
        return {"NVIDIA_VISIBLE_DEVICES": self.devices, **given, **self.more}


# With utility, since some of them bring nothing alone.
EACH = ("compute", "compat32", "display", "graphics", "ngx", "utility", "video", "all")
KINDS = {
    **{name: Kind(capabilities=f"{name},utility") for name in EACH},
    "no capability named": Kind(),
    "no GPU": Kind(devices="none", capabilities="compute,utility"),
    "a MIG device": Kind(devices="0:0", capabilities="compute,utility"),
    "all GPUs, by number": Kind(devices="2,1,0:1", capabilities="compute,utility"),
    "an IMEX channel, nodes of groups": Kind(
        capabilities="compute",
        more={"NVIDIA_IMEX_CHANNELS": "0", "NVIDIA_GDS": "enabled", "NVIDIA_MOFED": "enabled"},
    ),
    "a newer CUDA driver in the image": Kind(capabilities="compute,utility", image="compat"),
    "another user": Kind(capabilities="all", wishes={"user": 1000}),
    "a read-only root": Kind(capabilities="all", wishes={"readonly": True}),
}
SOME = (
    "all",
    "a MIG device",
    "a newer CUDA driver in the image",
    "another user",
    "a read-only root",
)
CASES = [*(("runc", kind) for kind in KINDS), *(("crun", kind) for kind in SOME)]
# A prepared directory has a link `lib` besides, which leads nowhere without a driver in the image.
LOOK = r"""
cd /usr/local/nvidia || exit
walk() {
    for each in "$1"/*; do
        if [ "$each" = ./lib ]; then :
        elif [ -L "$each" ]; then links="$links $each"
        elif [ -d "$each" ]; then folders="$folders $each"; walk "$each"
        elif [ -e "$each" ]; then files="$files $each"; fi
    done
}
walk .
echo "== files"
stat -c '%n %F %a %u %g' $folders; stat -c '%N %u %g' $links
stat -c '%n %F %a %u %g %s %Y' $files; cksum $files
echo == mounted; grep -E ' /usr/local/nvidia| /etc/(vulkan|glvnd)| /usr/share/(egl|nvidia|glvnd)' /proc/self/mountinfo |
    while read -r a b c d place options rest; do echo "$options"; done | sort -u
echo == nodes
for each in /dev/nvidia* /dev/nvidia-caps/* /dev/nvidia-caps-imex-channels/* /dev/dri/* /dev/dri/by-path/* /dev/infiniband/* /dev/gdrdrv; do
    [ -L "$each" ] && stat -c %N "$each"
    if [ -c "$each" ]; then
        echo "$each $(/probe stat "$each") $(/probe open "$each" rw) $(/probe open "$each" r)"
    fi
done
echo == other; for minor in 0 1 2 3 255; do /probe mknod /tmp/x-$minor c 195 $minor; done
echo == cache; /sbin/ldconfig -p | grep /nvidia/
for each in lib64/*.so*; do echo "== dlopen $each"; /probe-dlopen "${each##*/}"; echo $?; done
echo == programs; for each in bin/*; do command -v "${each##*/}"; done
nvidia-smi -L; echo $?
echo == links; ls -lR --time-style=+ /usr/bin /usr/lib /etc | grep -e '-> .*nvidia'
echo == texts; for each in /etc/ld.so.conf /etc/ld.so.conf.d/* /etc/nvidia/*/* /etc/vulkan/*/* /usr/share/egl/*/* /usr/share/glvnd/*/*; do
    [ -f "$each" ] && stat -c '%n %a %u %g' "$each" && cat "$each"
done
echo == variables; env | grep -v HOSTNAME | sort
echo == written
for each in $files; do /probe write "$each"; done | sort -u
echo == later; /sbin/ldconfig; /sbin/ldconfig -p | grep /nvidia/
"""


def told(config):
    """Give what a runtime was told of a container, but for the driver's files themselves."""
    linux = config["linux"]
    (hook,) = config["hooks"]["createContainer"]
    arguments = hook["args"]
    # A process that stands ready may be asked, which is named before.
    first = arguments.index("-I")
    # In a prepared directory the further names of libraries are there already.
    changing = {"--token", "--report", "--alias"}
    asked = [
        arguments[place : place + 2]
        for place in range(first + 3, len(arguments), 2)
        if arguments[place] not in changing
    ]
    return {
        "devices": [each for each in linux["devices"] if "nv" in each["path"] or "dri" in each["path"]],
        "rules": linux["resources"]["devices"],
        "mounts": sorted(
            (each["destination"], each["source"], sorted(each["options"]))
            for each in config["mounts"]
            if not (each["destination"] + "/").startswith(DIRECTORY + "/")
            and not each["destination"].startswith(("/etc/", "/dev/"))
        ),
        "places": sorted(
            each["destination"]
            for each in config["mounts"]
            if not (each["destination"] + "/").startswith(DIRECTORY + "/")
        ),
        "variables": sorted(each for each in config["process"]["env"] if "HOSTNAME" not in each),
        "groups": config["process"]["user"],
        "capabilities": config["process"].get("capabilities"),
        "hook": (asked, sorted(hook["env"]), hook["timeout"]),
    }  # fmt: skip


async def look(pod, kind, image):
    """Give what the runtime was told of a container, and what is seen in it."""
    async with pod.container(image, env=kind.env, **kind.wishes) as container:
        config = container.config()
        whole = any(each["destination"] == DIRECTORY for each in config["mounts"])
        result = await container.exec(["/bin/sh", "-c", LOOK])
        parts = f"\n{result.stdout}".split("\n== ")[1:]
        seen = dict(part.partition("\n")[::2] for part in parts)
        return whole, {**told(config), **seen, "errors": result.stderr}


async def gather(engine, daemon, layout, runtimes):
    """Look at every kind of container that the cases have of each runtime."""
    found = {}
    image = test_compat.image(engine, version="575.57.08", env=[test_compat.SEARCH])
    for runtime in runtimes:
        async with engine.pod(runtime=runtime) as pod:
            for name in (kind for each, kind in CASES if each == runtime):
                kind = KINDS[name]
                chosen = image if kind.image == "compat" else kind.image
                before = daemon.logged().count("are prepared in")
                whole, seen = await look(pod, kind, chosen)
                if layout == "volume" and not whole:  # the first of these capabilities
                    await asyncio.to_thread(
                        daemon.until,
                        lambda: daemon.logged().count("are prepared in") > before,  # noqa: B023
                        "the directory for these capabilities",
                    )
                    whole, seen = await look(pod, kind, chosen)
                assert whole is (layout == "volume"), name
                found[runtime, name] = seen
    return found


@pytest.fixture(scope="module")
def both(running, programs, tmp_path_factory):
    """What is seen in each layout by runtime and kind of container."""
    runtimes = [name for name in RUNTIMES if name == "runc" or not conftest.crun_cannot()]
    assert set(runtimes) <= set(programs), conftest.SETUP
    host, engine = tmp_path_factory.mktemp("host"), running(ENGINE)
    simulated.build(host, HOST)
    found = {}
    for layout in LAYOUTS:
        with daemons.running(engine.nri_socket, host, ("--layout", layout)) as daemon:
            found[layout] = asyncio.run(gather(engine, daemon, layout, runtimes))
    return found


@pytest.mark.timeout(600)  # the first has all containers made
@pytest.mark.parametrize(("runtime", "kind"), CASES)
def test_the_same_in_both_layouts(both, runtime, kind):
    """Files, contents, modes, nodes, rights, links, cache, libraries that load, texts, variables."""
    if runtime == "crun" and (reason := conftest.crun_cannot()):
        pytest.skip(reason)
    files, volume = (both[layout][runtime, kind] for layout in LAYOUTS)
    assert set(files) == set(volume)
    for part in files:
        assert files[part] == volume[part], part
    # It is no comparison of nothing.
    assert "/dev/nvidiactl " in files["nodes"]
    assert ("/dev/nvidia1 " in files["nodes"]) is (KINDS[kind].devices in {"1", "2,1,0:1"})
    assert f"{DIRECTORY}/lib64/" in files["cache"]
    assert files["later"].strip() == files["cache"].strip() or "user" in KINDS[kind].wishes
    assert "OK" not in files["written"]
