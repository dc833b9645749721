# SPDX-License-Identifier: Apache-2.0
"""With `nri.validate` the runtime makes no container of whose decision other plugins made another.

The runtime's side is `nri_nvidia.testing`, as NRI 0.10 and later behaves; the other plugin is one
on a socket of its own.
"""

import contextlib

import pytest

from nri_nvidia._api.nri.pkg.api import v1alpha1 as api
from nri_nvidia.nri import session
from nri_nvidia.testing import runtime
from nri_nvidia.ttrpc import connection, peer, transport

from . import pairs

NEW = {"nri_version": "0.12.0", "version": "2.3.0"}
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
GPU3 = api.LinuxDevice(path="/dev/nvidia3", type="c", major=195, minor=3)


class Other(api.PluginBase):
    """A plugin that gives what a test says."""

    def __init__(self, adjust):
        self.adjust = adjust

    async def configure(self, message):
        return api.ConfigureResponse(events=1 << (api.Event.CREATE_CONTAINER - 1))

    async def synchronize(self, message):
        return api.SynchronizeResponse(more=message.more)

    async def create_container(self, message):
        return api.CreateContainerResponse(adjust=self.adjust)


@contextlib.asynccontextmanager
async def beside(pair, path, adjust, *, index="20", name="other"):
    """Have another plugin in the runtime, besides the daemon."""
    state = connection.Connection(serves=session.PLUGIN_SERVICE, calls=session.RUNTIME_SERVICE)

    async def dial(*arguments):
        return await transport.connect(str(path), *arguments)

    async with peer.opened(dial, state, services=[Other(adjust)]) as other:
        request = api.RegisterPluginRequest(plugin_name=name, plugin_idx=index)
        await api.RuntimeStub(other.channel).register_plugin(request, timeout=30)
        await pair.runtime.attached(2)
        yield


@pytest.fixture
def settings(tmp_path):
    """Give a function that writes settings, and gives the arguments that have them read."""

    def write(mode, more=""):
        path = tmp_path / "config.toml"
        path.write_text(f'[nri]\nvalidate = "{mode}"\n{more}')
        return "--config", str(path)

    return write


def linux(*devices, rules=()):
    resources = api.LinuxResources(devices=[bytes(rule) for rule in rules])
    return api.LinuxContainerAdjustment(devices=[*devices], resources=resources)


def removal(path):
    return api.LinuxDevice(path=f"-{path}")


def rule(kind="c", major=195, minor=None, *, allow=True):
    numbers = {"major": api.OptionalInt64(value=major)}
    if minor is not None:
        numbers["minor"] = api.OptionalInt64(value=minor)
    return api.LinuxDeviceCgroup(allow=allow, type=kind, access="rw", **numbers)


def hooks(path):
    return api.Hooks(prestart=[api.Hook(path=path, args=["x"], env=["A=b"])])


async def prepared(pair):
    """Wait until the driver's files come as one directory: until it is made they come one by one."""
    made = []
    while "/usr/local/nvidia" not in made:
        made = [mount.destination for mount in (await pair.create(0, f"{VISIBLE}=0")).mounts]
        await pair.runtime.stop(pairs.container(0).id)


ALTERED = {
    "node taken away": (
        api.ContainerAdjustment(linux=linux(removal("/dev/nvidia0"))),
        "plugin 20-other took away the device /dev/nvidia0",
    ),
    "node replaced": (
        api.ContainerAdjustment(
            linux=linux(
                removal("/dev/nvidia0"),
                api.LinuxDevice(path="/dev/nvidia0", type="c", major=195, minor=1),
            )
        ),
        "plugin 20-other changed the device /dev/nvidia0",
    ),
    "files taken away": (
        api.ContainerAdjustment(mounts=[api.Mount(destination="-/usr/local/nvidia")]),
        "plugin 20-other took away the mount /usr/local/nvidia",
    ),
    "files replaced": (
        api.ContainerAdjustment(
            mounts=[
                api.Mount(destination="-/usr/local/nvidia"),
                api.Mount(destination="/usr/local/nvidia", source="/tmp", type="bind"),
            ]
        ),
        "plugin 20-other changed the mount /usr/local/nvidia",
    ),
    "files hidden": (
        api.ContainerAdjustment(
            mounts=[api.Mount(destination="/usr/local/nvidia/lib64", source="/tmp", type="bind")]
        ),
        "plugin 20-other mounts /tmp at /usr/local/nvidia/lib64, over the driver's files",
    ),
    "another GPU": (
        api.ContainerAdjustment(linux=linux(GPU3)),
        "plugin 20-other gives /dev/nvidia3 (GPU 3",
    ),
    "another GPU by another path": (
        api.ContainerAdjustment(
            linux=linux(api.LinuxDevice(path="/dev/x", type="c", major=195, minor=3))
        ),
        "plugin 20-other gives /dev/x (GPU 3",
    ),
    "a node by a mount": (
        api.ContainerAdjustment(
            mounts=[api.Mount(destination="/x", source="/dev/nvidia3", type="bind")]
        ),
        "plugin 20-other mounts /dev/nvidia3 at /x",
    ),
    "a CDI device": (
        api.ContainerAdjustment(cdi_devices=[api.CdiDevice(name="nvidia.com/gpu=all")]),
        "plugin 20-other gives nvidia.com/gpu=all",
    ),
    "a management device": (
        api.ContainerAdjustment(
            cdi_devices=[api.CdiDevice(name="management.nvidia.com/gpu=all")]
        ),
        "plugin 20-other gives management.nvidia.com/gpu=all",
    ),
    "NVIDIA's hook": (
        api.ContainerAdjustment(hooks=hooks("/usr/bin/nvidia-container-runtime-hook")),
        "adds the hook /usr/bin/nvidia-container-runtime-hook",
    ),
    "a device rule": (
        api.ContainerAdjustment(linux=linux(rules=[rule(minor=3)])),
        "allows c 195:3 (GPU 3",
    ),
    "a device rule for all": (
        api.ContainerAdjustment(linux=linux(rules=[rule()])),
        "allows c 195:* (GPU 0",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", ALTERED)
def test_what_was_made_of_a_decision(together, settings, tmp_path, what):
    """It is refused by a sentence that names what and who; the GPU is free, `explain` knows why."""
    adjust, told = ALTERED[what]

    async def body(pair):
        await prepared(pair)
        async with beside(pair, tmp_path / "nri.sock", adjust):
            with pytest.raises(runtime.CreationFailed) as failure:
                await pair.create(1, f"{VISIBLE}=0")
        assert told in str(failure.value)
        assert 'validator "10-nri-nvidia" rejected' in str(failure.value)
        found = await pairs.status(pair)
        assert found["containers"] == []
        last = found["decisions"][-1]
        assert (last["decision"], last["reasons"][-1]["code"]) == ("deny", "adjustment-altered")
        assert told in last["reasons"][-1]["message"]
        assert len(pair.runtime.plugins) >= 1
        assert (await pair.create(2, f"{VISIBLE}=0")).mounts

    together(body, *settings("ours"), **NEW)


HARMLESS = {
    "a variable": api.ContainerAdjustment(env=[api.KeyValue(key="A", value="b")]),
    "a mount beside": api.ContainerAdjustment(
        mounts=[api.Mount(destination="/usr/local/nvidia-tools", source="/tmp", type="bind")]
    ),
    "a mount above": api.ContainerAdjustment(
        mounts=[api.Mount(destination="/usr/local", source="/tmp", type="bind")]
    ),
    "another node": api.ContainerAdjustment(
        linux=linux(api.LinuxDevice(path="/dev/fuse", type="c", major=10, minor=229))
    ),
    "a block device of such a number": api.ContainerAdjustment(
        linux=linux(api.LinuxDevice(path="/dev/b", type="b", major=195, minor=3))
    ),
    "another CDI device": api.ContainerAdjustment(
        cdi_devices=[api.CdiDevice(name="vendor.com/nvidia=0")]
    ),
    "a hook": api.ContainerAdjustment(hooks=hooks("/usr/bin/other-hook")),
    "a rule that denies": api.ContainerAdjustment(linux=linux(rules=[rule(allow=False)])),
    "the same rule": api.ContainerAdjustment(linux=linux(rules=[rule(minor=0)])),
}


@pytest.mark.parametrize("mode", ["ours", "all"])
def test_what_other_plugins_may_do(together, settings, tmp_path, mode):
    """What has nothing to do with the driver is theirs, in containers with and without GPUs."""

    async def body(pair):
        for number, (what, adjust) in enumerate(HARMLESS.items()):
            async with beside(pair, tmp_path / "nri.sock", adjust):
                assert (await pair.create(number, f"{VISIBLE}=0")).mounts
                if what != "the same rule":  # as what the container has already
                    await pair.create(100 + number, "PATH=/bin")
            await pair.runtime.said("20-other is gone")
            pair.runtime.log.clear()
        found = await pairs.status(pair)
        assert {each["decision"] for each in found["decisions"]} == {"inject"}

    together(body, *settings(mode), **NEW)


def test_a_gpu_beside_a_refusal(together, settings, tmp_path):
    """A container to which a rule gives nothing gets nothing from another plugin either."""
    rule = '[[policy_rules]]\nnamespaces = ["team"]\naction = "ignore"\n'

    async def body(pair):
        async with beside(pair, tmp_path / "nri.sock", api.ContainerAdjustment(linux=linux(GPU3))):
            with pytest.raises(runtime.CreationFailed, match=r"20-other gives /dev/nvidia3"):
                await pair.create(1, f"{VISIBLE}=0")

    together(body, *settings("ours", rule), **NEW)


def test_a_gpu_for_a_container_that_asked_for_nothing(together, settings, tmp_path):
    """By `ours` that is between others, by `all` nobody else gives NVIDIA's devices."""
    adjust = api.ContainerAdjustment(linux=linux(GPU3))

    def body(refused):
        async def run(pair):
            async with beside(pair, tmp_path / "nri.sock", adjust):
                if refused:
                    with pytest.raises(runtime.CreationFailed, match="nri-nvidia was not asked"):
                        await pair.create(1, "PATH=/bin")
                else:
                    assert (await pair.create(1, "PATH=/bin")).linux.devices == [GPU3]

        return run

    together(body(refused=False), *settings("ours"), **NEW)
    together(body(refused=True), *settings("all"), **NEW)


def test_a_container_left_to_nvidias_own_plugin(together, settings, tmp_path):
    """Where we stand back for it, `ours` lets it give what its annotation asks for."""
    adjust = api.ContainerAdjustment(cdi_devices=[api.CdiDevice(name="nvidia.com/gpu=3")])
    asking = api.PodSandbox(
        id="p",
        name="pod",
        namespace="team",
        annotations={"nvidia.cdi.k8s.io/pod": "nvidia.com/gpu=3"},
    )

    async def body(pair):
        async with beside(pair, tmp_path / "nri.sock", adjust):
            made = await pair.runtime.create(pairs.container(1, f"{VISIBLE}=all"), asking)
        assert [each.name for each in made.cdi_devices] == ["nvidia.com/gpu=3"]
        assert made.mounts == []

    together(body, *settings("ours"), **NEW)


@pytest.mark.parametrize("setting", ["off", "ours"])
def test_who_is_not_asked(together, settings, tmp_path, setting):
    """Off, or on a runtime that cannot, the daemon serves as ever; in vain is said in the log."""
    options = NEW if setting == "off" else {"nri_version": "0.8.0", "version": "2.1.9"}

    async def body(pair):
        [attached] = pair.runtime.plugins
        assert not attached.events & 1 << (api.Event.VALIDATE_CONTAINER_ADJUSTMENT - 1)
        async with beside(pair, tmp_path / "nri.sock", api.ContainerAdjustment(linux=linux(GPU3))):
            assert (await pair.create(1, f"{VISIBLE}=0")).mounts
        said = "nri.validate = ours has no effect: containerd 2.1.9"
        findings = {
            each["code"]: each["message"] for each in (await pairs.status(pair))["findings"]
        }
        assert (said in findings.get("validation-unavailable", "")) is (setting == "ours")
        if setting == "ours":
            assert pair.daemon.says(said)
        assert (said in pair.daemon.logged()) is (setting == "ours")

    together(body, *settings(setting), **options)


def test_a_decision_of_which_nothing_is_shown(together, settings, tmp_path):
    """One whose creation another plugin fails leaves nothing behind that a later one meets."""
    adjust = api.ContainerAdjustment(env=[api.KeyValue(key="A", value="b")] * 2)

    async def body(pair):
        async with beside(pair, tmp_path / "nri.sock", adjust):
            with pytest.raises(runtime.CreationFailed, match="both tried to set"):
                await pair.create(1, f"{VISIBLE}=0")
        await pair.runtime.stop(pairs.container(1).id)
        assert (await pair.create(1, f"{VISIBLE}=1")).mounts
        assert bytes(await pair.create(2, "PATH=/bin")) == b""

    together(body, *settings("ours"), **NEW)


def test_what_cannot_be_read(together, settings):
    """It is an error, which refuses the container; the next one is served."""

    async def body(pair):
        [attached] = pair.runtime.plugins
        for payload in (b"\xff", b"\x12\x05abc", bytes(100)):
            with pytest.raises(Exception, match="undecodable"):
                await raw(attached, payload)
        assert (await pair.create(1, f"{VISIBLE}=0")).mounts
        assert len(pair.runtime.plugins) == 1

    together(body, *settings("all"), **NEW)


async def raw(attached, payload):
    """Send a request of these bytes."""

    class Payload:
        def __bytes__(self):
            return payload

    await attached.stub.validate_container_adjustment(Payload(), timeout=10)
