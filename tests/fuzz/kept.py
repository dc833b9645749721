# SPDX-License-Identifier: Apache-2.0
"""What the daemon reads again of its own: the records of decisions, which a disk may damage."""

import json
import pathlib
import tempfile

from nri_nvidia import pipeline
from nri_nvidia.cli import explain, output
from nri_nvidia.daemon import adoption, ledger, records, runtimeholders
from nri_nvidia.host import model as host
from nri_nvidia.request import container as containers
from tests import inventories

from . import targets

SCRATCH = tempfile.TemporaryDirectory(prefix="nri-nvidia-fuzz-")
ASKED = containers.Container(
    id="c", name="x", pod="p", namespace="n", env=("NVIDIA_VISIBLE_DEVICES=0,1",)
)
INVENTORY = inventories.with_gpus(inventories.gpu(0), inventories.gpu(1))
WHOLE = json.loads(
    json.dumps(
        {
            **records.document(
                ledger.Decided(
                    time=1.5,
                    container=ASKED,
                    plan=pipeline.plan(ASKED, INVENTORY, pipeline.Policy()),
                    duration_ms=2.5,
                )
            ),
            "hook": {"ok": False, "failures": ["a"], "notes": ["b"], "duration_ms": 1.0},
            "watched": {"pid": 1, "start": 2, "cgroup": "/a"},
        }
    )
)


def read_again(data):
    """Whatever stands in a file, it is set aside or is a record that all its readers can take."""
    top = pathlib.Path(SCRATCH.name) / "records"
    top.mkdir(exist_ok=True)
    for old in top.iterdir():
        old.unlink()
    (top / "a.json").write_bytes(data)
    store = records.Store(top)
    store.load()
    records.each(top, used)
    store.put({**WHOLE, "id": "d"})
    for known in list(store.known):
        store.read(known)
        store.end(known, 2.0)
    store.keep_only([])
    records.match("n/p/x", store.known.values())


def used(record):
    """Do with a record all that is done with one."""
    records.summary(record)
    container = runtimeholders._container(record)
    held = adoption.entry(container, host.Inventory(), record).held
    assert all(isinstance(each.index, int) and isinstance(each.uuid, str) for each in held)
    runtimeholders._process(record.get("watched"))
    shown = {**record, "holds": None, "stale": False, "loaded_driver": None, "inside": None}
    if record["edits"]:
        explain._library_dir(record)
    assert explain.text(output.plain(shown), 3.0)


def altered_text(document):
    read_again(json.dumps(document).encode())


TARGETS = tuple(
    targets.Target(name=name, values=values, check=check)
    for name, values, check in (
        ("record", targets.altered(WHOLE), altered_text),
        ("record-bytes", targets.damaged(json.dumps(WHOLE).encode()), read_again),
    )
)
