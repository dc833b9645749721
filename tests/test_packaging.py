# SPDX-License-Identifier: Apache-2.0
"""What a wheel holds, and that it works where it is installed."""

import pathlib
import subprocess
import sys
import zipfile

import pytest

ROOT = pathlib.Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build the wheel once, with the build tool that pip fetches."""
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(out), str(ROOT)],
        check=True,
        capture_output=True,
        text=True,
    )
    (found,) = out.glob("*.whl")
    return found


def test_wheel_holds_the_package_and_nothing_else(wheel):
    """Only nri_nvidia and its metadata; the typing marker and the C sources of testing too."""
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"nri_nvidia"}
    for needed in ("py.typed", "oci/hook.py", "_api/nri/pkg/api/v1alpha1/__init__.py"):
        assert f"nri_nvidia/{needed}" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert any(name.endswith(".data/scripts/nri-nvidia-runtime") for name in names)


def test_commands_start_without_the_daemons_modules():
    """`plan` pays neither for the event loop nor for the message library."""
    code = (
        "import sys; sys.argv = ['nri-nvidia', 'plan', '--help']\n"
        "from nri_nvidia import cli\n"
        "try: cli.main()\n"
        "except SystemExit: pass\n"
        "print([m for m in ('asyncio', 'betterproto', 'grpclib', 'pynvml') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]"
