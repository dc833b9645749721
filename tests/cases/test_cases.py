# SPDX-License-Identifier: Apache-2.0
"""The recorded cases of NVIDIA's stack, run against the pipeline's stages."""

import json
import pathlib
import re

import attrs
import pytest

from nri_nvidia import errors, resolve
from nri_nvidia.config import load
from nri_nvidia.edits import devices, fabric
from nri_nvidia.host import model as host
from nri_nvidia.host import options, scan
from nri_nvidia.oci import bundle
from nri_nvidia.request import container as containers
from nri_nvidia.request import names, parse, policy, requirements
from tests.cases import classes

JETSON = pathlib.Path(__file__).parents[1] / "hosts/jetson-xavier"
CASES = {
    case["id"]: case
    for case in json.loads(
        pathlib.Path(__file__).with_name("nvidia-cases.json").read_text(encoding="utf-8")
    )["cases"]
    if case["category"] in classes.CATEGORIES
}
SET_ASIDE = {**classes.LATER, **classes.OTHER_MODE, **classes.INTERNAL, **classes.OTHERWISE}
NOW = {name: case for name, case in CASES.items() if name not in SET_ASIDE}

# What upstream's sentences are about, as our codes.
CODES = {
    "unsupported capabilities found": {"unsupported-capability"},
    "cannot set MIG_CONFIG_DEVICES": {"mig-management-unprivileged"},
    "cannot set MIG_MONITOR_DEVICES": {"mig-management-unprivileged"},
    "invalid CUDA version": {"invalid-cuda-version"},
    "vendor 'runtime.nvidia.com' is not supported": {"mixed-cdi-kinds"},
    "unsatisfied condition": {"requirement-not-met"},
    "invalid expression": {"invalid-requirement"},
    "invalid version string": {"invalid-requirement"},
    "too many requirements": {"too-many-requirements"},
    "only 'all' devices are currently supported": {"mig-management-not-all"},
    "cannot enable mig-config with specific MIG devices": {"mig-management-with-mig-device"},
    "invalid MIG capability path": {"mig-capability-missing"},
    "invalid channel ID": {"invalid-imex-channel"},
    "not found": {"imex-channel-missing"},
    "unsupported device id": {"no-such-gpu"},
    "unknown device": {"no-such-gpu", "no-such-mig-device", "volume-mounts-not-accepted"},
    "identifier is not a valid UUID or index": {"no-such-gpu"},
}


def rules(config):
    """Build the policy that a case's configuration means."""
    wanted = policy.RequestPolicy(
        accept_env_when_unprivileged=config.get("accept_envvar_unprivileged", True),
        accept_volume_mounts=config.get("accept_volume_mounts", False),
        disable_require=config.get("disable_require", False),
        annotation_prefixes=tuple(config.get("annotation_prefixes", ())),
        ignore_imex_channels=config.get("ignore_imex_channel_requests", False),
        swarm_resources=tuple(
            name.strip() for name in (config.get("swarm_resource") or "").split(",") if name
        ),
    )
    supported = config.get("supported_driver_capabilities")
    return (
        wanted
        if supported is None
        else attrs.evolve(wanted, supported_capabilities=supported_set(supported))
    )


def supported_set(text):
    """Read supported capabilities as the configuration file does."""
    toml = f"request.supported_capabilities = {json.dumps(text)}"
    return load.load([load.Text(name="case", toml=toml)]).request.supported_capabilities


def container(given):
    """Build the container of a case."""
    return containers.Container(
        env=tuple(f"{key}={value}" for key, value in given.get("env", {}).items()),
        mounts=tuple(containers.Mount(**mount) for mount in given.get("mounts", ())),
        annotations=given.get("annotations", {}),
        privileged=given.get("privileged"),
    )


def joined(capabilities):
    return ",".join(sorted(map(str, capabilities)))


def expect_error(expected, action):
    """Run an action that must be refused, for the reason upstream gives."""
    with pytest.raises(errors.Error) as caught:
        action()
    text = expected.get("error_contains") or expected.get("error")
    for sentence, codes in CODES.items():
        if isinstance(text, str) and sentence in text:
            assert caught.value.code in codes
            return
    assert text is True, f"no code of ours is named for {text!r}"


def read(given, config):
    parsed = parse.parse(container(given), rules(config))
    if parsed.error:
        raise parsed.error
    return parsed


def test_every_case_of_these_categories_has_one_class():
    """Each set-aside name exists, and none is set aside twice."""
    groups = (classes.LATER, classes.OTHER_MODE, classes.INTERNAL, classes.OTHERWISE)
    assert sum(map(len, groups)) == len(SET_ASIDE)
    assert set(SET_ASIDE) <= set(CASES)
    assert {case["category"] for case in NOW.values()} == set(classes.CATEGORIES)


def of(*categories):
    names = [name for name, case in NOW.items() if case["category"] in categories]
    assert names
    return pytest.mark.parametrize("name", names)


@of("request-resolution", "hook-config", "access-rules", "requirements-collection")
def test_request(name):
    """A container's channels, privileges and configuration give the recorded request."""
    given, expected = NOW[name]["input"], NOW[name]["expected"]
    if "oci_capabilities" in given:
        assert bundle.is_privileged(given["oci_capabilities"]) is expected["privileged"]
        return
    config = given.get("config", {})
    if "error" in expected:
        expect_error(expected, lambda: read(given, config))
        return
    request = parse.parse(container(given), rules(config)).request
    if "devices" in expected:
        assert (request is not None) == expected.get("gpu_container", bool(expected["devices"]))
        assert list(request.devices if request else ()) == expected["devices"]
    env = container(given).environment()
    legacy = parse.is_legacy_image(env)
    if "legacy_image" in expected:
        assert legacy is expected["legacy_image"]
    if "imex_channels" in expected:
        asked = parse.imex_channels(container(given), rules(config))
        assert list(asked) == expected["imex_channels"]
    if "requirements" in expected:
        disabled = rules(config).disable_require
        collected = requirements.collect(env, legacy=legacy, disabled=disabled)
        assert sorted(each.text for each in collected) == sorted(expected["requirements"])
    if "driver_capabilities" in expected:
        wanted = expected["driver_capabilities"]
        if wanted is not None and request:
            assert joined(request.capabilities) == wanted
    if "only_qualified_cdi" in expected:
        ids = request.devices if request else ()
        assert (bool(ids) and all(map(names.qualified, ids))) is expected["only_qualified_cdi"]


@of("driver-capabilities")
def test_capabilities(name):
    """NVIDIA_DRIVER_CAPABILITIES against what is supported gives the recorded set."""
    given, expected = NOW[name]["input"], NOW[name]["expected"]
    config = given.get("config", {})
    if "supported" in expected:
        assert joined(rules(config).supported_capabilities) == expected["supported"]
        return

    def chosen():
        return parse.capabilities(given["env"], rules(config), legacy=given["legacy_image"])

    if "error" not in expected:
        assert joined(chosen()) == expected["capabilities"]
    elif "not-" in config["supported_driver_capabilities"]:
        # Upstream fails every container at that point; here the file is refused when it is read.
        with pytest.raises(errors.ConfigError, match="not-compute, not-utility"):
            chosen()
    else:
        expect_error(expected, chosen)


@of("cuda-version")
def test_cuda_version(name):
    """CUDA_VERSION of an old image implies the recorded requirement or is refused."""
    given, expected = NOW[name]["input"], NOW[name]["expected"]
    if "error_contains" in expected:
        expect_error(expected, lambda: read(given, {}))
        return
    version = given["env"]["CUDA_VERSION"]
    assert f"cuda>={requirements.cuda_version(version)}" == expected["implied_requirement"]


def node(path, minor, major=195):
    return host.DeviceNode(path=path, host_path=path, major=major, minor=minor)


def inventory(given):
    """Build the host of a device-selection case; one for a Jetson is recorded."""
    if given.get("tegra"):
        assert given["devices"] == 1
        return scan.scan(options.Options.for_recorded(str(JETSON)))
    gpus = tuple(
        host.Gpu(
            index=gpu["index"],
            uuid=gpu["uuid"],
            minor=gpu["minor"],
            bus_id=gpu["busid"],
            node=node(f"/dev/nvidia{gpu['minor']}", gpu["minor"]),
            mig_enabled=gpu.get("mig_enabled", False),
            mig_devices=tuple(
                host.MigDevice(index=m["mig_index"], uuid=m["uuid"], gi=m["gi"], ci=m["ci"])
                for m in gpu.get("mig", ())
            ),
        )
        for gpu in given["gpus"]
    )
    minors = (line.split(" ") for line in given.get("mig_minors", ()))
    return host.Inventory(
        driver_version="550.163.01",
        hardware=bool(gpus),
        gpus=gpus,
        nvml_state="ok",
        control=host.ControlNodes(ctl=node("/dev/nvidiactl", 255)),
        caps_nodes=tuple(
            (cap, node(f"/dev/nvidia-caps/nvidia-cap{minor}", int(minor), 508))
            for cap, minor in minors
        ),
    )


@of("device-selection")
def test_device_selection(name):
    """An id means the recorded node, MIG capabilities included, or is refused."""
    given, expected = NOW[name]["input"], NOW[name]["expected"]
    # The variable that belongs to a case about MIG management is in its note alone.
    env = [f"NVIDIA_VISIBLE_DEVICES={','.join(given['request'])}"]
    env += re.findall(r"NVIDIA_MIG_CONFIG_DEVICES=\w+", NOW[name].get("note", ""))
    env.append("NVIDIA_DRIVER_CAPABILITIES=utility")
    shown = containers.Container(env=tuple(env), privileged=True)

    def chosen():
        found = inventory(given["host"])
        parsed = parse.parse(shown, policy.RequestPolicy())
        if parsed.error:
            raise parsed.error
        allocation = resolve.resolve(parsed.request, found)
        nodes = devices.build(parsed.request.capabilities, allocation, found, ())
        return nodes.merged(fabric.build(parsed.request, allocation, found, shown)[0])

    if "error" in expected or "error_contains" in expected:
        expect_error(expected, chosen)
        return
    paths = sorted(device.path for device in chosen().devices)
    # Of what legacy binds for MIG management, the tree in /proc and the directory are there anyhow.
    extra = {path for path in expected.get("extra", ()) if "(" not in path}
    assert extra <= set(paths)
    if extra:
        return
    if given["host"].get("tegra"):
        assert paths == expected["devices"]
        return
    gpu_nodes = [path for path in paths if path[len("/dev/nvidia") :].isdigit()]
    assert gpu_nodes == expected["gpu_nodes"]
    if "cap_nodes" in expected:
        assert [p for p in paths if "nvidia-cap" in p] == expected["cap_nodes"]
