# SPDX-License-Identifier: Apache-2.0
"""What is made of the parsers: completion, the manual page, and each verb's help."""

import re
import shlex
import subprocess

import pytest

from nri_nvidia import cli
from nri_nvidia.cli import completion, grammar, manual


@pytest.fixture(scope="module")
def bash(tmp_path_factory):
    """Have the script for bash in a file."""
    path = tmp_path_factory.mktemp("completion") / "nri-nvidia"
    path.write_text(completion.script("bash"))
    return path


def completed(bash, *words):
    """Give what bash offers for the last word, sorted."""
    quoted = " ".join(map(shlex.quote, ("nri-nvidia", *words)))
    code = (
        f"source {bash}; COMP_WORDS=({quoted}); COMP_CWORD={len(words)}; _nri_nvidia\n"
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "--norc", "-uc", code], check=True, capture_output=True, text=True
    )
    assert done.stderr == ""
    return sorted(done.stdout.split())


def test_bash_offers_verbs(bash):
    """At the beginning each verb is offered, and those that begin as the word does."""
    assert set(cli.VERBS) <= set(completed(bash, ""))
    assert completed(bash, "un") == ["uninstall"]


def test_bash_offers_what_is_below_a_verb(bash):
    """Verbs of verbs, and options at the place where they are understood."""
    assert {"generate", "list", "validate"} <= set(completed(bash, "cdi", ""))
    assert "--output" in completed(bash, "cdi", "generate", "--")
    assert "--output" not in completed(bash, "cdi", "list", "--")


def test_bash_offers_values(bash, tmp_path):
    """The choices of an option, directories for a DIR, nothing for what it cannot know."""
    assert completed(bash, "plan", "--format", "") == ["cdi", "json", "nri", "oci", "text"]
    (tmp_path / "inner").mkdir()
    (tmp_path / "file").touch()
    assert completed(bash, "install", "--root", f"{tmp_path}/") == [f"{tmp_path}/inner"]
    assert completed(bash, "plan", "--env", "") == []
    assert "--json" in completed(bash, "status", "--watch", "")
    assert completed(bash, "completion", "") == ["--help", "-h", "bash", "fish", "zsh"]


@pytest.mark.parametrize("shell", sorted(completion.SHELLS))
def test_scripts_name_every_option(shell):
    """Each verb and each long option is somewhere in each shell's script."""
    script = completion.script(shell)
    for command in grammar.read(cli.parser()).all():
        assert all(word in script for word in command.path)
        for option in command.options:
            for flag in option.flags:
                assert (
                    f"-l {flag[2:]}" if shell == "fish" and flag[:2] == "--" else flag
                ) in script


@pytest.mark.parametrize("verb", cli.VERBS)
def test_help_shows_an_example_that_is_understood(verb, capsys):
    """Each verb's help ends with a command line, and the parser takes it."""
    with pytest.raises(SystemExit):
        cli.main([verb, "--help"])
    words, _ = cli.EXAMPLES[verb]
    assert f"nri-nvidia {words}" in " ".join(capsys.readouterr().out.split())
    given = shlex.split(words.partition(" >")[0])
    assert given[0] == verb
    cli.parser().parse_args(given)


def test_manual_has_every_verb_and_option():
    """The page is whole: what the help knows, it knows."""
    page = manual.page().replace("\\-", "-")
    for command in grammar.read(cli.parser()).all():
        assert " ".join(("nri-nvidia", *command.path)) in page
        flags = {flag for option in command.options for flag in option.flags}
        assert [flag for flag in flags - {"-h", "--help"} if flag not in page] == []


def test_manual_is_sound():
    """groff has nothing to warn of."""
    done = subprocess.run(
        ["groff", "-man", "-ww", "-Tutf8", "-Kutf8"],
        input=manual.page(), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stderr == ""
    plain = re.sub(".\x08", "", done.stdout)  # bold is written twice
    assert "configure containerd" in plain


def test_no_text_of_the_manual_is_taken_for_a_request():
    """A line that begins with a dot by chance is text all the same."""
    assert manual._text(".so /etc/passwd") == "\\&.so /etc/passwd"
    assert manual._text("back\\slash") == "back\\eslash"
