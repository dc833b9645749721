# SPDX-License-Identifier: Apache-2.0
"""Every kind of specification that we write, held against the CDI project's own JSON schema.

The schema takes keys that it does not know; so these are asked for besides.
"""

import json
from pathlib import Path

import jsonschema
import pytest
import referencing
import referencing.jsonschema

from nri_nvidia import errors, pipeline
from nri_nvidia.config import load
from nri_nvidia.edits import model as edit_model
from nri_nvidia.host import cache
from nri_nvidia.host import options as host_options
from nri_nvidia.render import cdi, cdiform, cdispec
from nri_nvidia.testing import host as simulated
from nri_nvidia.testing import host_spec

HERE = Path(__file__).parent
HOSTS = HERE.parent / "hosts"
SCHEMA = HERE / "cdi-schema"
REFUSED = ("no-cdi-device", "host-not-ready")
BARE = {"no-gpu", "debian-module-unloaded", "debian-mismatch"}
"""Hosts of which there is no specification: no driver, or one that is not all there."""
BEYOND = {"DeviceNode": {"fileMode"}}
"""SPEC.md has it, and the schema has not."""
RULES = {
    "": pipeline.Policy(),
    "volume": load.load(
        [load.Text(name="volume", toml='inject.layout = "volume"\ninject.env = ["A=b"]\n')]
    ).rules(interpreter="/usr/bin/python3"),
    "compat": load.load(
        [load.Text(name="compat", toml='inject.cuda_compat = "always"\nhost.preset = "generic"\n')]
    ).rules(interpreter="/usr/bin/python3"),
    "without compat": load.load(
        [load.Text(name="never", toml='inject.cuda_compat = "never"\n')]
    ).rules(interpreter="/usr/bin/python3"),
    "without a hook": load.load([load.Text(name="bare", toml="hook.enabled = false\n")]).rules(
        interpreter="/usr/bin/python3"
    ),
}


@pytest.fixture(scope="session")
def definitions():
    return json.loads((SCHEMA / "defs.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def schema(definitions):
    """The project's own, from the files as they are."""
    resource = referencing.Resource.from_contents(definitions, referencing.jsonschema.DRAFT7)
    registry = referencing.Registry().with_resource("defs.json", resource)
    document = json.loads((SCHEMA / "schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft7Validator.check_schema(document)
    return jsonschema.Draft7Validator(document, registry=registry)


@pytest.fixture
def fits(schema, definitions):
    """Hold a specification against the schema, its keys, and our own judgement."""

    def known(name):
        return {*definitions["definitions"][name]["properties"], *BEYOND.get(name, ())}

    def hold(document):
        schema.validate(document)
        assert {*document} <= {*schema.schema["properties"]}
        for each in (document, *document["devices"]):
            edits = each.get("containerEdits", {})
            assert {*edits} <= known("containerEdits")
            assert all(isinstance(each, str) for each in edits.get("env", ()))
            for member, name in (
                ("deviceNodes", "DeviceNode"),
                ("mounts", "Mount"),
                ("hooks", "Hook"),
            ):
                for entry in edits.get(member, ()):
                    assert {*entry} <= known(name)
        assert cdiform.faults(document) == []
        assert document["cdiVersion"] == cdi.lowest(document)

    return hold


def made(options, rules):
    """Give every specification that a host has, by kind."""
    host = cache.Cache(options)
    host.refresh_nvml()
    found = {}
    for kind in cdispec.CLASSES:
        try:
            found[kind] = cdispec.make(kind, host.get(), rules).document
        except errors.HostError as error:
            if error.code not in REFUSED:
                raise
    return found


@pytest.mark.parametrize("host", sorted(each.name for each in HOSTS.iterdir()))
@pytest.mark.parametrize("rules", RULES)
def test_recorded_hosts(host, rules, fits):
    """Whatever the host is, and in whichever way containers get their files."""
    options = host_options.Options.for_recorded(str(HOSTS / host))
    found = made(options, RULES[rules])
    assert ("gpu" in found) is (host not in BARE)
    for document in found.values():
        fits(document)


ALL_THERE = host_spec.HostSpec(
    gpus=(
        host_spec.GpuSpec(mig_enabled=True, mig=(host_spec.MigSpec(gi=1), host_spec.MigSpec(gi=2))),
        host_spec.GpuSpec(),
    ),
    groups=host_spec.GROUPS, imex_channels=(0, 7), drm=True, graphics=True, compat32=True,
    layout="ubuntu", recorded=True,
)  # fmt: skip


@pytest.mark.parametrize("rules", RULES)
def test_a_host_that_has_everything(rules, fits, tmp_path):
    """Each kind of ours is written: GPUs, MIG devices, graphics, 32 bit, groups and channels."""
    simulated.build(tmp_path, ALL_THERE)
    found = made(host_options.Options.for_recorded(str(tmp_path)), RULES[rules])
    assert set(found) == set(cdispec.CLASSES)
    for document in found.values():
        fits(document)
    names = [device["name"] for device in found["gpu"]["devices"]]
    assert {"all", "0:0", "0:1", "1"} < set(names)
    assert sum(name.startswith("MIG-") for name in names) == 2
    places = [each["containerPath"] for each in found["gpu"]["containerEdits"]["mounts"]]
    assert any("/lib32/" in each for each in places)
    assert any("vulkan" in each for each in places)


@pytest.mark.parametrize(
    ("name", "edits", "version"),
    [
        ("all", {"env": (("A", "b"),)}, "0.3.0"),
        ("all", {"mounts": (edit_model.MountEdit(source="/a", destination="/b"),)}, "0.4.0"),
        ("0", {"env": (("A", "b"),)}, "0.5.0"),
        (
            "all",
            {
                "devices": (
                    edit_model.DeviceEdit(path="/dev/a", host_path="/x/a", major=1, minor=1),
                )
            },
            "0.5.0",
        ),
    ],
)
def test_each_version_that_is_written(name, edits, version, fits):
    """The lowest that knows all: old engines are to read it, and a lower one is refused by new."""
    document = cdi.document({name: edit_model.ContainerEdits(**edits)})
    assert document["cdiVersion"] == version
    fits(document)
    lower = cdi.VERSIONS[: cdi.VERSIONS.index(version)]
    for each in lower:
        assert cdiform.faults({**document, "cdiVersion": each}) == [
            f"cdiVersion {each}: what it uses needs {version}"
        ]


@pytest.mark.parametrize(
    "changes",
    [
        {"devices": [{"name": "0"}]},
        {"kind": 1},
        {"containerEdits": {"mounts": [{"hostPath": "/a"}]}},
        {"containerEdits": {"deviceNodes": [{"path": "/a", "major": "1"}]}},
        {"containerEdits": {"hooks": [{"hookName": "prestart"}]}},
    ],
)
def test_the_schema_is_in_force(changes, schema):
    """What it is to find it finds; else all above would mean nothing."""
    document = cdi.document({"0": edit_model.ContainerEdits(env=(("A", "b"),))})
    schema.validate(document)
    with pytest.raises(jsonschema.ValidationError):
        schema.validate({**document, **changes})
    assert cdiform.faults({**document, **changes})
