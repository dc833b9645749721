# SPDX-License-Identifier: Apache-2.0
import os
import pathlib
import threading

import pytest

from nri_nvidia.host import cache, query, report
from nri_nvidia.testing import host

UUID = "GPU-836c0c09-2b1d-4d5a-9b7e-0123456789ab"
V = "550.163.01"
CAPS = "/proc/driver/nvidia/capabilities/gpu0/mig"


def answer(**changes) -> query.Answer:
    gpu = report.ReportGpu(
        index=0, uuid=UUID, minor=0, bus_id="0000:07:00.0", architecture="hopper", **changes
    )
    return query.Answer(report=report.Report(driver_version=V, gpus=(gpu,)))


@pytest.fixture
def node(tree):
    """A live host with one GPU, real nodes and libraries."""
    tree.module(V)
    tree.majors(nvidia=195, nvidia_uvm=511, nvidia_caps=508)
    tree.gpu("0000:07:00.0", 0, UUID)
    tree.leading("/usr/lib64", V)
    for name, minor in (("nvidia0", 0), ("nvidiactl", 255)):
        tree.node(f"/dev/{name}", 195, minor)
    return tree


def settled(kept: cache.Cache):
    """Give the Inventory once it is kept: right after a change a scan is not trusted yet."""
    found = kept.get()
    while (again := kept.get()) is not found:
        found = again
    return found


def test_inventory_is_kept_while_nothing_changes(node):
    """Once settled, any number of creates cost no scan."""
    kept = cache.Cache(node.live())
    first = settled(kept)
    scans = kept.scans
    assert all(kept.get() is first for _ in range(20))
    assert kept.scans == scans


def test_change_right_behind_a_scan_is_seen(node):
    """A scan of a host that has just changed is not trusted: time stamps move in ticks."""
    kept = cache.Cache(node.live())
    kept.get()
    node.library(f"/usr/lib64/libnvcuvid.so.{V}", "libnvcuvid.so.1")
    assert "libnvcuvid.so.1" in {file.names[0] for file in kept.get().files}


def replaced_library(node):
    path = node.at(f"/usr/lib64/libcuda.so.{V}")
    other = node.put("/usr/lib64/new", path.read_bytes() + b"x")
    stamp = path.stat().st_mtime_ns
    os.utime(other, ns=(stamp, stamp))
    other.rename(path)


def new_driver(node):
    node.module("570.124.06")
    node.leading("/usr/lib64", "570.124.06")


@pytest.mark.parametrize(
    "change",
    [
        replaced_library,
        new_driver,
        lambda node: node.gpu("0000:08:00.0", 1, UUID.replace("a", "b")),
        lambda node: node.at("/dev/nvidia0").unlink(),
        lambda node: node.at("/dev/nvidiactl").chmod(0o600),
        lambda node: node.library("/usr/lib/x86_64-linux-gnu/libcuda.so.1.2.3"),
        lambda node: node.put("/etc/ld.so.cache", b"x"),
        lambda node: node.put(f"{CAPS}/gi1/access", "DeviceFileMinor: 12\n"),
        lambda node: node.majors(nvidia=195),
        lambda node: node.put("/sys/module/nvidia/version", ""),
    ],
    ids=[
        "library",
        "driver",
        "gpu",
        "node",
        "mode",
        "second",
        "ld.so.cache",
        "mig",
        "uvm",
        "rmmod",
    ],
)
def test_change_of_the_host_is_seen_by_the_next_get(node, change):
    """Libraries, driver, GPUs, nodes, rights, MIG: no restart and no signal is needed."""
    kept = cache.Cache(node.live())
    first = settled(kept)
    scans = kept.scans
    change(node)
    kept.get()
    assert kept.scans > scans
    assert settled(kept) is not first


def test_upgrade_is_followed_without_a_signal(node):
    """After the driver was replaced only files of the new version are given, and all exist."""
    kept = cache.Cache(node.live())
    settled(kept)
    for path in (node.top / "usr/lib64").iterdir():
        path.unlink()
    new_driver(node)
    found = kept.get()
    assert (found.driver_version, found.libraries_version) == ("570.124.06", "570.124.06")
    assert found.files
    assert all(pathlib.Path(file.source).exists() for file in found.files)
    assert all("570.124.06" in file.source for file in found.files)


def test_driver_that_appears_later_is_picked_up(tree):
    """A daemon that started on a bare node becomes ready when there is a driver."""
    kept = cache.Cache(tree.live())
    assert settled(kept).gpus == ()
    tree.module(V)
    tree.majors(nvidia=195)
    tree.gpu("0000:07:00.0", 0, UUID)
    tree.leading("/usr/lib64", V)
    found = kept.get()
    assert (len(found.gpus), len(found.files)) == (1, 2)


def test_get_never_asks_nvml(node):
    """Creating a container does not wait for NVML."""

    def never(_options, _library):
        raise AssertionError("NVML was asked")

    kept = cache.Cache(node.live(), ask=never)
    assert kept.get().nvml_state == "absent"
    assert kept.nvml_stale
    assert "not been asked" in kept.nvml_reason


def test_refresh_adds_what_nvml_says(node):
    """After a refresh the Inventory has NVML's part, and is not stale."""
    asked = []
    kept = cache.Cache(node.live(), ask=lambda _o, path: asked.append(path) or answer())
    kept.refresh_nvml()
    found = kept.get()
    assert asked == [f"{node.top}/usr/lib64/libnvidia-ml.so.{V}"]
    assert (found.nvml_state, found.gpus[0].architecture) == ("ok", "hopper")
    assert not kept.nvml_stale
    assert kept.nvml_reason == ""


def test_report_outlives_changes_that_are_not_the_gpus(node):
    """A node that appears in /dev does not make NVML's answer worthless."""
    kept = cache.Cache(node.live(), ask=lambda _o, _l: answer())
    kept.refresh_nvml()
    settled(kept)
    node.put("/dev/something")
    assert kept.get().nvml_state == "ok"
    assert not kept.nvml_stale


def test_report_of_other_mig_instances_is_dropped(node):
    """When instances change, NVML's old list is not offered any more."""
    node.put(f"{CAPS}/gi1/access", "DeviceFileMinor: 12\n")
    kept = cache.Cache(node.live(), ask=lambda _o, _l: answer(mig_enabled=True))
    kept.refresh_nvml()
    assert kept.get().nvml_state == "ok"
    node.put(f"{CAPS}/gi2/access", "DeviceFileMinor: 21\n")
    assert kept.nvml_stale
    assert kept.get().nvml_state == "absent"


def test_failed_answer_is_kept_with_its_reason(node):
    """A silent NVML is asked once for a state of the host, not again at each look."""
    kept = cache.Cache(node.live(), ask=lambda _o, _l: query.Answer(reason="it hangs"))
    kept.refresh_nvml()
    assert (kept.nvml_reason, kept.nvml_stale) == ("it hangs", False)
    assert kept.get().nvml_state == "absent"


def test_nvml_is_not_asked_with_libraries_of_another_version(node):
    """Without a libnvidia-ml that fits the module there is nothing to ask."""
    node.module("570.124.06")
    kept = cache.Cache(node.live(), ask=lambda _o, _l: pytest.fail("asked"))
    assert "no libnvidia-ml" in kept.refresh_nvml().reason


def test_get_does_not_wait_for_a_refresh_in_progress(node):
    """While one thread waits for NVML, another gets the Inventory."""
    started, release = threading.Event(), threading.Event()

    def slow(_options, _library):
        started.set()
        assert release.wait(30)
        return answer()

    kept = cache.Cache(node.live(), ask=slow)
    thread = threading.Thread(target=kept.refresh_nvml)
    thread.start()
    try:
        assert started.wait(30)
        assert kept.get().nvml_state == "absent"
    finally:
        release.set()
        thread.join()
    assert kept.get().nvml_state == "ok"


def test_get_does_not_wait_for_the_scan_after_a_refresh(node, monkeypatch):
    """Until what NVML said is in it the Inventory of before is given, and then no scan is due."""
    started, release = threading.Event(), threading.Event()
    kept = cache.Cache(node.live(), ask=lambda _o, _l: answer())
    before = settled(kept)
    scan = cache.scan

    def slow(*arguments):
        started.set()
        assert release.wait(30)
        return scan(*arguments)

    monkeypatch.setattr(cache, "scan", slow)
    thread = threading.Thread(target=kept.refresh_nvml)
    thread.start()
    try:
        assert started.wait(30)
        assert kept.get() is before
    finally:
        release.set()
        thread.join()
    scans = kept.scans
    assert kept.get().nvml_state == "ok"
    assert kept.scans == scans


def test_a_scan_that_fails_after_a_refresh_is_told_by_the_next(node, monkeypatch):
    """What NVML said is kept, and nobody is given an Inventory without it."""
    kept = cache.Cache(node.live(), ask=lambda _o, _l: answer())
    settled(kept)
    scan = cache.scan
    monkeypatch.setattr(cache, "scan", lambda *_: 1 // 0)
    assert kept.refresh_nvml().reason == ""
    with pytest.raises(ZeroDivisionError):
        kept.get()
    monkeypatch.setattr(cache, "scan", scan)
    assert kept.get().nvml_state == "ok"


def test_what_a_scan_was_not_sure_of_is_looked_at_behind_the_answer(node):
    """So that the next container waits for no scan, though nothing asked meanwhile."""
    kept = cache.Cache(node.live())
    kept.get()
    scans = -1
    while kept.scans != scans:  # it is kept once no stamp is as young as the scan
        scans = kept.scans
        assert kept.look_behind()
    kept.get()
    assert kept.scans == scans


def test_threads_share_one_scan(node):
    """Many threads that ask at once get the same Inventory."""
    kept = cache.Cache(node.live())
    first = settled(kept)
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(kept.get())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert all(one is first for one in found)


def test_recorded_host_has_nothing_to_ask(tmp_path):
    """NVML of a recorded host is its document; it is never stale."""
    from nri_nvidia.host.options import Options

    host.build(tmp_path / "h", host.recorded_specs()["debian-mig"])
    kept = cache.Cache(Options.for_recorded(str(tmp_path / "h")))
    assert not kept.nvml_stale
    assert settled(kept).nvml_state == "ok"
    (tmp_path / "h/nvml.json").unlink()
    assert kept.get().nvml_state == "absent"


def test_whole_live_host_with_the_real_child(tmp_path):
    """A built host, its nodes, pynvml in a child: all of it together."""
    spec = host.HostSpec(gpus=(host.GpuSpec(), host.GpuSpec()))
    host.build(tmp_path / "h", spec)
    kept = cache.Cache(host.options_for(tmp_path / "h"))
    assert kept.get().nvml_state == "absent"
    assert kept.refresh_nvml().reason == ""
    found = kept.get()
    assert (found.nvml_state, found.cuda_version) == ("ok", "12.4")
    assert [gpu.compute_capability for gpu in found.gpus] == ["9.0", "9.0"]
    assert found.problems == ()


def written_over(path, data):
    """Change a file in place: its directory stays as it is."""
    with path.open("r+b") as file:
        file.write(data)


def test_leading_library_written_over_in_place_is_seen_by_the_next_get(node):
    """libcuda and libnvidia-ml are looked at themselves, since no driver comes without them."""
    kept = cache.Cache(node.live())
    settled(kept)
    scans = kept.scans
    written_over(node.at(f"/usr/lib64/libcuda.so.{V}"), b"\x7fELG")
    kept.get()
    assert kept.scans > scans


def test_other_file_written_over_in_place_is_seen_behind_the_answer(node):
    """What an answer gives of such a file is its path; the look behind it has the host scanned."""
    path = node.library(f"/usr/lib64/libnvcuvid.so.{V}", "libnvcuvid.so.1")
    kept = cache.Cache(node.live())
    settled(kept)
    assert kept.look_behind()
    scans = kept.scans
    written_over(path, b"\x7fELG")
    kept.get()
    assert kept.scans == scans
    assert not kept.look_behind()
    kept.get()
    assert kept.scans > scans


@pytest.mark.parametrize("where", ["before", "at", "after"])
def test_link_that_leads_elsewhere_is_seen(node, where):
    """Of a directory that is reached by links each of them counts, also to what is not there."""
    node.library(f"/opt/one/sub/libnvcuvid.so.{V}", "libnvcuvid.so.1")
    node.library(f"/opt/two/sub/libnvcuvid.so.{V}", "libnvcuvid.so.1")
    links = {
        "before": ("/usr/local/nvidia", "sub"),
        "at": ("/usr/lib32", ""),
        "after": ("/lib32", ""),
    }
    path, below = links[where]
    library_dir = f"{path}/lib64" if below else path
    if below:
        node.link("/opt/one/lib64", "sub")
        node.link("/opt/two/lib64", "sub")
        node.link(path, "/opt/one")
    else:
        node.link(path, "/opt/nowhere" if where == "after" else "/opt/one/sub")
    kept = cache.Cache(node.live(library_search_paths=("/usr/lib64", library_dir)))
    before = {file.source for file in settled(kept).files}
    node.at("/opt/next").symlink_to("/opt/two" if below else "/opt/two/sub")
    (node.top / "opt/next").rename(node.top / path.lstrip("/"))
    assert {file.source for file in kept.get().files} != before


def test_look_tells_whether_nvml_is_stale(node):
    """One look gives both: the Inventory, and whether to ask NVML."""
    kept = cache.Cache(node.live(), ask=lambda _o, _l: answer())
    assert kept.look()[1]
    kept.refresh_nvml()
    assert kept.look() == (kept.get(), False)
    node.put(f"{CAPS}/gi3/access", "DeviceFileMinor: 12\n")
    assert kept.look()[1]


def test_watching_looks_at_nothing_twice(node):
    """What is missing in a directory that is looked at is not looked at itself."""
    kept = cache.Cache(node.live())
    settled(kept)
    paths = kept._known.watched.paths
    assert len(set(paths)) == len(paths)
    present = {path for path in paths if os.path.isdir(path)}
    assert not [p for p in paths if not os.path.lexists(p) and os.path.dirname(p) in present]


def test_hard_links_of_the_files_are_no_change(node):
    """Directories that are prepared for containers hold links of the driver's files."""
    place = node.at("/run/prepared/libcuda.so.1")
    kept = cache.Cache(node.live())
    settled(kept)
    scans = kept.scans
    os.link(node.at(f"/usr/lib64/libcuda.so.{V}"), place)
    kept.get()
    assert kept.look_behind()
    assert kept.scans == scans
