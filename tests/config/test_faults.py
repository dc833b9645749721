# SPDX-License-Identifier: Apache-2.0
"""Values that are of the right type and of no use."""

import pytest

from nri_nvidia import errors
from nri_nvidia.config import lines, load


def loaded(toml):
    return load.load([load.Text(name="f", toml=toml)])


@pytest.mark.parametrize(
    "toml",
    [
        "host.nvml_timeout = nan",
        "host.nvml_timeout = inf",
        "host.nvml_timeout = -inf",
        f"hook.timeout = {10**30}",
        "hook.timeout = 0",
        'control.socket = "/run/\\u0000"',
        'nri.socket = "relative"',
        'hook.interpreter = "python3"',
        'hook.ldconfig = "ldconfig"',
        "a = " + "[" * 100_000,
        "a" + ".a" * 500 + " = 1",
        "\ufeffa = 1",
    ],
)
def test_value_that_cannot_work_is_a_fault_of_the_file(toml):
    """Each is named with its file; none is an exception of another kind."""
    with pytest.raises(errors.ConfigError, match=r"^f:"):
        loaded(toml)


def test_long_file_full_of_faults():
    """The lines of many faults are found; a search for each by itself would take minutes."""
    text = "".join(f"key{n} = {n}\n" for n in range(600))
    with pytest.raises(errors.ConfigError) as failure:
        loaded(text)
    assert "f:600: key599: unknown key" in str(failure.value)


def test_lines_of_keys_behind_long_values():
    """A value of several lines is on the line where its key is."""
    text = 'a.b = """\n\nx = 1\n"""\nlist = [\n  1,\n  2,\n]\n[t]\n\nk = 1\n'
    place = lines.Lines(text)
    paths = [("a", "b"), ("list",), ("t",), ("t", "k"), ("t", "none"), ("none",), ()]
    assert [place.of(path) for path in paths] == [1, 5, 9, 11, 9, 1, 1]


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ("nri.enabled = false\n[nri]\n", "f:2: not valid TOML: this table is there twice"),
        ("[host]\nroot = no\n", "f:2: not valid TOML: no value; there are true, false"),
        (
            "[log]\nnri.enabled = false\n",
            "f:2: log.nri: this is below [log]; write it below [nri]",
        ),
    ],
)
def test_what_people_write_who_know_a_setting_by_its_whole_name(toml, said):
    """It is named with its line and what to write; the file that is installed has tables."""
    with pytest.raises(errors.ConfigError) as failure:
        loaded(toml)
    assert str(failure.value).startswith(said)
