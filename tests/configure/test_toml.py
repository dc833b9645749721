# SPDX-License-Identifier: Apache-2.0
"""Changes in TOML."""

import tomllib

import pytest

from nri_nvidia import errors
from nri_nvidia.configure import toml

NRI = ("plugins", "io.containerd.nri.v1.nri")


def lines_changed(before, after):
    """Give the lines that are in one of two texts alone."""
    old, new = before.splitlines(), after.splitlines()
    return [line for line in old if line not in new], [line for line in new if line not in old]


def test_a_value_alone_is_changed():
    """Comments, order, blank lines and the line's own comment stay."""
    text = (
        '# mine\nversion = 2\n\n[plugins]\n  [plugins."io.containerd.nri.v1.nri"]  # ours\n'
        "    disable = true   # as it came\n    socket_path = '/x'\n\n# the end\n"
    )
    after = toml.put("f", text, NRI, {"disable": False})
    assert lines_changed(text, after) == (
        ["    disable = true   # as it came"],
        ["    disable = false   # as it came"],
    )


@pytest.mark.parametrize("text", ["", "version = 2", "version = 2\n", "[grpc]\nuid = 0\n"])
def test_a_missing_table_is_added_at_the_end(text):
    """After a blank line; what was there is the beginning of the result."""
    after = toml.put("f", text, NRI, {"disable": False})
    assert after.startswith(text)
    assert tomllib.loads(after) == {
        **tomllib.loads(text),
        "plugins": {"io.containerd.nri.v1.nri": {"disable": False}},
    }


def test_line_ends_stay_as_they_are():
    """A file with CR LF gets no lines without."""
    text = "version = 2\r\n[plugins.'io.containerd.nri.v1.nri']\r\n  disable = true\r\n"
    changed = toml.put("f", text, NRI, {"disable": False})
    assert changed == text.replace("true", "false")
    added = toml.put("f", "version = 2\r\n", NRI, {"disable": False})
    assert added.count("\n") == added.count("\r\n") == 4


def test_tables_out_of_order():
    """containerd's users append tables of plugins behind others."""
    text = '[plugins."a"]\nx = 1\n[grpc]\ny = 1\n[plugins."io.containerd.nri.v1.nri"]\ndisable = true\n'
    after = toml.put("f", text, NRI, {"disable": False})
    assert after == text.replace("true", "false")
    with_more = toml.put("f", text, (*NRI, "default_validator"), {"enable": True})
    assert tomllib.loads(with_more)["plugins"][NRI[1]]["default_validator"] == {"enable": True}


@pytest.mark.parametrize(
    "text",
    ["plugins = {a = {x = 1}}\n", "plugins = 3\n", 'plugins."io.containerd.nri.v1.nri" = "on"\n'],
)
def test_a_form_that_defeats_the_change_is_refused(text):
    """Rather than that something else is written."""
    with pytest.raises(errors.ConfigError, match="cannot be changed safely") as caught:
        toml.put("f", text, NRI, {"disable": False})
    assert "[plugins" in caught.value.hint


def test_what_cannot_be_read_is_refused_with_its_line():
    """The line and the reason are said."""
    with pytest.raises(errors.ConfigError, match=r"f: not valid TOML: .*line 2"):
        toml.put("f", "version = 2\ndisable = \n", NRI, {"disable": False})


def test_items_are_taken_out_of_a_list():
    """The others and their comments stay."""
    text = 'disabled_plugins = [\n  "a", # one\n  "b",\n  "c", # three\n]\nx = 1\n'
    after = toml.remove("f", text, "disabled_plugins", ["b"])
    assert tomllib.loads(after) == {"disabled_plugins": ["a", "c"], "x": 1}
    assert "# one" in after
    assert "# three" in after


def test_a_byte_order_mark_stays():
    """podman, CRI-O and containerd 1 read such a file."""
    text = "\ufeffversion = 2\n[plugins.'io.containerd.nri.v1.nri']\ndisable = true\n"
    assert toml.read("f", text)["version"] == 2
    assert toml.put("f", text, NRI, {"disable": False}) == text.replace("true", "false")
    added = toml.put("f", "\ufeffversion = 2\n", NRI, {"disable": False})
    assert (added.startswith("\ufeff"), added.count("\ufeff")) == (True, 1)


def test_a_value_that_equals_nothing():
    """A NaN somewhere else keeps nobody from a change."""
    text = "x = nan\n[plugins.'io.containerd.nri.v1.nri']\ndisable = true\ny = -inf\n"
    assert toml.put("f", text, NRI, {"disable": False}) == text.replace("true", "false")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"a = 1\nx = {'1' * 5000}\n", r"a number is too long \(at line 2\)"),
        (f"a = 1\n\nx = {'[' * 5000}\n", r"nested too deep \(at line 3\)"),
        ("a = 1\nx = ", r"\(at line 2, the end\)"),
        ("a = 1\nx = [\n\n", r"\(at line 2, the end\)"),
        ("a = 1\na = 2\n", r"\(at line 2, column 6\)"),
    ],
)
def test_a_fault_has_its_line(text, reason):
    """Whatever Python says of it."""
    with pytest.raises(errors.ConfigError, match=rf"f: not valid TOML: .*{reason}"):
        toml.put("f", text, NRI, {"disable": False})


AOT = "[[stream]]\nq = 1\n"
OWN = "[plugins.'io.containerd.nri.v1.nri']\n"


@pytest.mark.parametrize(
    ("text", "after"),
    [
        # Tables that others stand between stay where they are.
        (f"[plugins.a]\n{AOT}{OWN}disable = true # a\n[[stream]]\nq = 2\n[plugins.b]\n", None),
        (f"{OWN}  disable = true\n\n# b\n{AOT}[plugins.a.b]\nc = 1\n", None),
        # What is new comes behind what is there, before the comments of the next table.
        (f"{OWN}\tx = 1 # c\n\n# d\n[grpc]\n", f"{OWN}\tx = 1 # c\n\tdisable = false\n\n# d\n[grpc]\n"),
        (f"{OWN}\n# d\n", f"{OWN}  disable = false\n\n# d\n"),
        (f'{OWN}"disable"\t=\ttrue\t# e\n', None),
        (f'{OWN}x = "a # b"\ndisable = "true # c" # d\n', f'{OWN}x = "a # b"\ndisable = false # d\n'),
        # A header within a text is none, and a value on its own line not another table's.
        (f'x = """\n{OWN}disable = true\n"""\n{OWN}disable = true\n',
         f'x = """\n{OWN}disable = true\n"""\n{OWN}disable = false\n'),
        # Without a header of its own it gets one, where it does not change the order.
        (f"[plugins.'io.containerd.nri.v1.nri'.x]\ny = 1\n{AOT}[plugins.a]\n",
         (f"[plugins.'io.containerd.nri.v1.nri'.x]\ny = 1\n{AOT}[plugins.a]\n\n"
          '[plugins."io.containerd.nri.v1.nri"]\n  disable = false\n')),
    ],
)  # fmt: skip
@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_everything_else_stays_as_it_is(text, after, ends):
    """Order, comments, blanks and line ends; a second time nothing is changed."""
    wanted = (after or text.replace("true", "false")).replace("\n", ends)
    found = toml.put("f", text.replace("\n", ends), NRI, {"disable": False})
    assert found == wanted
    assert toml.put("f", found, NRI, {"disable": False}) == found


@pytest.mark.parametrize(
    "text", ["[plugins]\n'io.containerd.nri.v1.nri' = { a = 1 } # x\n",
             "plugins = {'io.containerd.nri.v1.nri' = {a = 1}, b = {c = 2}} # x\n"],
)  # fmt: skip
def test_a_table_in_braces(text):
    """It gets the value within them, and its comment stays."""
    found = toml.put("f", f"# a\n{text}[z]\n", NRI, {"disable": False})
    assert found.count("\n") == text.count("\n") + 2
    assert "# x" in found
    assert tomllib.loads(found)["plugins"][NRI[1]] == {"a": 1, "disable": False}


@pytest.mark.parametrize("rest", ["", "x = 1", "x = [\n 1,\n]", "x = 1 # c", "\n# c"])
def test_a_file_without_an_end(rest):
    """What it says last stays whole."""
    found = toml.put("f", f"{OWN}{rest}".rstrip("\n"), NRI, {"disable": False})
    assert [line for line in rest.split("\n") if line not in found.split("\n")] == []
    assert toml.put("f", found, NRI, {"disable": False}) == found
