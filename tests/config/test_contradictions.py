# SPDX-License-Identifier: Apache-2.0
"""Settings that cannot be meant together are faults like any other."""

import pytest

from nri_nvidia.config import contradictions, load, model


def faults(*texts):
    with pytest.raises(model.Invalid) as raised:
        load.load(load.Text(name=f"f{n}", toml=toml) for n, toml in enumerate(texts))
    return raised.value.faults


def test_defaults_hold_none():
    """A node without settings has no fault."""
    assert [*contradictions.find(model.Config())] == []


@pytest.mark.parametrize(
    ("toml", "place", "said"),
    [
        (
            '[request]\nsupported_capabilities = "utility"\ndefault_capabilities = "compute"\n',
            "f0:3: request.default_capabilities: compute is not among",
            "utility",
        ),
        ("[hook]\nldconfig_timeout = 30\n", "f0:2: hook.ldconfig_timeout: ", "10 s"),
        ("[hook]\ntimeout = 2\n", "f0:2: hook.timeout: ldconfig may take 5 s", "2 s"),
        ("[hook]\ntimeout = 600\n", "f0:2: hook.timeout: ", "kubelet"),
        ('[control]\nsocket = "/var/run/nri/nri.sock"\n', "f0:2: control.socket: ", "nri.socket"),
        (
            '[inject]\nvolume_dir = "/run/nri-nvidia/hook/volumes"\n',
            "f0:2: inject.volume_dir: ",
            "hook.directory",
        ),
        ('[inject]\nlibrary_dir = "/proc/nvidia"\n', "f0:2: inject.library_dir: ", "/proc/nvidia"),
    ],
)
def test_contradiction_is_a_fault_with_its_line(toml, place, said):
    """It stands at the first of its keys that was set, and says what the other is."""
    (fault,) = faults(toml)
    assert fault.startswith(place)
    assert said in fault


def test_contradiction_between_two_sources():
    """Each source is right for itself; the key that was set is named."""
    (fault,) = faults("[hook]\ntimeout = 20\n", "[hook]\nldconfig_timeout = 30\n")
    assert fault.startswith("f1:2: hook.ldconfig_timeout: ")


def test_supported_capabilities_alone_narrow_the_default():
    """The default set is not something that anybody wrote."""
    load.load([load.Text(name="f", toml='[request]\nsupported_capabilities = "utility"\n')])


def test_origins():
    """Each setting has the place of the source that won; the rest are defaults."""
    found = load.trace(
        [
            load.Text(name="f", toml='[nri]\nname = "a"\nindex = "20"\n'),
            load.Text(name="--name", toml='nri.name = "b"', lined=False),
        ]
    )
    assert found.origins == {"nri.name": "--name", "nri.index": "f:3"}
    assert (found.config.nri.name, found.config.nri.index) == ("b", "20")
