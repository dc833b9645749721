# SPDX-License-Identifier: Apache-2.0
"""An image's own newer CUDA driver, found by the hook and taken by the loader."""

import json
import os
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_nvidia.edits import compat as edits_compat
from nri_nvidia.oci import compat, hook
from nri_nvidia.oci.view import Failure

from . import bundles

FOLDER = "/usr/local/cuda/compat"
HOST = "550.54.15"
SEARCH = f"LD_LIBRARY_PATH={bundles.LIBRARY_DIR}/lib:{bundles.LIBRARY_DIR}/lib64"
NOTE = {"Format": 1, "CUDA Version": "12.9", "Driver": [535, 550, 560, 565, 570, 575]}
NOTED = """
__attribute__((section(".note.cuda.fwd_compatibility"), aligned(4), used))
static const struct { unsigned name, text, kind; char owner[20], json[512]; } note = {
    19, sizeof(JSON) - 1, 1, "NVIDIA Corporation", JSON };
"""


def make(folder, version, note=None):
    """Make a CUDA driver of a version, as the package cuda-compat has it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"libcuda.so.{version}"
    text = f'const char *made_as(void) {{ return "{path}"; }}'
    if note is not None:
        text += f"\n#define JSON {json.dumps(json.dumps(note))}\n{NOTED}"
    options = ("-shared", "-fPIC", "-nostdlib", "-Wl,-soname,libcuda.so.1")
    bundles.compile_c(path, text, *options)
    (folder / "libcuda.so.1").unlink(missing_ok=True)
    (folder / "libcuda.so.1").symlink_to(path.name)
    return path


def image(case, version="575.57.08", note=NOTE):
    case.make("debian")
    return make(case.root / FOLDER[1:], version, note)


def prepared(case):
    """Give the mount of a prepared directory: its `lib` leads where the hook puts a link."""
    driver = case.place / "driver"
    shutil.copytree(case.toolbox.driver, driver)
    (driver / "lib").symlink_to(compat.COMPAT_LINK)
    return [bundles.bind(driver, bundles.LIBRARY_DIR)]


def searching(document):
    document["process"]["env"].append(SEARCH)


@pytest.mark.parametrize("layout", ["files", "volume"])
@pytest.mark.parametrize("change", [None, searching])
def test_newer_driver_wins(case, runtime, layout, change):
    """The loader takes the image's, by its cache and by LD_LIBRARY_PATH as CUDA images set it."""
    made = image(case)
    libraries = case.toolbox.driver / "lib64"
    mounts = [
        bundles.bind(libraries / name, f"{bundles.LIBRARY_DIR}/lib64/{name}")
        for name in bundles.LIBRARIES
    ]
    result = case.run(
        runtime, mounts=prepared(case) if layout == "volume" else mounts,
        options=["--compat", HOST], change=change,
    )  # fmt: skip
    assert (result.status, result.output) == (0, f"{made}\n"), result
    assert result.step("compat") == {
        "name": "compat",
        "ok": True,
        "message": f"the CUDA driver 575.57.08 of {FOLDER} is used, the host's is {HOST}",
    }
    assert bundles.cached(case.root)["libcuda.so.1"][0] == f"{FOLDER}/libcuda.so.1"


@pytest.mark.parametrize("change", [None, searching])
def test_driver_that_is_not_newer_is_left(case, runtime, change):
    """The host's is taken then, and the report says why."""
    image(case, "535.104.05")
    options = ["--compat", HOST]
    result = case.run(runtime, mounts=prepared(case), options=options, change=change)
    assert result.output.endswith("/driver/lib64/libcuda.so.1\n")
    assert "is not used: it is not newer than the host's" in result.step("compat")["message"]
    assert not (case.root / compat.COMPAT_LINK[1:]).is_symlink()


def test_nothing_is_looked_at_unasked(case, runtime):
    """Without the option there is no such step."""
    image(case)
    result = case.run(runtime)
    assert result.output.endswith("/driver/lib64/libcuda.so.1\n")
    assert "compat" not in [step["name"] for step in result.report["steps"]]


def test_other_directory(case):
    """An image for another platform has it elsewhere."""
    case.make("debian").put_driver_in_root()
    make(case.root / "opt/compat", "575.57.08")
    result = case.direct("--compat", HOST, "--compat-dir", "/opt/compat")
    assert "of /opt/compat is used" in result.step("compat")["message"]
    drop_in = (case.root / "etc/ld.so.conf.d/00-nri-nvidia.conf").read_text()
    assert drop_in.splitlines() == ["/opt/compat", f"{bundles.LIBRARY_DIR}/lib64"]


def test_old_link_of_a_saved_container_goes(case):
    """An image saved from a container that used its driver decides anew on another host."""
    image(case)
    case.put_driver_in_root()
    case.direct("--compat", HOST)
    assert (case.root / compat.COMPAT_LINK[1:]).readlink().as_posix() == FOLDER
    result = case.direct("--compat", "580.65.06")
    assert "not made for drivers 580" in result.step("compat")["message"]
    assert not (case.root / compat.COMPAT_LINK[1:]).is_symlink()
    assert bundles.cached(case.root)["libcuda.so.1"] == [
        f"{bundles.LIBRARY_DIR}/lib64/libcuda.so.1"
    ]


@pytest.mark.parametrize(("cuda", "used"), [("12.8", True), ("12.9", False), ("12.10", False)])
def test_host_that_tells_its_cuda_version_alone(case, cuda, used):
    """A Jetson's driver has no such version: the note's CUDA version is compared."""
    image(case)
    case.put_driver_in_root()
    message = case.direct("--compat", f"cuda={cuda}").step("compat")["message"]
    assert ("is not used" not in message) is used, message


@pytest.mark.parametrize("target", ["{outside}", "../../../../../../../..{outside}"])
def test_links_lead_nowhere_outside(case, target):
    """A link in the image to a directory of the host ends inside the image's root."""
    outside = case.place / "outside"
    make(outside, "575.57.08")
    case.make("debian").put_driver_in_root()
    (case.root / "usr/local/cuda").mkdir(parents=True)
    (case.root / FOLDER[1:]).symlink_to(target.format(outside=outside))
    before = bundles.snapshot(outside)
    result = case.direct("--compat", HOST)
    assert result.step("compat") == {"name": "compat", "ok": True, "message": ""}
    assert bundles.snapshot(outside) == before
    make(case.root / str(outside)[1:], "575.57.08")
    assert "is used" in case.direct("--compat", HOST).step("compat")["message"]
    assert bundles.snapshot(outside) == before


def test_what_is_no_library_is_no_candidate(case):
    """Directories, FIFOs and links that lead nowhere are passed over; nothing hangs."""
    case.make("debian").put_driver_in_root()
    folder = case.root / FOLDER[1:]
    (folder / "libcuda.so.600.1").mkdir(parents=True)
    (folder / "libcuda.so.600.2").symlink_to("/proc/1/root/etc/passwd")
    os.mkfifo(folder / "libcuda.so.600.3")
    result = case.direct("--compat", HOST)
    assert result.step("compat") == {"name": "compat", "ok": True, "message": ""}


def test_the_link_is_the_one_that_prepared_directories_lead_to():
    """Hook and edits are separate programs and have to name the same place."""
    assert compat.COMPAT_LINK == edits_compat.LINK


def test_note_is_read_from_a_real_library(tmp_path):
    """A library's ELF note gives the branches that it runs on; without one there is nothing."""
    noted = make(tmp_path, "575.57.08", NOTE)
    assert compat.read_note(str(noted), hook.parse_object) == NOTE
    assert compat.read_note(str(make(tmp_path, "575.1")), hook.parse_object) == {}
    assert compat.read_note(str(tmp_path / "none"), hook.parse_object) == {}


@given(st.data())
def test_damaged_library_is_one_without_a_note(noted, data):
    """Whatever an image's author changes in a library, reading it ends, without a crash."""
    content = bytearray(noted.read_bytes())
    for _ in range(data.draw(st.integers(1, 8))):
        place = data.draw(st.integers(0, 63) | st.integers(0, len(content) - 1))
        content[place] = data.draw(st.integers(0, 255))
    path = noted.with_name("damaged")
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    assert isinstance(compat.read_note(str(path), hook.parse_object), dict)


@pytest.fixture(scope="module")
def noted(tmp_path_factory):
    return make(tmp_path_factory.mktemp("noted"), "575.57.08", NOTE)


@given(st.text(), st.text(), st.dictionaries(st.just("Driver"), st.lists(st.integers())))
def test_any_versions_are_decided(version, host, note):
    """Texts that are no versions are a reason not to use it."""
    assert isinstance(compat.why_not(version, host, note), str)


def test_no_note_has_no_text(tmp_path):
    """Files that are not of the form are told from those without a note by nothing else."""
    (tmp_path / "empty").write_bytes(b"")
    with (tmp_path / "empty").open("rb") as file, pytest.raises(Failure):
        compat.note_text(file.fileno())
