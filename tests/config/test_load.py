# SPDX-License-Identifier: Apache-2.0
"""Settings from TOML."""

import pytest

from nri_nvidia.config import lines, load, model

BAD = """\
# a comment
[nri]
index = 10
[host]
drivr_root = "/x"
nvml_timeout = 0
dev_root = "dev"
library_search_paths = [
  "/a",
  3,
]
[request]
supported_capabilities = ["compute",
  "foo"]
[bogus]
a = 1
[hook]
steps = ["x"]
on_error = "maybe"
"""


def test_every_fault_is_reported_at_once_with_its_line():
    """One reading shows all that is wrong: file, line, key and what."""
    with pytest.raises(model.Invalid) as caught:
        load.load([load.Text(name="c.toml", toml=BAD)])
    heads = [fault.split(": ")[:2] for fault in caught.value.faults]
    assert heads == [
        ["c.toml:3", "nri.index"],
        ["c.toml:5", "host.drivr_root"],
        ["c.toml:6", "host.nvml_timeout"],
        ["c.toml:7", "host.dev_root"],
        ["c.toml:8", "host.library_search_paths"],
        ["c.toml:13", "request.supported_capabilities"],
        ["c.toml:15", "bogus"],
        ["c.toml:18", "hook.steps"],
        ["c.toml:19", "hook.on_error"],
    ]
    assert "did you mean driver_root?" in caught.value.faults[1]


def test_later_text_wins_key_by_key():
    """File, runtime and command line are laid over each other, not exchanged."""
    low = load.Text(name="file", toml='host.driver_root = "/a"\nhost.dev_root = "/b"')
    high = load.Text(name="line", toml='host.driver_root = "/c"')
    config = load.load([low, high])
    assert (config.host.driver_root, config.host.dev_root) == ("/c", "/b")


def test_empty_text_is_the_defaults():
    """Every key is optional."""
    assert load.load([load.Text(name="x", toml="")]) == model.Config()


@pytest.mark.parametrize("toml", ["[", "host = 3", "nri.index = true", "hook.timeout = 1.5"])
def test_wrong_form_names_the_source(toml):
    """What is not TOML or has another type is refused, naming where it stands."""
    with pytest.raises(model.Invalid, match=r"^the runtime"):
        load.load([load.Text(name="the runtime", toml=toml)])


def test_missing_file_is_said(tmp_path):
    """A file that was named and is not there is an error, not the defaults."""
    with pytest.raises(model.Invalid, match="No such file"):
        load.read(str(tmp_path / "none.toml"))


def test_line_of_a_key_in_any_form():
    """Dotted keys, tables, arrays of tables and values over several lines are found."""
    text = 'a.b = 1\n\n[t]\nx = [\n 1,\n]\ny = """\nq = 2\n"""\n[[r]]\nk = 1\n[[r]]\nk = 2\n'
    assert lines.Lines(text).of(("a", "b")) == 1
    assert lines.Lines(text).of(("t", "x")) == 4
    assert lines.Lines(text).of(("t", "y")) == 7
    assert lines.Lines(text).of(("r", "1", "k")) == 13
    assert lines.Lines(text).of(("t", "absent")) == 3


@pytest.mark.parametrize(
    "toml",
    [
        'inject.env = ["A"]',
        'inject.env = ["=b"]',
        'inject.env = ["NVIDIA_VISIBLE_DEVICES=all"]',
        'inject.cuda_compat = "yes"',
        'inject.cuda_compat_dir = "compat"',
        'inject.cuda_compat_dir = "/opt/my compat"',
        'inject.library_dir = "/usr/local/../nvidia"',
        'inject.library_dir = "/"',
        'request.annotation_prefixes = "cdi.k8s.io/"',
        "request.accept_pod_annotations = 1",
    ],
)
def test_values_that_would_fail_in_each_container(toml):
    """What no container could be given is refused when it is read, with its line and key."""
    with pytest.raises(model.Invalid) as caught:
        load.load([load.Text(name="c.toml", toml=toml)])
    (fault,) = caught.value.faults
    assert fault.startswith(f"c.toml:1: {toml.partition(' = ')[0]}: ")


def test_settings_of_requests_reach_the_decision():
    """Each key of what is read of a container is one of the rules by which it is read."""
    toml = """
    [request]
    annotation_prefixes = ["my.example/"]
    accept_pod_annotations = true
    management_namespaces = ["gpu-system"]
    swarm_resources = ["DOCKER_RESOURCE_GPU"]
    disable_require = true
    [inject]
    cuda_compat = "always"
    cuda_compat_dir = "/opt/compat/"
    env = ["CUDA_DEVICE_ORDER=PCI_BUS_ID"]
    """
    rules = load.load([load.Text(name="c", toml=toml)]).rules(interpreter="/usr/bin/python3")
    asked = rules.request
    assert (asked.annotation_prefixes, asked.management_namespaces, asked.swarm_resources) == (
        ("my.example/",), ("gpu-system",), ("DOCKER_RESOURCE_GPU",),
    )  # fmt: skip
    assert (asked.accept_pod_annotations, asked.disable_require) == (True, True)
    assert (rules.inject.cuda_compat, rules.inject.cuda_compat_dir) == ("always", "/opt/compat")
    assert rules.inject.env == ("CUDA_DEVICE_ORDER=PCI_BUS_ID",)


def test_fault_hides_no_contradiction():
    """Both are told at once, and nothing is concluded from a value that is at fault itself."""
    hook = "[host]\nnvml_timeout = 'ten'\n[hook]\ntimeout = 2\nldconfig_timeout = 5\n"
    with pytest.raises(model.Invalid) as raised:
        load.load([load.Text(name="x", toml=hook)])
    first, second = raised.value.faults
    assert first.startswith("x:2: host.nvml_timeout: ")
    assert second.startswith(("x:4: hook.timeout: ", "x:5: hook.ldconfig_timeout: "))
    with pytest.raises(model.Invalid) as raised:
        load.load([load.Text(name="x", toml="[hook]\ntimeout = 'two'\nldconfig_timeout = 50\n")])
    assert len(raised.value.faults) == 1


def test_option_has_no_line():
    """What is wrong with an option is said of the option."""
    with pytest.raises(model.Invalid, match=r"^--index: nri.index: 'x' is not two digits"):
        load.load([load.Text(name="--index", toml='nri.index = "x"', lined=False)])
