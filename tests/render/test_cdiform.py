# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a CDI specification, as engines judge it."""

import pytest

from nri_nvidia.render import cdiform

DEVICE = {"name": "a", "containerEdits": {"env": ["A=b"]}}
GOOD = {"cdiVersion": "0.5.0", "kind": "vendor.com/x", "devices": [DEVICE]}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"cdiVersion": "9"}, "cdiVersion '9' is none of"),
        ({"kind": "x"}, "kind 'x' is not like"),
        ({"devices": []}, "no list of devices"),
        ({"devices": [DEVICE, DEVICE]}, "a is there twice"),
        ({"devices": [{**DEVICE, "name": "-"}]}, "'-' is no name"),
        ({"devices": [1]}, "None is no name"),
        ({"devices": [{"name": "a", "containerEdits": {}}]}, "device a: it has no edits"),
        ({"devices": [{"name": "a"}]}, "its edits are not an object"),
        ({"containerEdits": {"env": ["A"]}}, "env is not a list of KEY=VALUE"),
        ({"containerEdits": {"env": ["=a"]}}, "env is not a list of KEY=VALUE"),
        ({"hooks": []}, "'hooks' is no key of CDI's"),
        ({"devices": [{**DEVICE, "edits": {}}]}, "device a: 'edits' is no key"),
        ({"containerEdits": {"devices": []}}, "containerEdits: 'devices' is no key"),
        ({"containerEdits": {"mounts": [{"source": "/a"}]}}, "mounts[0]: 'source' is no key"),
        ({"containerEdits": {"mounts": 1}}, "mounts is not a list"),
        ({"containerEdits": {"mounts": [{"hostPath": "/a"}]}}, "mounts[0]: containerPath is missing"),
        ({"containerEdits": {"hooks": [{"hookName": "x", "path": "/p", "args": "a"}]}},
         "hooks[0]: args is not a list of texts"),
        ({"containerEdits": {"deviceNodes": [{"path": "/a", "major": "1"}]}},
         "deviceNodes[0]: major is not a whole number"),
        ({"containerEdits": {"deviceNodes": [{"path": "/a", "type": "x"}]}},
         "deviceNodes[0]: type is not a type of a node"),
        ({"containerEdits": {"deviceNodes": [{"path": "/a", "permissions": "rx"}]}},
         "permissions is not a combination of r, w, m"),
        ({"containerEdits": {"hooks": [{"hookName": "later", "path": "/p"}]}},
         "hookName is not a stage: prestart,"),
        ({"cdiVersion": "0.4.0", "devices": [{**DEVICE, "name": "0"}]}, "what it uses needs 0.5.0"),
        ({"annotations": {"a": "b"}}, "what it uses needs 0.6.0"),
        ({"kind": "vendor.com/a.b"}, "what it uses needs 0.6.0"),
        ({"containerEdits": {"additionalGids": [1]}}, "what it uses needs 0.7.0"),
        ({"containerEdits": {"netDevices": [{"hostInterfaceName": "a", "name": "b"}]}},
         "what it uses needs 1.1.0"),
        ({"containerEdits": {"deviceNodes": [1]}}, "deviceNodes[0]: not an object"),
        ({"containerEdits": {"intelRdt": {}}}, "what it uses needs 0.7.0"),
        ({"containerEdits": {"intelRdt": {"schemata": ["a"]}}}, "what it uses needs 1.1.0"),
        ({"containerEdits": {"mounts": [{"hostPath": "/a", "containerPath": None}]}},
         "mounts[0]: containerPath is missing"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_one_is_said(changes, told):
    """Each fault with its place."""
    assert cdiform.faults(GOOD) == []
    assert told in "; ".join(cdiform.faults({**GOOD, **changes}))


@pytest.mark.parametrize(
    "changes",
    [
        {"containerEdits": None, "annotations": None},
        {"containerEdits": {"env": None, "mounts": None, "intelRdt": None}},
        {"containerEdits": {"mounts": [{"hostPath": "/a", "containerPath": "/b", "options": None}]}},
        {"cdiVersion": "0.7.0",
         "containerEdits": {"intelRdt": {"schemata": None, "enableMonitoring": False}}},
        {"cdiVersion": "v0.5.0"},
    ],
)  # fmt: skip
def test_null_is_nothing(changes):
    """As to engines; a version may have a v before it."""
    assert cdiform.faults({**GOOD, **changes}) == []
