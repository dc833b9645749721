# SPDX-License-Identifier: Apache-2.0
"""Wire messages as containerd sends them."""

from nri_nvidia._api.nri.pkg.api import v1alpha1 as api


def mount(destination, source="", *options):
    return bytes(
        api.Mount(destination=destination, type="bind", source=source, options=[*options])
    )


def device(path, major, minor, kind="c"):
    mode = api.OptionalFileMode(value=0o666)
    return bytes(api.LinuxDevice(path=path, type=kind, major=major, minor=minor, file_mode=mode))


def rule(**fields):
    return bytes(api.LinuxDeviceCgroup(**fields))


DENY_ALL = rule(access="rwm")
ALLOW_ALL = rule(allow=True, access="rwm")


def pod(number=0):
    return api.PodSandbox(
        id=f"p{number}",
        name=f"pod{number}",
        uid=f"uid{number}",
        namespace="team",
        labels={"app": "x", "both": "pod"},
        annotations={"a": "b"},
    )


def container(name="c0", *, variables=50, mounts=30, rules=(DENY_ALL,), pod_id="p0"):
    """Give a container of the size that a kubelet makes: some 6 kB."""
    return api.Container(
        id=name,
        pod_sandbox_id=pod_id,
        name="main",
        labels={"both": "container"},
        annotations={"io.kubernetes.cri.container-type": "container"},
        env=[f"SERVICE_{number}_PORT=tcp://10.0.0.1:80" for number in range(variables)],
        mounts=[mount(f"/data/{n}", f"/var/lib/{n}", "rbind", "ro") for n in range(mounts)],
        hooks=bytes(
            api.Hooks(
                prestart=[api.Hook(path="/usr/bin/one", args=["one", "x"])],
                create_container=[api.Hook(path="/usr/bin/two")],
            )
        ),
        linux=api.LinuxContainer(
            devices=[device("/dev/nvidia0", 195, 0)],
            resources=api.LinuxResources(devices=[*rules]),
        ),
    )
