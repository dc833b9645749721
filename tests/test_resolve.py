# SPDX-License-Identifier: Apache-2.0
"""Which GPUs an id means."""

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_nvidia import errors, resolve
from nri_nvidia.host import model
from nri_nvidia.request import model as request_model
from tests import inventories
from tests.inventories import EIGHT, UUIDS


def ask(*devices):
    return request_model.GpuRequest(source=request_model.Source.ENV, devices=devices)


def indices(inventory, *devices):
    return [item.gpu.index for item in resolve.resolve(ask(*devices), inventory).assigned]


def refusal(inventory, *devices):
    with pytest.raises(errors.Error) as caught:
        resolve.resolve(ask(*devices), inventory)
    return caught.value


def test_unknown_index_is_refused_with_what_exists():
    """The sentence names what was asked and what exists, the hint where to look."""
    error = refusal(EIGHT, "9")
    assert str(error) == (
        "NVIDIA_VISIBLE_DEVICES=9: no such GPU; this node has 0-7 (nri-nvidia devices lists them)"
    )
    assert error.code == "no-such-gpu"


def test_all_is_every_gpu_and_none_is_no_gpu():
    """`all` and `none` are the two ends."""
    assert indices(EIGHT, "all") == list(range(8))
    assert resolve.resolve(ask(), EIGHT) == resolve.Allocation()


def test_number_of_devices_has_a_limit():
    """A list of thousands is refused as such, so that nobody waits for it."""
    shares = [f"{UUIDS[0]}::{number}" for number in range(1025)]
    assert refusal(EIGHT, *shares).code == "too-many-devices"
    assert indices(EIGHT, *shares[:1024]) == [0]


def test_order_is_that_of_the_bus_whatever_the_request():
    """A list in any order, with one GPU named twice, gives each once in bus order."""
    assert indices(EIGHT, "5", UUIDS[2], "0000:07:00.0", "2") == [0, 2, 5]


@pytest.mark.parametrize(
    "text",
    [UUIDS[3], UUIDS[3].lower(), UUIDS[3].upper(), UUIDS[3][:12], "03", "0000:0A:00.0",
     "00000000:0a:00.0", "0:a:0.0", "nvidia.com/gpu=3", f"nvidia.com/gpu={UUIDS[3]}", "runtime.nvidia.com/gpu=3",
     "nvidia.com/gpu=gpu3", f"{UUIDS[3]}::0", f"nvidia.com/gpu={UUIDS[3]}::17", "3::2"],
)  # fmt: skip
def test_spellings_of_one_gpu(text):
    """Index, UUID, its beginning, bus id, NVIDIA's CDI names and replicas are the same GPU."""
    assert indices(EIGHT, text) == [3]


@pytest.mark.parametrize(
    "text",
    ["-1", "8", "99999999999999999999", "0x1", "٣", "GPU-", "GPU-33c0ffe", "gpu0", "None",
     "07:00.0", "nvidia.com/gpu=8", "nvidia.com/gpu=void", "0::", "::1", "1 2", "\x00", "0-3"],
)  # fmt: skip
def test_what_is_no_gpu(text):
    """What names no GPU is refused and said back; nothing is guessed."""
    error = refusal(EIGHT, text)
    assert error.code == "no-such-gpu"
    assert text in error.message


@pytest.mark.parametrize(
    "text", ["GPU-33c0ffe", "GPU-33c0", "nvidia.com/gpu=GPU-33c0ffe", "MIG-33c0"]
)
def test_a_beginning_that_is_too_short_says_what_is_needed(text):
    """Seven hex digits of a UUID that exists name no device, and the sentence says how many do."""
    assert (
        "at least its first 8 hex digits are needed"
        in refusal(attrs.evolve(EIGHT, nvml_state="ok"), text).message
    )
    assert "hex digits" not in refusal(EIGHT, "GPU-99999999").message


def test_beginning_of_two_uuids_is_ambiguous():
    """A beginning that two UUIDs share is refused with both."""
    twins = [
        inventories.gpu(i, uuid=f"GPU-12345678-aaaa-4000-8000-00000000000{i}") for i in (0, 1)
    ]
    error = refusal(inventories.with_gpus(*twins), "GPU-12345678-aaaa")
    assert error.code == "ambiguous-uuid"
    assert all(twin.uuid in error.message for twin in twins)


@pytest.mark.parametrize("text", ["x" * 5000, "GPU-" + "0" * 5000, "9" * 5000, "0:" + "1" * 5000])
def test_a_long_name_does_not_hide_what_exists(text):
    """A scheduler's text in place of a name is cut, and the list of the node's GPUs is whole."""
    message = refusal(EIGHT, text).message
    assert len(message) < 800
    assert message.startswith(f"NVIDIA_VISIBLE_DEVICES={text[:200]}")
    assert f"({len(text)} characters)" in message
    assert UUIDS[7][:12] in message or "0-7" in message


@pytest.mark.parametrize(
    ("gpu", "said"),
    [
        ({}, "this node has 0 (GPU-00c0ffee)"),
        ({"uuid": ""}, "this node has 0 (0000:07:00.0)"),
        ({"uuid": "", "bus_id": ""}, "this node has 0"),
        ({"uuid": "ddd3e4c5-9a1f-5b2c-8d3e-4f5a6b7c8d9e"}, "0 (ddd3e4c5-9a1f-5b2c-8d3e-4f5a6b7c8d9e)"),
    ],
)  # fmt: skip
def test_what_exists_is_told_by_names_that_work(gpu, said):
    """By the beginning of a UUID, an address, or a UUID without GPU- whole, as a Jetson has it."""
    host = inventories.with_gpus(inventories.gpu(0, **gpu))
    message = refusal(host, "false").message
    assert message.endswith(said)
    assert "()" not in message
    name = message.rpartition("(")[2].rstrip(")") if "(" in said else "0"
    assert indices(host, name) == [0]


def test_node_without_hardware():
    """`all` from an image is set aside on a node without a GPU, an id is an error."""
    nothing = model.Inventory()
    allocation = resolve.resolve(ask("all"), nothing)
    assert not allocation.given
    assert [reason.code for reason in allocation.reasons] == ["no-gpu-on-node"]
    assert not resolve.resolve(ask(), nothing).given
    assert refusal(nothing, "0").code == "no-gpu-on-node"


def test_driver_not_loaded():
    """Hardware without a module is an error for every request, `none` included."""
    unloaded = model.Inventory(hardware=True)
    for devices in (("all",), ("0",), ()):
        assert refusal(unloaded, *devices).code == "driver-not-loaded"


def test_versions_differ():
    """A module and libraries of two versions are refused with the scan's own words."""
    problem = model.Problem(
        code="driver-version-mismatch", message="570.1 and 570.2", hint="reboot"
    )
    error = refusal(attrs.evolve(EIGHT, problems=(problem,)), "all")
    assert "570.1 and 570.2" in error.message
    assert error.hint == "reboot"


def test_excluded_gpu_is_no_part_of_all_and_is_named_when_asked_for():
    """The driver's exclusion is told, not hidden."""
    host = inventories.with_gpus(inventories.gpu(0), inventories.gpu(1, index=-1, excluded=True))
    assert indices(host, "all") == [0]
    assert refusal(host, UUIDS[1]).code == "gpu-excluded"
    assert refusal(inventories.with_gpus(host.gpus[1]), "all").code == "no-usable-gpu"


def test_index_means_nothing_when_orders_differ():
    """Where NVML counts otherwise an index is refused and a UUID works."""
    host = attrs.evolve(EIGHT, nvml_state="mismatch")
    assert refusal(host, "0").code == "index-ambiguous"
    assert indices(host, UUIDS[4]) == [4]
    assert len(indices(host, "all")) == 8


def test_uninitialised_gpu_has_no_uuid_to_ask_for():
    """An empty UUID is no answer to any text."""
    host = inventories.with_gpus(inventories.gpu(0, uuid=""), inventories.gpu(1))
    assert indices(host, UUIDS[1]) == [1]
    assert refusal(host, "GPU-").code == "no-such-gpu"


@pytest.mark.parametrize("text", [UUIDS[5], UUIDS[5][:12], f"nvidia.com/gpu={UUIDS[5]}"])
def test_a_uuid_that_may_be_an_uninitialised_gpus_is_not_called_unknown(text):
    """Before NVML's first answer nobody can tell; once it has answered, it is no such GPU."""
    gpus = (inventories.gpu(0), inventories.gpu(1, uuid=""), inventories.gpu(2, uuid=""))
    host = inventories.with_gpus(*gpus, nvml_state="absent")
    error = refusal(host, text)
    assert error.code == "nvml-not-available"
    assert "that of GPU 1, 2 is not" in error.message
    assert indices(host, UUIDS[0]) == [0]
    assert refusal(attrs.evolve(host, nvml_state="ok"), text).code == "no-such-gpu"
    known = inventories.with_gpus(*gpus[:1], nvml_state="absent")
    assert refusal(known, text).code == "no-such-gpu"
    assert refusal(host, "GPU-typo").code == "no-such-gpu"


def test_mig_spellings():
    """Index pair, UUID and path name one MIG device; `all` is all of them and the whole GPUs."""
    host = inventories.mig_host()
    first = host.gpus[0].mig_devices[0]
    short = f"MIG-{UUIDS[0][:12]}/1/0"
    for text in ("0:0", first.uuid, first.uuid.lower(), f"MIG-{UUIDS[0]}/1/0", short):
        assigned = resolve.resolve(ask(text), host).assigned
        assert [item.mig for item in assigned] == [first]
    everything = resolve.resolve(ask("all"), host).assigned
    assert [(a.gpu.index, a.mig and a.mig.index) for a in everything] == [
        (0, 0),
        (0, 1),
        (1, None),
    ]
    assert refusal(host, f"MIG-{UUIDS[0][:11]}/1/0").code == "no-such-mig-device"
    assert refusal(host, "0:7").code == "no-such-mig-device"
    assert refusal(attrs.evolve(host, nvml_state="absent"), "0:0").code == "nvml-not-available"


def test_all_waits_for_nvml_where_a_gpu_is_in_mig_mode():
    """Without NVML's answer its devices are not known: `all` without them would be a silent part."""
    host = inventories.mig_host()
    unknown = attrs.evolve(host.gpus[0], mig_devices=())
    host = inventories.with_gpus(unknown, host.gpus[1], nvml_state="absent")
    assert refusal(host, "all").code == "nvml-not-available"
    assert indices(attrs.evolve(host, nvml_state="ok"), "all") == [1]


def test_whole_gpu_in_mig_mode_is_given_with_a_word():
    """A GPU in MIG mode by its index is the GPU, and it is said that it cannot compute."""
    allocation = resolve.resolve(ask("0"), inventories.mig_host())
    assert [item.mig for item in allocation.assigned] == [None]
    assert [reason.code for reason in allocation.reasons] == ["gpu-in-mig-mode"]


@given(st.lists(st.text(), min_size=1, max_size=4))
def test_any_text_is_resolved_or_refused(devices):
    """No text leads to anything but GPUs or an Error with its text."""
    try:
        allocation = resolve.resolve(ask(*devices), EIGHT)
    except errors.Error as error:
        assert error.message  # noqa: PT017 - both outcomes are right
    else:
        assert allocation.assigned or not allocation.given
