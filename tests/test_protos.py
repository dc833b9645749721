# SPDX-License-Identifier: Apache-2.0
import ast
import inspect
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = ROOT / "nri_nvidia" / "_api"


def meaning(path: pathlib.Path) -> str:
    """Give a module without what formatters may change: layout, quotes, docstring indentation."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value.value = inspect.cleandoc(str(node.value.value))
        if isinstance(node, ast.ImportFrom | ast.Import):
            node.names.sort(key=lambda alias: alias.name)
    return ast.dump(tree)


def test_the_committed_messages_are_those_of_the_proto_files(tmp_path):
    """Generating again gives the modules that are committed, whatever black and isort do."""
    made = tmp_path / "api"
    script = ROOT / "protos" / "generate.py"
    subprocess.run([sys.executable, script, made], check=True, env={}, timeout=100)
    expected = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))
    assert sorted(path.relative_to(made) for path in made.rglob("*.py")) == expected
    for name in expected:
        assert meaning(made / name) == meaning(PACKAGE / name), name


def test_generated_modules_carry_the_licence():
    """Every generated module begins with the SPDX line."""
    for path in PACKAGE.rglob("*.py"):
        assert path.read_text().startswith("# SPDX-License-Identifier: Apache-2.0\n"), path
