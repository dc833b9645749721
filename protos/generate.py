# SPDX-License-Identifier: Apache-2.0
"""Make nri_nvidia/_api from the .proto files here: `python protos/generate.py [DIRECTORY]`.

Needs the `dev` dependency group in the interpreter that runs it (grpcio-tools has protoc,
betterproto's compiler extra has the plugin); nothing is looked up on PATH. The output depends on
the .proto files and the betterproto release alone, except for white space: the plugin formats
with whatever black and isort are installed, which the test that compares it takes into account.
"""

import importlib.resources
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import tempfile

HERE = pathlib.Path(__file__).parent
TARGET = HERE.parent / "nri_nvidia" / "_api"
SPDX = "# SPDX-License-Identifier: Apache-2.0\n"
ABOUT = '''"""Generated messages and service bases; `protos/generate.py` makes this package.

When it is imported, the message library looks up its own version, which nobody here asks for. The
modules that read a package's metadata are a twentieth of the daemon's start and of its memory.
"""

import sys
import types

_version = types.ModuleType("betterproto._version")
_version.__version__ = "not looked up"
sys.modules.setdefault("betterproto._version", _version)
'''


def generate(directory: pathlib.Path) -> None:
    """Write the generated package into `directory`, which must not exist or be empty."""
    plugin = pathlib.Path(sysconfig.get_path("scripts")) / "protoc-gen-python_betterproto"
    if not plugin.exists():
        sys.exit(f"{plugin} is missing (install the dev group: pip install --group dev)")
    directory.mkdir(parents=True, exist_ok=True)
    with importlib.resources.as_file(importlib.resources.files("grpc_tools") / "_proto") as known:
        subprocess.run(
            [
                sys.executable, "-m", "grpc_tools.protoc",
                f"--plugin=protoc-gen-python_betterproto={plugin}",
                f"--proto_path={HERE}", f"--proto_path={known}",
                f"--python_betterproto_out={directory}",
                *sorted(path.name for path in HERE.glob("*.proto")),
            ],
            check=True, cwd=HERE, capture_output=True,
        )  # fmt: skip
    for path in directory.rglob("*.py"):
        text = path.read_text()
        if path.parent == directory:
            text = ABOUT
        path.write_text(SPDX + text)


def main() -> None:
    """Replace the package, or fill the directory named on the command line."""
    if len(sys.argv) > 1:
        generate(pathlib.Path(sys.argv[1]))
        return
    with tempfile.TemporaryDirectory(dir=TARGET.parent) as scratch:
        generate(pathlib.Path(scratch) / "api")
        shutil.rmtree(TARGET, ignore_errors=True)
        (pathlib.Path(scratch) / "api").rename(TARGET)


if __name__ == "__main__":
    main()
