# SPDX-License-Identifier: Apache-2.0
"""Files of CDI specifications: found, written at once, held against the host."""

import json
import os
import stat

import pytest

from nri_nvidia import errors
from nri_nvidia.oci import cdifiles

DEVICE = {"name": "0", "containerEdits": {"env": ["A=b"]}}
SPEC = {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [DEVICE]}


def test_files_are_found_as_engines_find_them(tmp_path):
    """In the directories' order, by their suffix; what cannot be read says why."""
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir()
    second.mkdir()
    (first / "z.json").write_text(json.dumps(SPEC))
    (first / "b.yaml").write_text("cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n")
    (first / "a.json").write_text("{")
    (first / "no.txt").write_text("{}")
    (second / "c.json").write_text(json.dumps({**SPEC, "kind": "x"}))
    files = cdifiles.found([str(first), str(tmp_path / "none"), str(second)])
    assert [os.path.basename(file.path) for file in files] == [
        "a.json",
        "b.yaml",
        "z.json",
        "c.json",
    ]
    assert [bool(file.fault) for file in files] == [True, True, False, True]
    assert files[1].kind == "nvidia.com/gpu"
    assert files[2].names == ("nvidia.com/gpu=0",)
    assert cdifiles.rivals(files[2], files) == (str(first / "b.yaml"),)


def test_a_file_is_written_at_once_and_only_if_it_differs(tmp_path):
    """Readable by all, whatever the umask; the directory is made."""
    path = tmp_path / "new/cdi/x.json"
    before = os.umask(0o077)
    try:
        assert cdifiles.write(str(path), SPEC)
    finally:
        os.umask(before)
    assert json.loads(path.read_text()) == SPEC
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o755
    inode = path.stat().st_ino
    assert not cdifiles.write(str(path), SPEC)
    assert path.stat().st_ino == inode
    assert cdifiles.write(str(path), {**SPEC, "kind": "a.com/b"})
    assert os.listdir(path.parent) == ["x.json"]
    assert cdifiles.remove(str(path))
    assert not cdifiles.remove(str(path))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('{"kind": "a.com/b", "kind": "a.com/c"}', "not JSON: 'kind' is there twice"),
        ('{"devices": [{"name": "0", "name": "1"}]}', "not JSON: 'name' is there twice"),
        ("[" * 100_000, "not JSON: "),
        ("1" * 5000, "not JSON: "),
        (b"\xff", "cannot be read: not text in UTF-8"),
        (None, "cannot be read: a pipe to which nobody wrote"),
        (".", "cannot be read: Is a directory"),
        ("gone", "cannot be read: No such file"),
    ],
)
def test_what_is_no_specification(tmp_path, text, fault):
    """It is told, and nothing is waited for."""
    path = tmp_path / "x.json"
    if text is None:
        os.mkfifo(path)
    elif text in {".", "gone"}:
        path.symlink_to(text)
    else:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    (found,) = cdifiles.found([str(tmp_path)])
    assert found.fault.startswith(fault)


@pytest.mark.parametrize("path", ["/\ud800", "/a\0b"])
def test_what_can_be_no_path(path):
    """It is not on this host."""
    edits = {
        "mounts": [{"hostPath": path, "containerPath": "/a"}],
        "deviceNodes": [{"path": f"{path}d"}],
        "hooks": [{"hookName": "prestart", "path": f"{path}h"}],
    }
    found = list(cdifiles.missing({**SPEC, "containerEdits": edits}))
    assert found == [
        f"{path} is not on this host",
        f"{path}d is not on this host",
        f"the hook's {path}h is not on this host",
    ]


def test_what_cannot_be_written_is_named(tmp_path):
    """And nothing is left beside it."""
    (tmp_path / "x.json").mkdir()
    with pytest.raises(errors.HostError, match=r"x\.json cannot be written"):
        cdifiles.write(str(tmp_path / "x.json"), SPEC)
    assert os.listdir(tmp_path) == ["x.json"]


def test_what_the_host_has_not_is_told_once(tmp_path):
    """Files, nodes by their numbers, and what a hook needs."""
    there = tmp_path / "there"
    there.touch()
    node = tmp_path / "node"
    os.mknod(node, 0o600 | stat.S_IFCHR, os.makedev(195, 7))
    edits = {
        "mounts": [{"hostPath": str(there)}, {"hostPath": "/no/lib"}, {"hostPath": "/no/lib"}],
        "deviceNodes": [
            {"path": "/dev/x", "hostPath": str(node), "major": 195, "minor": 7},
            {"path": str(node), "major": 195, "minor": 8},
            {"path": str(there), "type": "c"},
            {"path": "/no/node"},
        ],
        "hooks": [
            {
                "hookName": "createContainer",
                "path": "/no/python",
                "args": ["p", "-I", "-S", "/no/hook"],
            }
        ],
    }
    document = {"containerEdits": edits, "devices": [{"name": "0", "containerEdits": edits}]}
    assert list(cdifiles.missing(document)) == [
        "/no/lib is not on this host",
        f"{node} is 195:7 on this host, not 195:8",
        f"{there} is no character device",
        "/no/node is not on this host",
        "the hook's /no/python is not on this host",
        "the hook's /no/hook is not on this host",
    ]
