# SPDX-License-Identifier: Apache-2.0
"""A bundle's config.json through the program that asks: changed as a whole, or left and refused."""

import json
import os
import pathlib
import tempfile
from unittest import mock

from nri_nvidia import errors, pipeline
from nri_nvidia.daemon import runtimedoor
from nri_nvidia.oci import client, document
from nri_nvidia.render import oci
from tests import inventories

HOST = inventories.with_gpus(inventories.gpu(0), inventories.gpu(1))
SPEC = {
    "ociVersion": "1.0.2", "root": {"path": "rootfs"}, "unknown": [1.0, -0.0, 1e300, {"x": None}],
    "process": {
        "env": ["A=b", "NVIDIA_VISIBLE_DEVICES=0"], "cwd": "/", "args": ["x"],
        "capabilities": {"bounding": ["CAP_X"]},
    },
    "mounts": [{"destination": "/a", "source": "/b", "options": ["ro"]}],
    "hooks": {"prestart": [{"path": "/x", "args": ["y"]}], "createContainer": []},
    "annotations": {"io.kubernetes.cri.container-name": "c", "a": "b"},
    "linux": {
        "devices": [{"path": "/dev/x", "type": "c", "major": 1, "minor": 2}],
        "cgroupsPath": "/a", "namespaces": [{"type": "user"}], "seccomp": {"x": [1]},
        "resources": {"devices": [{"allow": True, "access": "rwm"}], "memory": {"limit": 1}},
    },
}  # fmt: skip
EDITED = {"process": {"env"}, "linux": {"devices", "resources"}}
EDITED_TOP = {"process", "linux", "mounts", "hooks"}


def answer(_, question):
    """Give what a daemon would, with nothing between."""
    try:
        shown = runtimedoor._question(json.dumps(question).encode())
        container = runtimedoor._container(shown, runtimedoor.Caller(pid=1, uid=0))
        plan = pipeline.plan(container, HOST, pipeline.Policy())
    except errors.Error as error:
        return {"message": str(error)}
    if not plan.created:
        return {"message": str(plan.refusal())}
    return {"patch": oci.document(plan.edits) if plan.edits else {}}


def kept(spec):
    """Give what of a spec is not ours to edit, with every number as it was written."""
    rest = {key: value for key, value in spec.items() if key not in EDITED_TOP}
    for part, edited in EDITED.items():
        inner = spec.get(part) or {}
        rest[part] = {key: value for key, value in inner.items() if key not in edited}
    return rest


def read(data):
    """Read JSON with its numbers as texts."""
    return json.loads(data, parse_float=str, parse_int=str)


def prepared(data):
    """Have it changed by the program; raises for what is not promised."""
    with tempfile.TemporaryDirectory() as place, mock.patch.object(client, "ask", answer):
        path = pathlib.Path(place, "config.json")
        path.write_bytes(data)
        try:
            client.prepare(place, str(path), "id", ["create", "id"])
            refused = False
        except document.Refused:
            refused = True
        assert os.listdir(place) == ["config.json"]
        after = path.read_bytes()
    assert after == data or not refused
    if after != data:
        assert kept(read(after)) == kept(read(data))
        assert client.served(json.loads(after))
