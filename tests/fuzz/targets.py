# SPDX-License-Identifier: Apache-2.0
"""What comes from outside, and what may come of it: a value, or an error of the named kinds.

A target is a strategy and a check. The check raises for whatever is not promised; a defect that
one of them finds gets a test of its own beside the module that had it.
"""

import copy
import json
import pathlib
import tempfile

import attrs
from hypothesis import strategies as st

from nri_nvidia import errors, limits, pipeline
from nri_nvidia._api.nri.pkg.api import v1alpha1 as api
from nri_nvidia.config import load
from nri_nvidia.daemon import guard, hookreports, runtimedoor
from nri_nvidia.edits import model as edits_model
from nri_nvidia.host import elf, ldcache, proc, report, root
from nri_nvidia.nri import convert, validation
from nri_nvidia.oci import client
from nri_nvidia.request import container as containers
from nri_nvidia.request import model, parse
from nri_nvidia.testing import stubs
from nri_nvidia.ttrpc import connection, mux
from nri_nvidia.ttrpc import errors as ttrpc_errors
from tests import inventories
from tests.fuzz import bundles
from tests.host import test_report
from tests.nri import messages
from tests.ttrpc import strategies as wire


@attrs.frozen(kw_only=True)
class Target:
    """`check` is called with each of `values`."""

    name: str
    values: st.SearchStrategy
    check: object


@st.composite
def damaged(draw, *whole):
    """One of these texts of bytes, with some bytes changed, some left out, some put in."""
    data = bytearray(draw(st.sampled_from(whole)))
    for _ in range(draw(st.integers(0, 6))):
        at = draw(st.integers(0, len(data)))
        match draw(st.integers(0, 3)):
            case 0 if at < len(data):
                data[at] = draw(st.integers(0, 255))
            case 1:
                data[at:at] = draw(st.binary(max_size=12))
            case 2:
                del data[at : at + draw(st.integers(0, 40))]
            case _:
                data = data[: max(at, len(data) // 2)]
    return bytes(data)


anything = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8),
        st.sampled_from([-1, 1 << 31, 1 << 63, 1 << 70, "0", "GPU-0", "/proc", "\0", "\ud800"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=6,
)  # fmt: skip


@st.composite
def altered(draw, whole):
    """A JSON document with some of its values replaced by anything, or left out."""
    document = copy.deepcopy(whole)
    for _ in range(draw(st.integers(0, 4))):
        place = document
        while isinstance(place, dict | list) and place:
            key = draw(st.sampled_from(sorted(place) if isinstance(place, dict) else [0]))
            if not isinstance(place[key], dict | list) or draw(st.booleans()):
                if draw(st.integers(0, 5)) or isinstance(place, list):
                    place[key] = draw(anything)
                else:
                    del place[key]
                break
            place = place[key]
    return document


def received(side):
    """Give a check that feeds bytes to a connection."""

    def check(data):
        state = connection.Connection(**side)
        try:
            for event in state.receive(data):
                assert event is not None
            state.receive_eof()
        except ttrpc_errors.RemoteProtocolError:
            pass

    return check


def demultiplexed(data):
    try:
        for number, piece in mux.Reader().receive(data):
            assert 0 <= number < 1 << 32
            assert isinstance(piece, bytes)
    except ttrpc_errors.RemoteProtocolError:
        pass


CREATION = bytes(
    api.CreateContainerRequest(
        pod=messages.pod(), container=messages.container(variables=3, mounts=2)
    )
)
LISTED = bytes(messages.container(variables=3, mounts=2))


def created(data):
    convert.is_whole(data)
    try:
        shown = convert.created(data)
    except ttrpc_errors.RemoteProtocolError:
        return
    decided(shown)


def listed(data):
    try:
        shown = convert.listed_container(data, {})
    except ttrpc_errors.RemoteProtocolError:
        return
    assert isinstance(shown, containers.Container)


PROPOSED = bytes(
    api.ValidateContainerAdjustmentRequest(
        pod=bytes(messages.pod()),
        container=LISTED,
        adjust=api.ContainerAdjustment(
            mounts=[api.Mount(destination="-/a"), api.Mount(destination="/b", source="/c")],
            env=[api.KeyValue(key="A", value="b")],
            hooks=api.Hooks(prestart=[api.Hook(path="/nvidia-ctk", args=["x"])]),
            cdi_devices=[api.CdiDevice(name="nvidia.com/gpu=0")],
            linux=api.LinuxContainerAdjustment(
                devices=[api.LinuxDevice(path="/dev/nvidia0", type="c", major=195)],
                resources=api.LinuxResources(
                    devices=[
                        bytes(
                            api.LinuxDeviceCgroup(
                                allow=True, type="c", major=api.OptionalInt64(value=195)
                            )
                        )
                    ]
                ),
            ),
        ),
        owners=api.OwningPlugins(
            owners={
                "c": api.FieldOwners(
                    simple={3: "20-a,30-b"},
                    compound={4: api.CompoundFieldOwners(owners={"/dev/nvidia0": "20-a"})},
                )
            }
        ),
        plugins=[api.PluginInstance(name="a", index="20")],
    )
)
EDITS = edits_model.ContainerEdits(
    devices=(edits_model.DeviceEdit(path="/dev/x", host_path="/dev/x", major=195, minor=1),),
    mounts=(edits_model.MountEdit(source="/c", destination="/b"),),
)


def proposed(data):
    """What plugins made of a decision is read, and every fault has a sentence of one line."""
    try:
        shown = validation.read(data, "10-nri-nvidia")
        told = [*validation.altered(EDITS, shown), *validation.added(EDITS, shown, NAMES)]
    except ttrpc_errors.RemoteProtocolError:
        return
    assert all(told)


INVENTORY = inventories.with_gpus(inventories.gpu(0), inventories.gpu(1))
NAMES = guard._names(INVENTORY)
RULES = pipeline.Policy()


def decided(shown):
    """Decide; a plan with a reason for all that is refused comes of whatever is asked."""
    parsed = parse.parse(shown, RULES.request)
    plan = pipeline.plan(shown, INVENTORY, RULES, parsed=parsed)
    assert plan.created or str(plan.refusal())


words = st.one_of(
    st.sampled_from(
        ["all", "none", "void", "", "0", "1", "99", "0:0", "GPU-", "MIG-", "nvidia.com/gpu=0",
         "compute", "utility", "video", ",", "cuda>=", "cuda>=12.4", "brand=tesla,", "::", " "]
    ),
    st.text(max_size=12),
)  # fmt: skip
variables = st.builds(
    "{}{}{}".format,
    st.sampled_from(
        ["NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_REQUIRE_CUDA",
         "NVIDIA_REQUIRE_X", "NVIDIA_DISABLE_REQUIRE", "NVIDIA_IMEX_CHANNELS", "CUDA_VERSION",
         "NVIDIA_MIG_CONFIG_DEVICES", "NVIDIA_GDS", "NVIDIA_FABRIC_DEVICES", ""]
    ),
    st.sampled_from(["=", "=", "=", ""]),
    st.lists(words, max_size=4).map(",".join),
)  # fmt: skip
environments = st.lists(variables, max_size=6).map(
    lambda env: containers.Container(id="c", env=tuple(env))
)

HOLDINGS = tuple(
    limits.Holding(
        gpu=inventories.UUIDS[0],
        minor=0,
        container=containers.Container(id=name, name=name, sandbox=sandbox),
    )
    for name, sandbox in (("main", "s"), ("all", "s"), ("x", "other"))
)
sharers = st.builds(
    lambda named, env: attrs.evolve(
        env,
        name="dbg",
        sandbox="s",
        annotations={f"{containers.SHARE_PREFIX}{key}": text for key, text in named.items()},
    ),
    st.dictionaries(
        st.sampled_from(["dbg", "main", "all", ""]),
        st.one_of(st.sampled_from(["main", " all", "x", "dbg", "none"]), words),
    ),
    environments,
)


def shared(shown):
    """Who shares gets what the named container of its pod holds, or a reason why not."""
    parsed = parse.parse(shown, RULES.request)
    context = pipeline.Context(holdings=HOLDINGS)
    plan = pipeline.plan(shown, INVENTORY, RULES, context, parsed)
    assert plan.created or str(plan.refusal())
    if parsed.request and parsed.request.source is model.Source.SHARE and plan.created:
        assert parsed.request.shares in {"main", "all"}
        assert [item.gpu.uuid for item in plan.assigned] == inventories.UUIDS[:1]


def fault_of(kind, call):
    """Give the error of one kind that a call ends in, None where it gives a value."""
    try:
        call()
    except kind as error:
        return error
    return None


def configured(text):
    given = [load.Text(name="config.toml", toml=text)]
    fault = fault_of(errors.ConfigError, lambda: load.load(given))
    assert fault is None or str(fault).startswith("config.toml")


lines = st.one_of(
    st.sampled_from(
        ["[nri]", "[hook]", "[[policy_rules]]", "[inject]", "[request]", "[control]", 'a = "b"',
         'policy = "strict"', 'socket = "/x"', "timeout = 5", "enabled = false", "group = 7",
         'steps = ["proc"]', "ldconfig_timeout = nan", "x = [", "= 1", 'index = "07"',
         'namespaces = ["a"]', "max_devices = -1", 'action = "allow"', "nvml_timeout = inf",
         'env = ["A=B"]', 'default_capabilities = "all"', "listen = true", "[policy]"]
    ),
    st.builds("{} = {}".format, st.text("abcdefghi_.", max_size=9), st.integers()),
    st.text(max_size=20),
)  # fmt: skip


def cached(data):
    for entry in ldcache.parse(data):
        assert entry.bits in {0, 32, 64}
        assert "\0" not in entry.path


def linked(data):
    elf.parse(lambda offset, size: data[offset : offset + size], len(data))


INFORMATION = b"""Model: \t\t NVIDIA H100 80GB HBM3
IRQ:   \t\t 18
GPU UUID: \t GPU-836c0c09-2b1d-4d5a-9b7e-0123456789ab
Bus Location: \t 0000:07:00.0
Device Minor: \t 0
GPU Excluded:\t No
"""
MAJORS = b"Character devices:\n  1 mem\n195 nvidia\n511 nvidia-uvm\n\nBlock devices:\n  8 sd\n"
CAPS = b"config 1\nmonitor 2\ngpu0/gi1/access 30\ngpu0/gi1/ci0/access 31\n"
SCRATCH = tempfile.TemporaryDirectory(prefix="nri-nvidia-fuzz-")


def read_of_proc(data):
    top = pathlib.Path(SCRATCH.name)
    for name in ("proc/devices", "proc/driver/nvidia-caps/mig-minors", "proc/driver/nvidia/params",
                 "proc/driver/nvidia/version", "proc/driver/nvidia/gpus/0000:07:00.0/information"):  # fmt: skip
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_bytes(data)
    seen = root.Root(str(top))
    for read in (proc.majors, proc.mig_minors, proc.parameters, proc.module_version, proc.gpus):
        read(seen)
    assert all(0 <= minor < 1 << 20 for minor in proc.mig_minors(seen).values())
    assert all(0 <= major < 1 << 12 for major in proc.majors(seen).values())


def nvml(document):
    nvml_bytes(json.dumps(document))


def nvml_bytes(data):
    fault = fault_of(errors.HostError, lambda: report.parse(data))
    assert fault is None or fault.code == "nvml-document"


QUESTION = {
    "protocol": client.PROTOCOL, "id": "c", "nested": False, "stays": False,
    "spec": {
        "ociVersion": "1.0.2", "root": {"path": "rootfs"}, "annotations": {"a": "b"},
        "process": {"env": ["NVIDIA_VISIBLE_DEVICES=0"], "capabilities": {"bounding": ["CAP_X"]}},
        "mounts": [{"destination": "/a", "source": "/b", "options": ["ro"]}],
        "hooks": {"prestart": [{"path": "/x", "args": ["y"]}]},
        "linux": {
            "devices": [{"path": "/dev/x", "type": "c", "major": 1, "minor": 2}],
            "cgroupsPath": "/a", "namespaces": [{"type": "user"}],
            "resources": {"devices": [{"allow": True, "access": "rwm"}]},
        },
    },
}  # fmt: skip


def asked(document):
    for uid in (0, 1000):
        try:
            question = runtimedoor._question(json.dumps(document).encode())
            shown = runtimedoor._container(question, runtimedoor.Caller(pid=1, uid=uid))
        except errors.Error:
            continue
        runtimedoor._cgroup(question["spec"])
        decided(shown)


HOOK_REPORT = {
    "token": "t", "ok": True, "duration_ms": 1.0,
    "steps": [{"name": "proc", "ok": True, "message": "m"}],
}  # fmt: skip


def hook_reported(document):
    receiver = hookreports.Receiver()
    receiver._pending["t"] = "c"
    found = receiver._read(json.dumps(document).encode())
    assert found is None or found.container_id == "c"


STUB = stubs.shared_object("libx.so.1", needed=("liby.so.2",))
CACHE = stubs.library_cache([("libcuda.so.1", "/opt/libcuda.so.1", 64)])
DOCUMENT = test_report.document(test_report.gpu())
PLUGIN, RUNTIME = {"serves": 1, "calls": 2}, {"serves": 2, "calls": 1}

TARGETS = tuple(
    Target(name=name, values=values, check=check)
    for name, values, check in (
        ("ttrpc-plugin", wire.streams(wire.mux_frames()), received(PLUGIN)),
        ("ttrpc-runtime", wire.streams(wire.mux_frames()), received(RUNTIME)),
        ("mux", wire.streams(wire.mux_frames()), demultiplexed),
        ("create-container", damaged(CREATION), created),
        ("listed-container", damaged(LISTED), listed),
        ("proposed-adjustment", damaged(PROPOSED), proposed),
        ("environment", environments, decided),
        ("sharing", sharers, shared),
        ("configuration", st.lists(lines, max_size=8).map("\n".join), configured),
        ("ld-so-cache", damaged(CACHE), cached),
        ("elf", damaged(STUB), linked),
        ("proc", damaged(INFORMATION, MAJORS, CAPS), read_of_proc),
        ("nvml-json", altered(DOCUMENT), nvml),
        ("nvml-bytes", damaged(json.dumps(DOCUMENT).encode()), nvml_bytes),
        ("runtime-question", altered(QUESTION), asked),
        ("config-json-bytes", damaged(json.dumps(bundles.SPEC).encode()), bundles.prepared),
        (
            "config-json",
            altered(bundles.SPEC).map(lambda it: json.dumps(it).encode()),
            bundles.prepared,
        ),
        ("hook-report", altered(HOOK_REPORT), hook_reported),
    )
)
