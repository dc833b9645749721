# SPDX-License-Identifier: Apache-2.0
"""Field cases: which GPU is meant, by which variable, and with which capabilities."""

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nri_nvidia import pipeline
from nri_nvidia.render import nri
from nri_nvidia.request import container as containers
from tests import inventories

from . import harness, strategies
from .harness import VISIBLE, asked, capable, codes, decide, indices, nodes

EIGHT, UUIDS = inventories.EIGHT, inventories.UUIDS
ONE = inventories.with_gpus(inventories.gpu(0))


@pytest.mark.parametrize("value", ["3", "1,5", UUIDS[6], "all", "none"])
def test_the_variable_stays_as_it_is(value):
    """FC-072: applications read it, so it is neither rewritten nor set to void."""
    assert decide(EIGHT, *asked(value)).edits.env == ()


ODD = ["no-gpu-has-10MiB-to-run", "false", "-1", "5", "0,5", "0;1", "gpu0", "GPU-", "GPU-zz", "ALL ",
       "nvidia0", "0x0", "1e0", "+0", "٣", "0:0", "MIG-", "01:00.0", "0 0", "all0", "None", "GPU-0", "1"]  # fmt: skip


@pytest.mark.parametrize("value", ODD)
def test_an_odd_word_is_no_gpu_and_never_all(value):
    """FC-073: what names no GPU is an error with that word and with what exists."""
    plan = decide(ONE, *asked(value))
    if value.strip() == "ALL":
        assert indices(plan) == [0]  # legacy takes all in any case of letters; here it is one GPU
        return
    assert plan.decision is pipeline.Decision.ERROR, plan
    assert codes(plan)[-1] in {"no-such-gpu", "no-such-mig-device"}
    word = next(word for word in value.split(",") if word != "0")
    assert word in plan.reasons[-1].message
    index = word.isascii() and word.isdigit()
    mig = codes(plan)[-1] == "no-such-mig-device"
    exists = "0" if index else f"0 ({UUIDS[0][:12]})"
    assert f"this node has {'none' if mig else exists}" in plan.reasons[-1].message


@settings(max_examples=200)
@given(
    inventory=strategies.hosts(),
    words=st.lists(st.text(st.characters(codec="ascii"), min_size=1), min_size=1, max_size=3),
)
def test_any_words_give_what_they_name_or_an_error(inventory, words):
    """FC-073: of whatever text stands there, every word names something that is given, or it fails."""
    value = ",".join(words)
    plan = decide(inventory, *asked(value))
    items = [item.strip() for item in value.split(",") if item.strip()]
    if plan.decision is pipeline.Decision.INJECT and plan.assigned:
        alike = {item.lower() for item in items}
        assert alike & {"all"} or all(any(c in "0123456789" for c in item) for item in items)
    elif plan.decision is pipeline.Decision.ERROR:
        assert any(item in plan.reasons[-1].message for item in items)


@pytest.mark.parametrize("value", ["none", " none ", "0,none", "none,all"])
def test_none_is_no_gpu(value):
    """FC-074: `none` gives libraries, programs and control nodes, and not one GPU."""
    plan = decide(EIGHT, *asked(value))
    assert plan.assigned == ()
    assert nodes(plan) == ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]
    assert {"libcuda.so.1", "libnvidia-ml.so.1"} <= set(harness.libraries(plan))
    assert f"{harness.LIBRARY_DIR}/bin/nvidia-smi" in harness.mounted(plan)


@pytest.mark.parametrize("value", [None, "", " ", ",", "void"])
def test_nothing_is_nothing(value):
    """FC-074: void, empty and unset leave the container untouched, without a word."""
    env = ("PATH=/bin",) if value is None else asked(value)
    assert decide(EIGHT, *env) == pipeline.Plan(decision=pipeline.Decision.IGNORE)


@pytest.mark.parametrize("value", ["0,void", "void,all"])
def test_void_beats_what_stands_beside_it(value):
    """FC-074: nothing is given, and that the rest of the list has no effect is said."""
    plan = decide(EIGHT, *asked(value))
    assert (plan.decision, plan.request, bool(plan.edits)) == ("ignore", None, False)
    assert [reason.code for reason in plan.reasons] == ["devices-without-effect"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [(("all", "void"), None), (("void", "all"), list(range(8))), (("0", "1"), [1]),
     (("all", "none"), []), (("none", "2"), [2]), (("1", ""), None), (("0", "0"), [0])],
)  # fmt: skip
@pytest.mark.parametrize("between", [(), ("PATH=/bin", "RUBBISH", f"{VISIBLE}X=3")])
def test_of_two_entries_the_later_counts(values, expected, between):
    """FC-075: engines append a user's value after the image's: the later one counts, whatever it is."""
    first, second = (f"{VISIBLE}={value}" for value in values)
    plan = decide(EIGHT, first, *between, second)
    assert plan.created
    if expected is None:
        assert not plan.edits
    else:
        assert indices(plan) == expected


def in_spec(*minors, known=True):
    """Give a spec's devices as a device plugin passes them."""
    numbers = [{"major": 195, "minor": minor} if known else {} for minor in minors]
    found = [
        containers.Device(path=f"/dev/nvidia{minor}", **number)
        for minor, number in zip(minors, numbers, strict=True)
    ]
    return (*found, containers.Device(path="/dev/nvidiactl", major=195, minor=255))


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("value", [UUIDS[0], "0", "0,1", "9", "GPU-nothing"])
def test_devices_of_another_and_a_variable_that_disagrees(value, known):
    """FC-076: with GPU 1 in the spec and another in the variable, GPU 1 it is; the conflict is told."""
    plan = decide(EIGHT, *asked(value), devices=in_spec(1, known=known))
    assert indices(plan) == [1]
    assert codes(plan) == ["devices-in-spec-differ"]
    assert "GPU 1" in plan.reasons[0].message
    assert value in plan.reasons[0].message
    assert not [path for path in nodes(plan) if path[-1].isdigit()]


@pytest.mark.parametrize("value", ["1", UUIDS[1], UUIDS[1][:12].upper(), "1,1", "all"])
def test_devices_of_another_that_agree(value):
    """FC-076: where both mean the same GPU, or the variable says all, there is no conflict."""
    plan = decide(EIGHT, *asked(value), devices=in_spec(1))
    assert (indices(plan), codes(plan)) == ([1], ["devices-in-spec"])


def test_mig_devices_of_another():
    """FC-076: a device plugin's MIG device stays that device, and no node is given twice."""
    found = inventories.mig_host()
    caps = dict(found.caps_nodes)
    devices = [containers.Device(path="/dev/nvidia0", major=195, minor=0)]
    for name in ("gpu0/gi1/access", "gpu0/gi1/ci0/access"):
        node = caps[name]
        devices.append(containers.Device(path=node.path, major=node.major, minor=node.minor))
    plan = decide(found, *asked("0:0"), devices=tuple(devices))
    assert [item.mig.gi for item in plan.assigned] == [1]
    assert codes(plan) == ["devices-in-spec"]
    assert not set(nodes(plan)) & {device.path for device in devices}


@pytest.mark.parametrize("value", ["0", "7", "all", UUIDS[3]])
def test_a_privileged_container_sees_all_and_is_told(value):
    """FC-080: every path once; what was asked and cannot be held to is a warning."""
    plan = decide(EIGHT, *asked(value), devices=in_spec(*range(8)), privileged=True)
    assert plan.created
    assert not set(nodes(plan)) & {device.path for device in in_spec(*range(8))}
    assert codes(plan) == ["devices-in-spec" if value == "all" else "privileged-sees-all"]


LIBCUDA = [f"/usr/lib/x86_64-linux-gnu/libcuda.so{end}" for end in ("", ".1", ".550.163.01")]


@pytest.mark.parametrize("value", ["all", "2"])
def test_a_second_injectors_devices_are_the_list(value):
    """FC-083: with GPU 2 in the spec no further GPU is given; the driver's files are added."""
    plan = decide(EIGHT, *asked(value), devices=in_spec(2))
    assert indices(plan) == [2]
    assert nodes(plan) == ["/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]
    assert "libcuda.so.1" in harness.libraries(plan)


@pytest.mark.parametrize("destination", LIBCUDA)
def test_a_second_injectors_libraries_are_enough(destination):
    """FC-083: where its libcuda is mounted too, nothing is left to add, and that is said."""
    mount = containers.Mount(source="/driver/libcuda", destination=destination, type="bind")
    plan = decide(EIGHT, *asked("all"), devices=in_spec(2), mounts=(mount,))
    assert (plan.decision, codes(plan)) == (pipeline.Decision.IGNORE, ["other-injector"])
    assert destination in plan.reasons[0].message
    alone = decide(EIGHT, *asked("0"), mounts=(mount,))  # a user's stub is no injector
    assert indices(alone) == [0]


@pytest.mark.parametrize(
    ("key", "stands_back"),
    [("nvidia.cdi.k8s.io/container.main", True), ("nvidia.cdi.k8s.io/pod", True),
     ("nvidia.cdi.k8s.io", True), ("nvidia.cdi.k8s.io/container.other", False),
     ("example.com/nvidia.cdi.k8s.io", False)],
)  # fmt: skip
def test_nvidias_own_plugin_is_left_to_its_containers(key, stands_back):
    """FC-091: with an annotation that it acts on for this container, nothing is added here."""
    annotations = {key: "nvidia.com/gpu=0"}
    plan = decide(EIGHT, *asked("all"), name="main", annotations=annotations)
    assert (plan.decision is pipeline.Decision.IGNORE) is stands_back
    if stands_back:
        assert codes(plan) == ["other-injector"]
        assert key in plan.reasons[0].message
    assert not decide(EIGHT, "A=b", name="main", annotations=annotations).reasons


@pytest.mark.parametrize("known", [True, False])
def test_what_the_spec_has_is_not_claimed_again(known):
    """FC-104: nodes with the driver's own numbers are left out of the answer."""
    plan = decide(EIGHT, *asked("0"), devices=in_spec(0, known=known))
    assert not set(nodes(plan)) & {"/dev/nvidia0", "/dev/nvidiactl"}


@pytest.mark.parametrize(
    "path", ["/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]
)
@pytest.mark.parametrize("numbers", [(1, 3), (195, 77), (508, 0)])
def test_what_the_spec_has_of_other_numbers_is_an_error(path, numbers):
    """FC-104: a program would open something else there: both numbers are told, nothing is given."""
    device = containers.Device(path=path, major=numbers[0], minor=numbers[1])
    plan = decide(EIGHT, *asked("0"), devices=(device,))
    assert (plan.decision, codes(plan)) == (pipeline.Decision.ERROR, ["device-path-taken"])
    assert f"{numbers[0]}:{numbers[1]}" in plan.reasons[-1].message


def test_a_node_under_another_name():
    """FC-104: GPU 3's node at /dev/nvidia0 is GPU 3, which gets its own name besides."""
    device = containers.Device(path="/dev/nvidia0", major=195, minor=3)
    plan = decide(EIGHT, *asked("all"), devices=(device,))
    assert indices(plan) == [3]
    assert "/dev/nvidia3" in nodes(plan)


RUBBISH = st.text(st.characters(exclude_characters="=\0", codec="utf-8"), max_size=12)


@given(entries=st.lists(st.one_of(RUBBISH, RUBBISH.map("X{}=y".format)), max_size=40))
def test_the_environment_is_left_alone(entries):
    """FC-102, FC-105: whatever entries there are, the answer claims no variable at all."""
    plan = decide(EIGHT, "A", *entries, *asked("0"))
    assert indices(plan) == [0]
    assert nri.adjustment(plan.edits).env == []


FULL = attrs.evolve(
    EIGHT,
    files=(*EIGHT.files, inventories.library("libnvcuvid.so.1", "video")),
)


@pytest.mark.parametrize(
    ("capabilities", "video"),
    [(None, False), ("", False), ("compute,utility", False), ("video,compute,utility", True),
     (" video , utility ", True), ("all", True), ("all,compute", True), ("utility", False)],
)  # fmt: skip
def test_encoder_and_decoder_come_with_video(capabilities, video):
    """FC-058: unset and empty mean the default, which has no video; `all` has everything."""
    env = asked("0") if capabilities is None else asked("0", capable(capabilities))
    plan = decide(FULL, *env)
    assert plan.created
    for name in ("libnvidia-encode.so.1", "libnvcuvid.so.1"):
        assert (name in harness.libraries(plan)) is video


@pytest.mark.parametrize(
    "value", ["compute,vidoe", "Compute", "video,none", "gpu", "compute utility"]
)
def test_unknown_capabilities_are_told(value):
    """FC-058: a word that is none fails the creation, and the known ones are listed."""
    plan = decide(FULL, *asked("0", capable(value)))
    assert (plan.created, codes(plan)) == (False, ["unsupported-capability"])
    assert "compat32, compute, display, graphics, ngx, utility, video" in plan.reasons[0].message


def test_default_capabilities_are_the_operators():
    """FC-058: a node for media servers gives video by default."""
    every = pipeline.request_model.Capability
    rules = harness.requests(default_capabilities=frozenset({every.VIDEO, every.UTILITY}))
    assert "libnvcuvid.so.1" in harness.libraries(decide(FULL, *asked("0"), rules=rules))


@pytest.mark.parametrize("places", [("/usr/share",), ("/etc",), ("/etc", "/usr/share"),
                                    ("/usr/local/share", "/usr/share")])  # fmt: skip
def test_one_vulkan_icd(tree, places):
    """FC-062: wherever it is on the host, and however often, a container has it once, below /etc."""
    tree.module("550.54.14")
    tree.majors(nvidia=195, nvidia_uvm=511)
    tree.gpu("0000:01:00.0", 0, UUIDS[0])
    tree.leading("/usr/lib64", "550.54.14")
    tree.library("/usr/lib64/libGLX_nvidia.so.550.54.14", "libGLX_nvidia.so.0")
    for place in places:
        tree.put(f"{place}/vulkan/icd.d/nvidia_icd.json", b"{}")
    files = harness.mounted(decide(tree.scan(), *asked("0", capable("graphics"))))
    assert {d: s for d, s in files.items() if "vulkan" in d} == {
        "/etc/vulkan/icd.d/nvidia_icd.json": f"{places[0]}/vulkan/icd.d/nvidia_icd.json"
    }
    assert not [d for d in harness.mounted(decide(tree.scan(), *asked("0"))) if "vulkan" in d]


@pytest.mark.parametrize("there", [[], ["directory"], ["file"], ["fifo"], ["socket"]])
def test_sockets_are_optional(live, there, tmp_path):
    """FC-060: what is no socket is skipped, what is none is no finding, what is one is given."""
    directory = live(gpus=harness.gpus(1), sockets=False)
    place = directory / "run/nvidia-persistenced/socket"
    place.parent.mkdir(parents=True)
    for kind in there:
        if kind == "directory":
            place.mkdir()
        elif kind == "fifo":
            harness.os.mkfifo(place)
        elif kind == "socket":
            harness.bind(place)
        else:
            place.touch()
    found = harness.scan.scan(harness.host.options_for(directory))
    plan = decide(found, *asked("0"))
    assert (plan.reasons, found.problems) == ((), ())
    expected = ["/run/nvidia-persistenced/socket"] if there == ["socket"] else []
    assert [d for d in harness.mounted(plan) if d.startswith("/run/")] == expected


@pytest.mark.parametrize("value", ["0", "all", "none"])
def test_utility_alone_cannot_compute(value):
    """FC-131: with utility only there is no uvm node, and nothing of compute."""
    plan = decide(EIGHT, *asked(value, capable("utility")))
    assert not [path for path in nodes(plan) if "uvm" in path]
    assert "libcuda.so.1" not in harness.libraries(plan)
    assert "libnvidia-ml.so.1" in harness.libraries(plan)


@pytest.mark.parametrize("value", ["0", "all", "none"])
def test_order_in_which_cuda_counts(value):
    """FC-071: the operator's variable is set where the container has none, and no other is touched."""
    order = "CUDA_DEVICE_ORDER=PCI_BUS_ID"
    inject = attrs.evolve(harness.RULES.inject, env=(order, "OTHER=a=b"))
    rules = attrs.evolve(harness.RULES, inject=inject)
    plan = decide(EIGHT, *asked(value), rules=rules)
    assert plan.edits.env == (("CUDA_DEVICE_ORDER", "PCI_BUS_ID"), ("OTHER", "a=b"))
    assert nri.adjustment(plan.edits).env[0].key == "CUDA_DEVICE_ORDER"
    own = decide(EIGHT, *asked(value, "CUDA_DEVICE_ORDER=FASTEST_FIRST", "OTHER="), rules=rules)
    assert own.edits.env == ()
    assert decide(EIGHT, *asked(value)).edits.env == ()
    assert not decide(EIGHT, "A=b", rules=rules).edits
