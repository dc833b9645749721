# SPDX-License-Identifier: Apache-2.0
"""The records of decisions: found by name, bounded, whole whatever happens."""

import errno
import json
import os

import pytest

from nri_nvidia import pipeline, reasons
from nri_nvidia.daemon import ledger, records
from nri_nvidia.request import container as containers
from nri_nvidia.request import model as request_model
from tests import inventories

HOOK = {"ok": True, "failures": [], "notes": [], "duration_ms": 1.0}


def decided(number, *, decision="inject", time=0.0, **names):
    request = request_model.GpuRequest(source="env", devices=("0",))
    reason = reasons.Reason(code="some-code", message="a sentence")
    return ledger.Decided(
        time=time or float(number),
        container=containers.Container(id=f"{number:08d}", **names),
        plan=pipeline.Plan(
            decision=pipeline.Decision(decision), request=request, reasons=(reason,)
        ),
        duration_ms=1.5,
    )


def record(number, **fields):
    return records.document(decided(number, **fields))


def summaries(*names):
    return [
        records.Summary(id=f"{place}abc", namespace=ns, pod=pod, name=name, time=place, live=live)
        for place, (ns, pod, name, live) in enumerate(names)
    ]


def test_record_holds_what_was_asked_decided_and_done():
    """It is the JSON of `plan` with whose it is, when, and how long it took."""
    inventory = inventories.with_gpus(inventories.gpu(0), inventories.gpu(1))
    container = containers.Container(
        id="abc", name="c", pod="p", namespace="ns", env=("NVIDIA_VISIBLE_DEVICES=1",)
    )
    plan = pipeline.plan(container, inventory, pipeline.Policy())
    whole = records.document(
        ledger.Decided(time=7.0, container=container, plan=plan, duration_ms=2.0)
    )
    found = json.loads(json.dumps(whole))
    assert (found["id"], found["pod"], found["time"], found["duration_ms"]) == (
        "abc",
        "p",
        7.0,
        2.0,
    )
    assert found["request"]["variable"] == "NVIDIA_VISIBLE_DEVICES"
    assert [(gpu["index"], gpu["container_index"]) for gpu in found["gpus"]] == [(1, 0)]
    assert "/dev/nvidia1" in [device["path"] for device in found["edits"]["devices"]]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("0abc", ["0abc"]),
        ("1", ["1abc"]),
        ("ns/p1/c", ["0abc"]),
        ("p1/c", ["0abc"]),
        ("p1", ["0abc"]),
        ("c", ["2abc", "0abc"]),
        ("ns/p3/d", ["4abc"]),
        ("nothing", []),
        ("", []),
        ("/", []),
    ],
)
def test_what_a_query_means(query, expected):
    """Ids before names before beginnings; of a recreated container the living one is meant."""
    known = summaries(
        ("ns", "p1", "c", True),
        ("ns", "p2", "d", True),
        ("ns2", "p2", "c", True),
        ("ns", "p3", "d", False),
        ("ns", "p3", "d", True),
        ("ns", "p3", "d", False),
    )
    assert [summary.id for summary in records.match(query, known)] == expected


def test_beginning_of_several_ids_means_all_of_them():
    """Nothing is guessed."""
    known = [records.Summary(id=f"ab{n}", name=f"n{n}") for n in range(3)]
    assert len(records.match("ab", known)) == 3


def test_records_outlive_the_store(tmp_path):
    """What one store has written another reads, with what was changed since."""
    store = records.Store(tmp_path / "d")
    store.put(record(1, name="c"))
    store.change("00000001", {"hook": HOOK})
    store.change("00000009", {"hook": HOOK})
    store.end("00000001", 5.0)
    again = records.Store(tmp_path / "d")
    again.load()
    assert [*again.known] == ["00000001"]
    assert not again.known["00000001"].live
    found = again.read("00000001")
    assert (found["hook"], found["ended"]) == (HOOK, 5.0)


def test_those_that_ended_go_first(tmp_path):
    """A container that cannot be created again and again does not drive out one that runs."""
    store = records.Store(tmp_path / "d", kept=3)
    store.put(record(1))
    for number in range(2, 9):
        store.put(record(number, decision="error"))
    assert [*store.known] == ["00000001", "00000007", "00000008"]
    assert len(list((tmp_path / "d").iterdir())) == 3
    store.keep_only(["00000007"])
    assert not any(known.live for known in store.known.values())


def test_users_own_records_go_before_all_others(tmp_path):
    """A user who asks for containers in a row drives out what he asked for, nothing of NRI's."""
    store = records.Store(tmp_path / "d", kept=3)
    store.put(record(1, decision="error"))
    store.put(record(2))
    for number in range(3, 9):
        store.put({**record(number), "id": f"c{number}/1000"})
    store.put({**record(9), "id": "c9/runtime"})
    assert [*store.known] == ["00000001", "00000002", "c9/runtime"]


def test_what_is_no_record_is_set_aside_and_another_version_left(tmp_path, caplog):
    """Half a file and rubbish are kept apart and said; a newer daemon's record stays unread."""
    store = records.Store(tmp_path)
    store.put(record(1))
    whole = next(tmp_path.iterdir())
    (tmp_path / "half.json").write_bytes(whole.read_bytes()[:40])
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "keys.json").write_text('{"schema": 1}')
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "x.new").write_text("{}")
    (tmp_path / "newer.json").write_text('{"schema": 99, "id": "n"}')
    again = records.Store(tmp_path)
    again.load()
    assert [*again.known] == ["00000001"]
    aside = {f"{name}.damaged" for name in ("half", "list", "keys", "deep")}
    assert {path.name for path in tmp_path.iterdir()} == {whole.name, "newer.json", *aside}
    assert all(any(name in message for message in caplog.messages) for name in aside)
    for _ in range(2):
        records.Store(tmp_path).load()
    assert {path.name for path in tmp_path.iterdir()} == {whole.name, "newer.json", *aside}
    found = []
    records.each(tmp_path, found.append)
    assert [entry["id"] for entry in found] == ["00000001"]


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("time", "soon"), ("time", 1e300), ("time", True), ("ended", []), ("gpus", [{"index": 0}]),
        ("gpus", [{"index": "0", "uuid": "", "minor": 0, "mig": None}]), ("hook", {"ok": True}),
        ("hook", 7), ("missed", None), ("request", {"devices": "0"}), ("reasons", [1]),
        ("driver_version", None), ("edits", {"env": []}), ("cuda_compat", {}), ("id", 7),
    ],
)  # fmt: skip
def test_damage_that_leaves_json_is_damage(tmp_path, member, value):
    """A record is taken for one only if all that is read of it again is of its kind."""
    store = records.Store(tmp_path)
    store.put(record(1))
    [path] = tmp_path.iterdir()
    path.write_text(json.dumps({**record(1), member: value}))
    again = records.Store(tmp_path)
    again.load()
    assert again.known == {}
    assert [each.suffix for each in tmp_path.iterdir()] == [".damaged"]


@pytest.mark.parametrize("decision", ["inject", "ignore", "deny", "error"])
def test_what_the_daemon_writes_is_whole(tmp_path, decision):
    """Every kind of decision is read again, with members that only a later daemon knows."""
    store = records.Store(tmp_path)
    store.put({**record(1, decision=decision), "hook": HOOK, "unknown": {"to": "us"}})
    again = records.Store(tmp_path)
    again.load()
    assert set(again.known) == {"00000001"}


def test_few_damaged_records_are_kept(tmp_path):
    """A disk that damages each of them does not fill up with them."""
    for number in range(20):
        (tmp_path / f"{number:02}.json").write_text("{")
        os.utime(tmp_path / f"{number:02}.json", (number, number))
    records.Store(tmp_path).load()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"{number}.damaged" for number in range(12, 20)
    ]


def test_full_disk_leaves_the_old_record(tmp_path, monkeypatch):
    """A record that cannot be written does not spoil the one that is there."""
    store = records.Store(tmp_path)
    store.put(record(1))

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(OSError, match="No space"):
        store.change("00000001", {"hook": {}})
    assert store.read("00000001")["hook"] is None
    assert len(list(tmp_path.iterdir())) == 1


def test_what_comes_together_is_written_once(tmp_path, monkeypatch):
    """A decision, its hook's report and its end make one file's writing; all of them are in it."""
    store = records.Store(tmp_path)
    written = []
    write = records._write
    monkeypatch.setattr(records, "_write", lambda *given: written.append(given) or write(*given))
    with store.together():
        store.put(record(1))
        store.change("00000001", {"hook": HOOK})
        store.end("00000001", 9.0)
        assert store.read("00000001")["ended"] == 9.0
    assert len(written) == 1
    found = records.Store(tmp_path).read("00000001")
    assert (found["hook"], found["ended"]) == (HOOK, 9.0)


def test_few_are_held_at_a_time(tmp_path):
    """A crowd of containers is written in pieces: each record may be a megabyte."""
    store = records.Store(tmp_path)
    with store.together():
        for number in range(100):
            store.put(record(number))
            assert len(store._held) <= records._MOST_HELD
        assert list(tmp_path.iterdir())
    assert len(list(tmp_path.iterdir())) == 100


def test_one_that_cannot_be_written_keeps_no_other_from_it(tmp_path):
    """The first error is raised at the end; what is not on the disk is not known either."""
    store = records.Store(tmp_path)
    path = store._path("00000001").with_suffix(".new")
    path.mkdir()

    def put_both():
        with store.together():
            store.put(record(1))
            store.put(record(2))

    with pytest.raises(OSError, match="directory"):
        put_both()
    path.rmdir()
    assert set(store.known) == {"00000002"}
    assert store.read("00000002")["id"] == "00000002"


def test_odd_ids_are_names_of_no_file(tmp_path):
    """An id may hold slashes, dots and bytes that are no text."""
    store = records.Store(tmp_path / "d")
    for odd in ("../../x", "a/b", "\udcff", "\ud800", "x" * 5000):
        store.put({**record(1), "id": odd})
        assert store.read(odd)["id"] == odd
    assert len(list((tmp_path / "d").iterdir())) == 5
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


def test_record_that_is_too_long_is_kept_without_its_edits(tmp_path):
    """What is too long to be read again would be lost as a whole."""
    store = records.Store(tmp_path)
    store.put({**record(1), "edits": {"env": {"A": "x" * (1 << 20)}}})
    assert store.read("00000001")["edits"] is None
    assert store.read("00000001")["decision"] == "inject"


def test_keys_of_a_record():
    """Programs read them; only new ones may come."""
    assert set(record(1)) >= {
        "schema", "id", "namespace", "pod", "name", "door", "time", "duration_ms", "missed", "rule",
        "ended", "decision", "reasons", "request", "gpus", "driver_version", "edits", "hook",
    }  # fmt: skip
