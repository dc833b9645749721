# SPDX-License-Identifier: Apache-2.0
"""containerd's configuration: versions, imports, rubbish."""

import posixpath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_nvidia.check import containerd


def load(*, replaces=False, **files):
    """Read files given by name, `_` for the main one."""
    texts = {"/etc/containerd/config.toml": files.pop("_")}
    texts |= {f"/etc/containerd/conf.d/{name}.toml": text for name, text in files.items()}
    return read(texts, replaces=replaces)


def read(texts, *, replaces=False):
    """Read files given by path."""
    places = {path for text in texts for path in (text, *above(text))}
    return containerd.load(
        containerd.DEFAULT_PATH,
        texts.get,
        lambda directory: sorted(
            posixpath.basename(path) for path in places if posixpath.dirname(path) == directory
        ),
        replaces=replaces,
    )


def above(path):
    """Give the directories of a path."""
    while (path := posixpath.dirname(path)) != "/":
        yield path


IMPORTING = 'version = 2\nimports = ["conf.d/*.toml"]\n'
TABLE = '[plugins."io.containerd.nri.v1.nri"]\n'


def test_what_an_import_imports_is_read_last():
    """After all imports of the main file: then it decides, as both containerds show."""
    found = read(
        {
            containerd.DEFAULT_PATH: 'version = 2\nimports = ["a.toml", "b.toml"]\n',
            "/etc/containerd/a.toml": 'version = 2\nimports = ["c.toml", "config.toml"]\n',
            "/etc/containerd/b.toml": f"version = 2\n{TABLE}disable = true\n",
            "/etc/containerd/c.toml": f"version = 2\n{TABLE}disable = false\n",
        }
    )
    assert [posixpath.basename(path)[0] for path in found.files] == ["c", "a", "b", "c"]
    assert found.nri == {"disable": False}


@pytest.mark.parametrize(
    ("pattern", "count"),
    [("*/nri.toml", 1), ("/etc/*/*/nri.toml", 1), ("../containerd/o*/nri.toml", 1), ("*/no.toml", 0),
     ("*/*.toml", 2), ("/*/*/own.d/[a-x]*.toml", 2), ("nothing/*.toml", 0), ("*.toml", 0)],
)  # fmt: skip
def test_a_pattern_in_any_part_of_an_import(pattern, count):
    """As Go's filepath.Glob finds them; itself is read once."""
    found = read(
        {
            containerd.DEFAULT_PATH: f'version = 2\nimports = ["{pattern}"]\n',
            "/etc/containerd/own.d/nri.toml": f"version = 2\n{TABLE}disable = true\n",
            "/etc/containerd/own.d/a.toml": "version = 2\n",
        }
    )
    assert (len(found.files) - 1, found.faults) == (count, ())


@pytest.mark.parametrize(
    ("replaces", "fault"), [(True, ""), (None, ""), (False, "config.toml:1: begins with a byte")]
)
def test_a_byte_order_mark(replaces, fault):
    """containerd 1 takes it, and containerd 2 does not."""
    found = load(_=f"\ufeffversion = 2\n{TABLE}disable = true\n", replaces=replaces)
    assert bool(found.faults) is bool(fault)
    assert found.nri == ({} if fault else {"disable": True})
    assert fault in "".join(found.faults)


def test_a_number_of_any_length():
    """Python converts none of more than 4300 digits: a fault of the file, and no crash."""
    (fault,) = load(_=f"x = {'1' * 5000}\n").faults
    assert fault.endswith("not valid TOML: a number is too long (at line 1)")


@pytest.mark.parametrize(("replaces", "expected"), [(True, {"b": 2}), (False, {"a": 1, "b": 2})])
def test_imports_replace_tables_in_containerd_1_only(replaces, expected):
    """What a main file says of a plugin is gone there once an import names that plugin."""
    found = load(
        _=f"{IMPORTING}{TABLE}a = 1\n", x=f"version = 2\n{TABLE}b = 2\n", replaces=replaces
    )
    assert found.nri == expected
    assert len(found.files) == 2


def test_lists_of_disabled_plugins_are_joined():
    """An import adds to them; version 1 has shorter names."""
    found = load(
        _=f'disabled_plugins = ["a"]\n{IMPORTING.partition(chr(10))[2]}',
        x='disabled_plugins = ["nri"]',
        replaces=True,
    )
    assert found.disabled == ("a", containerd.NRI)
    assert found.version == 1


SHORT, WHOLE = "[plugins.nri]\ndisable = true\n", f"{TABLE}disable = true\n"


@pytest.mark.parametrize(
    ("text", "replaces", "counts"),
    [
        (SHORT, True, True), (WHOLE, True, False), (SHORT, False, False), (WHOLE, False, True),
        (SHORT, None, True), (WHOLE, None, True),
        (f"version = 2\n{SHORT}", True, False), (f"version = 2\n{WHOLE}", True, True),
    ],
)  # fmt: skip
def test_which_name_counts(text, replaces, counts):
    """As containerd 1.7 and 2.1 showed; the one that does not is told."""
    found = load(_=text, replaces=replaces)
    assert (found.nri, len(found.misplaced)) == (({"disable": True}, 0) if counts else ({}, 1))


def test_an_import_without_a_version_is_of_the_main_ones_to_containerd_1():
    """Its merged configuration has one version."""
    assert load(_=IMPORTING, x=WHOLE, replaces=True).nri == {"disable": True}


def test_imports_that_import_each_other_end():
    """A circle is read once around."""
    found = load(
        _=IMPORTING, x='imports = ["../config.toml", "y.toml", "gone.toml"]', y="version = 2"
    )
    assert len(found.files) == 3 or found.faults
    assert any("gone.toml" in fault for fault in found.faults)


def test_runtimes_and_their_cgroup_driver():
    """Those of the CRI plugin by its name in each version."""
    for version, cri in ((2, "io.containerd.grpc.v1.cri"), (3, "io.containerd.cri.v1.runtime")):
        top = f'[plugins."{cri}".containerd'
        found = load(
            _=f'version = {version}\n{top}]\ndefault_runtime_name = "n"\n'
            f'{top}.runtimes.n.options]\nBinaryName = "/usr/bin/n"\nSystemdCgroup = true\n'
        )
        assert (found.default_runtime, found.runtimes) == ("n", {"n": "/usr/bin/n"})
        assert found.systemd_cgroup


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2s", 2.0),
        ("1m30s", 90.0),
        ("500ms", 0.5),
        ("1.5s", 1.5),
        ("2", None),
        ("", None),
        ("s2", None),
        (22, None),
    ],
)
def test_durations(text, expected):
    """As Go writes them; anything else is none."""
    assert containerd.seconds(text) == expected


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.lists(st.integers()),
    lambda inner: st.dictionaries(
        st.sampled_from(["plugins", "version", "imports", "disabled_plugins", "containerd",
                         containerd.NRI, "cri", "runtimes", "options", "x"]), inner,
    ),
    max_leaves=20,
))  # fmt: skip
def test_any_document_is_read(document):
    """Whatever types its values have, it is read, and gives settings of the right types."""
    import json

    def toml(value):
        if isinstance(value, dict):
            inner = ", ".join(
                f"{json.dumps(k)} = {toml(v)}" for k, v in value.items() if v is not None
            )
            return f"{{{inner}}}"
        return json.dumps(value)

    top = document if isinstance(document, dict) else {"x": document}
    text = "\n".join(f"{json.dumps(k)} = {toml(v)}" for k, v in top.items() if v is not None)
    found = containerd.load(
        "/c", lambda path: text if path == "/c" else None, lambda _: (), replaces=True
    )
    assert isinstance(found.version, int)
    assert all(isinstance(name, str) for name in found.disabled)
