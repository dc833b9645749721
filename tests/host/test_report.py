# SPDX-License-Identifier: Apache-2.0
import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_nvidia.errors import HostError
from nri_nvidia.host import report
from nri_nvidia.host.model import MigDevice

GPU_UUID = "GPU-836c0c09-2b1d-4d5a-9b7e-0123456789ab"
MIG_UUID = "MIG-836c0c09-2b1d-4d5a-9b7e-0123456789ab"


def mig(**changes):
    return {"index": 0, "uuid": MIG_UUID, "gi": 1, "ci": 0, "profile": "1g.10gb",
            "memory_bytes": 5, "gfx": False, **changes}  # fmt: skip


def gpu(**changes):
    return {"index": 0, "uuid": GPU_UUID, "minor": 0, "bus_id": "00000000:07:00.0",
            "name": "NVIDIA H100 80GB HBM3", "brand": "nvidia", "architecture": "hopper",
            "compute_capability": "9.0", "memory_bytes": 85520809984, "mig_enabled": True,
            "mig_devices": [mig()], **changes}  # fmt: skip


def document(*gpus, **changes):
    return {"driver_version": "550.163.01", "cuda_version": "12.4", "gpus": list(gpus), **changes}


def refused(value) -> str:
    with pytest.raises(HostError) as caught:
        report.parse(json.dumps(value))
    assert caught.value.code == "nvml-document"
    return caught.value.message


def test_whole_document_becomes_values():
    """Every key of the document is a field; the address takes sysfs' form."""
    assert report.parse(json.dumps(document(gpu()))) == report.Report(
        driver_version="550.163.01",
        cuda_version="12.4",
        gpus=(
            report.ReportGpu(
                index=0,
                uuid=GPU_UUID,
                minor=0,
                bus_id="0000:07:00.0",
                name="NVIDIA H100 80GB HBM3",
                brand="nvidia",
                architecture="hopper",
                compute_capability="9.0",
                memory_bytes=85520809984,
                mig_enabled=True,
                mig_devices=(
                    MigDevice(
                        index=0, uuid=MIG_UUID, gi=1, ci=0, profile="1g.10gb", memory_bytes=5
                    ),
                ),
            ),
        ),
    )


def test_only_identity_is_required():
    """A GPU is index, UUID, minor and address; the rest may be unknown."""
    least = {"index": 0, "uuid": GPU_UUID, "minor": -1, "bus_id": "00000000:07:00.0"}
    found = report.parse(json.dumps({"driver_version": "550.163.01", "gpus": [least]}))
    assert (found.gpus[0].minor, found.gpus[0].mig_devices) == (-1, ())


def test_uuids_take_one_form():
    """Hexadecimal digits become lower case, prefixes upper case."""
    old = f"mig-gpu-{GPU_UUID[4:].upper()}/1/0"
    found = report.parse(json.dumps(document(gpu(mig_devices=[mig(uuid=old)]))))
    assert found.gpus[0].mig_devices[0].uuid == f"MIG-{GPU_UUID}/1/0"


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ([], "document"),
        ({"driver_version": "1"}, "gpus is missing"),
        (document(gpu(), gpu()), "same index twice"),
        (document(gpu(), gpu(index=1)), "same uuid twice"),
        (document(gpu(), errors=[1]), "errors[0]"),
        (document(gpu(), driver_version=550), "driver_version"),
    ],
)
def test_wrong_place_is_named(value, where):
    """The message says where the document is wrong."""
    assert where in refused(value)


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ({"index": 0}, "gpus[0].uuid is missing"),
        (
            {key: value for key, value in gpu().items() if key != "minor"},
            "gpus[0].minor is missing",
        ),
        (None, "gpus[0] is no object"),
        (gpu(index="0"), "gpus[0].index"),
        (gpu(index=True), "gpus[0].index"),
        (gpu(minor=1.5), "gpus[0].minor"),
        (gpu(uuid="GPU-1"), "gpus[0].uuid"),
        (gpu(bus_id="07:00.0"), "gpus[0].bus_id"),
        (gpu(name="a\nb"), "gpus[0].name"),
        (gpu(name="x" * 300), "gpus[0].name"),
        (gpu(mig_enabled=1), "gpus[0].mig_enabled"),
        (gpu(mig_devices={}), "gpus[0].mig_devices"),
        (gpu(mig_devices=[mig(gi=-1)]), "gpus[0].mig_devices[0].gi"),
        (gpu(mig_devices=[mig(uuid=GPU_UUID)]), "gpus[0].mig_devices[0].uuid"),
        (gpu(mig_devices=[mig(), mig()]), "same index twice"),
    ],
)
def test_a_wrong_gpu_does_not_hide_the_others(value, where):
    """What is wrong is said of that GPU by its index, and the others are there."""
    other = gpu(index=1, uuid=GPU_UUID.replace("836c", "936c"), bus_id="00000000:08:00.0")
    found = report.parse(json.dumps(document(value, other)))
    assert [each.index for each in found.gpus] == [1]
    (said,) = found.errors
    assert said.startswith("GPU 0: ")
    assert where in said


@pytest.mark.parametrize(("index", "called"), [(5, 5), (-1, 0), (True, 0), ("7", 0)])
def test_a_wrong_gpu_is_called_by_its_index(index, called):
    """It is the one that the GPU says of itself, and only without that its place in the list."""
    (said,) = report.parse(json.dumps(document({"index": index}))).errors
    assert said.startswith(f"GPU {called}: ")


def test_unknown_keys_are_passed_over():
    """A document of another version is read for what is known of it."""
    known = report.parse(json.dumps(document(gpu())))
    more = document(gpu(colour="red", mig_devices=[mig(shape="round")]), extra={"a": [1]})
    assert report.parse(json.dumps(more)) == known


@pytest.mark.parametrize(
    "text", ["", "{", "null", "[" * 100000, '{"gpus": [], "gpus": []}', b"\xff\xfe{}", "NaN"]
)
def test_what_is_no_document_is_refused(text):
    """Text that is no JSON object, or says a key twice, is an error and no crash."""
    with pytest.raises(HostError):
        report.parse(text)


def test_too_long_a_document_is_refused():
    """More than the limit is not even read."""
    with pytest.raises(HostError, match="longer than"):
        report.parse(" " * (report.LIMIT + 1))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@given(JSON)
def test_any_json_is_a_report_or_an_error(value):
    """Nothing but HostError is ever raised."""
    with contextlib.suppress(HostError):
        report.parse(json.dumps(value))


@given(st.sampled_from(sorted(gpu())), JSON)
def test_any_value_in_any_place_is_a_report_or_an_error(key, value):
    """A GPU's field of any type is taken, or a sentence says what is wrong with that GPU."""
    found = report.parse(json.dumps(document(gpu(**{key: value}))))
    assert len(found.gpus) + len(found.errors) == 1
    assert all(each.startswith("GPU ") and "gpus[0]" in each for each in found.errors)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_report_or_an_error(data):
    """Bytes that are no text are refused like any garbage."""
    with pytest.raises(HostError):
        report.parse(data)
