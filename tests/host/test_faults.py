# SPDX-License-Identifier: Apache-2.0
"""A host that cannot be looked at is not one without a driver."""

import subprocess
import sys

import pytest

from nri_nvidia import errors
from nri_nvidia.host import cache, query, scan

V, NEXT = "550.163.01", "570.124.06"
UUID = "GPU-836c0c09-2b1d-4d5a-9b7e-0123456789ab"


@pytest.fixture
def node(tree):
    """A live host with one GPU."""
    tree.module(V)
    tree.majors(nvidia=195, nvidia_uvm=511)
    tree.gpu("0000:07:00.0", 0, UUID)
    tree.leading("/usr/lib64", V)
    return tree


SCRIPT = """
import os, resource, sys
from nri_nvidia import errors
from nri_nvidia.host import cache, options, query
given = options.Options(root=sys.argv[1], driver_root=sys.argv[1], dev_root=sys.argv[1])
kept = cache.Cache(given)
assert kept.get().gpus
lowest = os.open("/dev/null", os.O_RDONLY)
os.close(lowest)
resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, lowest))
for look in (kept.get, cache.Cache(given).get):
    try:
        print("seen", len(look().gpus))
    except errors.HostError as error:
        print(error.code, error.message)
print(query.query(given, "/none").reason)
"""


def test_process_without_a_free_descriptor(node):
    """The look fails by name, instead of showing a node without GPUs; NVML is not asked."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(node.top)], check=True, capture_output=True, text=True
    )
    *looks, nvml = done.stdout.splitlines()
    assert len(looks) == 2
    assert all(look.startswith("host-scan-failed") for look in looks)
    assert all("Too many open files" in look for look in looks)
    assert nvml == "the NVML process cannot be run: Too many open files"


def upgraded(tree, version):
    tree.module(version)
    tree.leading("/usr/lib64", version)


def test_driver_upgraded_in_the_middle_of_a_scan(node, monkeypatch):
    """The answer is all old or all new; here the new driver as a whole."""
    changes = [NEXT]

    def scan_and_change(*arguments):
        found = scan.scan(*arguments)
        if changes:
            upgraded(node, changes.pop())
        return found

    monkeypatch.setattr(cache, "scan", scan_and_change)
    found = cache.Cache(node.live()).get()
    assert (found.driver_version, found.libraries_version) == (NEXT, NEXT)


def test_driver_that_changes_without_end(node, monkeypatch):
    """Nobody is given half of it: the look fails and says why."""
    versions = iter(range(100))

    def scan_and_change(*arguments):
        found = scan.scan(*arguments)
        node.module(f"570.{next(versions)}")
        return found

    monkeypatch.setattr(cache, "scan", scan_and_change)
    with pytest.raises(errors.HostError, match="being changed"):
        cache.Cache(node.live()).get()


def test_file_names_that_are_no_text(node):
    """A name that is not UTF-8 hides nothing else."""
    node.put(b"/usr/lib64/libcuda.so.\xff".decode(errors="surrogateescape"), b"x")
    found = cache.Cache(node.live()).get()
    assert found.libraries_version == V


def test_query_reaps_what_it_starts(node):
    """A child that is given up leaves no zombie."""
    before = set(_children())
    given = node.live(nvml_timeout=0.05)
    assert query.query(given, "/none").report is None
    assert set(_children()) == before


def _children():
    with open("/proc/thread-self/children", encoding="ascii") as file:
        return file.read().split()
