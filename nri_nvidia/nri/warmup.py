# SPDX-License-Identifier: Apache-2.0
"""Run every codec once before the runtime waits on it.

The message library prepares a class at its first use, which costs tens of milliseconds a request
and would fall on the first container.
"""

from nri_nvidia._api import ttrpc
from nri_nvidia._api.google import rpc
from nri_nvidia._api.nri.pkg.api import v1alpha1 as api
from nri_nvidia.edits import model
from nri_nvidia.render import nri as render
from nri_nvidia.ttrpc import wire

from . import convert

_EDITS = model.ContainerEdits(
    env=(("K", "V"),),
    devices=(model.DeviceEdit(path="/dev/null", host_path="/dev/null", major=1, minor=3),),
    mounts=(model.MountEdit(source="/a", destination="/a"),),
    hooks=(model.HookEdit(stage="createContainer", path="/a", args=("a",), env=("K=V",)),),
)


def warm_up() -> None:
    """Encode and decode one of each message that a session meets."""
    rule = api.LinuxDeviceCgroup(allow=True, access="rwm", major=api.OptionalInt64(value=-1))
    container = api.Container(
        id="a",
        labels={"a": "b"},
        annotations={"a": "b"},
        env=["K=V"],
        mounts=[bytes(api.Mount(destination="/a", options=["ro"]))],
        hooks=bytes(api.Hooks(prestart=[api.Hook(path="/a", args=["a"])])),
        linux=api.LinuxContainer(
            devices=[bytes(api.LinuxDevice(path="/dev/null", type="c", major=1, minor=3))],
            resources=api.LinuxResources(devices=[bytes(rule)]),
        ),
    )
    pod = api.PodSandbox(id="p", labels={"a": "b"}, annotations={"a": "b"})
    reference = api.ContainerReference(id="a")
    event = api.StateChangeEvent(event=api.Event(11), container=reference)
    for message in (
        api.ConfigureRequest(config="a"),
        api.SynchronizeRequest(pods=[bytes(pod)], containers=[bytes(container)]),
        api.StopContainerRequest(container=reference),
        api.RemoveContainerRequest(container=reference),
        event,
        api.ConfigureResponse(events=1),
        api.SynchronizeResponse(more=True),
        api.StopContainerResponse(),
        ttrpc.Response(status=rpc.Status(code=1)),
    ):
        data = bytes(message)
        wire.check(type(message), data)
        type(message)().parse(data)
    convert.created(bytes(api.CreateContainerRequest(pod=pod, container=container)))
    render.encoded(_EDITS)
