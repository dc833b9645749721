# SPDX-License-Identifier: Apache-2.0
"""What `plan` says of options and lists that would else be passed over without a word."""

import pytest

from nri_nvidia import cli
from nri_nvidia.request import mountlist

from .test_plan import EIGHT


@pytest.fixture
def said(capsys):
    """Run the verb on eight GPUs; give its exit status, output and errors."""

    def run(*arguments, host=EIGHT):
        status = cli.main(["plan", "--host", str(host), *arguments])
        shown = capsys.readouterr()
        return status, shown.out, shown.err

    return run


@pytest.mark.parametrize(
    ("devices", "lost"), [("none,9", "9"), ("all,GPU-typo", "GPU-typo"), ("void,0", "0")]
)
def test_members_of_a_list_without_effect(said, devices, lost):
    """The decision is NVIDIA's, and what of the list did not count is a reason."""
    status, out, _ = said("--env", f"NVIDIA_VISIBLE_DEVICES={devices}")
    assert status == 0
    assert f"{lost} has no effect [devices-without-effect]" in out


def test_mounts_where_they_are_not_accepted(said):
    """The setting is named, and nobody is told that nothing was asked for."""
    status, out, _ = said("--mount", f"/dev/null:{mountlist.ROOT}/0")
    assert (status, "decision: ignore" in out) == (0, True)
    assert "request.accept_volume_mounts is false" in out
    assert "asks for no GPU" not in out
    assert "asks for no GPU" in said()[1]
