# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's file of settings, taken over."""

import pytest

from nri_nvidia.config import example, load, model, toolkit

# What the toolkit writes when it is installed, without its comments.
USUAL = """
disable-require = false
supported-driver-capabilities = "compat32,compute,display,graphics,ngx,utility,video"
[nvidia-container-cli]
environment = []
ldconfig = "@/sbin/ldconfig"
load-kmods = true
[nvidia-container-runtime]
log-level = "info"
mode = "auto"
runtimes = ["runc", "crun"]
[nvidia-container-runtime.modes.cdi]
annotation-prefixes = ["cdi.k8s.io/"]
default-kind = "nvidia.com/gpu"
spec-dirs = ["/etc/cdi", "/var/run/cdi"]
[nvidia-container-runtime.modes.csv]
mount-spec-path = "/etc/nvidia-container-runtime/host-files-for-container.d"
[nvidia-container-runtime.modes.legacy]
cuda-compat-mode = "ldconfig"
[nvidia-container-runtime-hook]
path = "nvidia-container-runtime-hook"
skip-mode-detection = false
[nvidia-ctk]
path = "nvidia-ctk"
"""


def read(toml):
    return toolkit.read(load.Text(name="config.toml", toml=toml))


def test_usual_file():
    """What differs from our defaults is set; each key is either taken or named with a reason."""
    found = read(USUAL)
    config = load.load([load.Text(name="ours", toml=toolkit.toml(found.settings))])
    assert config.host.load_modules
    assert config.inject.cuda_compat == "always"
    assert config.request == model.Request()
    assert {left.key for left in found.left} == {
        "nvidia-container-cli.environment",
        "nvidia-container-runtime.modes.cdi.default-kind",
        "nvidia-container-runtime.modes.cdi.spec-dirs",
        "nvidia-container-runtime.modes.csv.mount-spec-path",
        "nvidia-container-runtime-hook.path",
        "nvidia-container-runtime-hook.skip-mode-detection",
        "nvidia-ctk.path",
    }
    assert all(left.reason for left in found.left)


@pytest.mark.parametrize(
    ("theirs", "key", "value"),
    [
        ("accept-nvidia-visible-devices-envvar-when-unprivileged = false",
         "request.accept_env_when_unprivileged", False),
        ("accept-nvidia-visible-devices-as-volume-mounts = true",
         "request.accept_volume_mounts", True),
        ('supported-driver-capabilities = "compute, utility"',
         "request.supported_capabilities", ["compute", "utility"]),
        ("disable-require = true", "request.disable_require", True),
        ('swarm-resource = "DOCKER_RESOURCE_GPU"',
         "request.swarm_resources", ["DOCKER_RESOURCE_GPU"]),
        ('nvidia-container-cli.root = "/run/nvidia/driver"',
         "host.driver_root", "/run/nvidia/driver"),
        ('nvidia-container-cli.ldconfig = "@/opt/ldconfig"', "hook.ldconfig", "/opt/ldconfig"),
        ("nvidia-container-cli.load-kmods = false", "host.load_modules", False),
        ('nvidia-container-runtime.mode = "csv"', "host.preset", "jetson"),
        ('nvidia-container-runtime.log-level = "warn"', "log.level", "warning"),
        ('nvidia-container-runtime.modes.legacy.cuda-compat-mode = "disabled"',
         "inject.cuda_compat", "never"),
        ('nvidia-container-runtime.modes.cdi.annotation-prefixes = ["x.io/"]',
         "request.annotation_prefixes", ["x.io/"]),
        ("features.disable-cuda-compat-lib-hook = true", "inject.cuda_compat", "never"),
        ("features.ignore-imex-channel-requests = true", "request.ignore_imex_channels", True),
    ],
)  # fmt: skip
def test_key_with_a_counterpart(theirs, key, value):
    """It is taken, and nothing besides; the file that is written with it can be read."""
    found = read(theirs)
    assert (dict(found.settings), found.left) == ({key: value}, ())
    written = example.text(found.settings)
    load.load([load.Text(name="written", toml=written)])
    assert written != example.text()


@pytest.mark.parametrize(
    ("theirs", "reason"),
    [
        ('nvidia-container-cli.ldconfig = "/sbin/ldconfig"', "never run: only the host's"),
        ("nvidia-container-cli.no-cgroups = true", "in the container's specification"),
        ('nvidia-container-runtime.mode = "cdi"', "served in one way"),
        ('nvidia-container-runtime.runtimes = ["/opt/kata"]', "/etc/nri-nvidia/runtime"),
        ('supported-driver-capabilities = "compute,dancing"', "no such capability"),
        ('disable-require = "perhaps"', "is not true or false"),
        ("made-up = 1", "no key of NVIDIA's"),
    ],
)
def test_key_without_a_counterpart_is_named(theirs, reason):
    """Nothing is set, and the line says what was there and why it is not here."""
    found = read(theirs)
    assert found.settings == {}
    (left,) = found.left
    assert reason in left.reason
    assert str(left).startswith(theirs.partition(" = ")[0])


def test_file_that_is_no_toml_is_refused():
    """It is an error that names the file."""
    with pytest.raises(model.Invalid, match=r"config\.toml: not valid TOML"):
        read("disable-require = ")
