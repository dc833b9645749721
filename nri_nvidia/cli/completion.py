# SPDX-License-Identifier: Apache-2.0
"""`nri-nvidia completion SHELL`: a script by which a shell completes this command."""

import argparse
import shlex
from collections.abc import Callable, Iterator

from nri_nvidia import cli
from nri_nvidia.cli import grammar
from nri_nvidia.install import model

LICENCE = "# SPDX-License-Identifier: Apache-2.0"
PLACES = {
    "bash": "/usr/local/share/bash-completion/completions/nri-nvidia",
    "fish": "/etc/fish/completions/nri-nvidia.fish",
    "zsh": "/usr/local/share/zsh/site-functions/_nri-nvidia",
}
MADE = "# Made by `nri-nvidia completion`."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the shell."""
    parser.add_argument("shell", metavar="SHELL", choices=sorted(SHELLS), help="bash, fish or zsh")


def main(options: argparse.Namespace) -> int:
    """Print the script."""
    print(script(options.shell), end="")
    return 0


def files() -> tuple[model.File, ...]:
    """Give the scripts where each shell looks for what the administrator adds."""
    return tuple(
        model.File(path=place, content=script(shell).encode()) for shell, place in PLACES.items()
    )


def script(shell: str) -> str:
    """Give a shell's script for the whole command."""
    return "\n".join(SHELLS[shell](grammar.read(cli.parser()))) + "\n"


def _words(command: grammar.Command) -> list[str]:
    """Give what may stand after a command: what is below it, its options, an operand's choices."""
    return [
        *(each.path[-1] for each in command.commands),
        *(choice for operand in command.operands for choice in operand.choices),
        *(flag for option in command.options for flag in option.flags),
    ]


def _bash(whole: grammar.Command) -> Iterator[str]:
    """Find the command that the words so far name; then what may follow its last word."""
    yield from (LICENCE, MADE, "_nri_nvidia() {")
    yield '	local at="" i words word=${COMP_WORDS[COMP_CWORD]}'
    yield "	local before=${COMP_WORDS[COMP_CWORD - 1]}"
    yield "	COMPREPLY=()"
    yield "	for ((i = 1; i < COMP_CWORD; i++)); do"
    known = "|".join(shlex.quote(f" {' '.join(each.path)}") for each in whole.all() if each.path)
    yield '		case "$at ${COMP_WORDS[i]}" in'
    yield f'		{known}) at+=" ${{COMP_WORDS[i]}}" ;;'
    yield from ("		esac", "	done", '	case "$at:$before" in')
    for command in whole.all():
        at = "".join(f" {word}" for word in command.path)
        for option in command.options:
            if option.value and (option.kind or not option.optional):
                pattern = "|".join(shlex.quote(f"{at}:{flag}") for flag in option.flags)
                yield f"	{pattern}) {_bash_value(option)}return ;;"
    yield from ("	esac", '	case "$at" in')
    for command in whole.all():
        at = "".join(f" {word}" for word in command.path)
        yield f"	{shlex.quote(at)}) words={shlex.quote(' '.join(_words(command)))} ;;"
    yield "	esac"
    yield '	mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")'
    yield "}"
    yield "complete -F _nri_nvidia nri-nvidia"


def _bash_value(option: grammar.Option) -> str:
    if option.choices:
        wanted = f"-W {shlex.quote(' '.join(option.choices))}"
    elif option.kind:
        wanted = "-d" if option.kind == "directory" else "-f"
    else:
        return ""
    names = "compopt -o filenames 2>/dev/null; " if option.kind else ""
    return f'{names}mapfile -t COMPREPLY < <(compgen {wanted} -- "$word"); '


def _zsh(whole: grammar.Command) -> Iterator[str]:
    """Make a function a command; one that has others below it gives its words on to theirs."""
    yield from ("#compdef nri-nvidia", LICENCE, MADE)
    for command in whole.all():
        yield f"{_zsh_name(command)}() {{"
        if command.commands:
            yield "	local state line; typeset -A opt_args"
        arguments = [*map(_zsh_option, command.options), *map(_zsh_operand, command.operands)]
        if command.commands:
            arguments += ["'1: :->command'", "'*:: :->rest'"]
        yield "	_arguments -C \\"
        yield from (f"		{each} \\" for each in arguments[:-1])
        yield f"		{arguments[-1]}"
        if command.commands:
            yield from ("	case $state in", "	command)", "		local -a commands=(")
            for each in command.commands:
                text = each.summary.replace(":", "\\:")
                yield f"			{shlex.quote(f'{each.path[-1]}:{text}')}"
            yield from ("		)", "		_describe command commands ;;", "	rest)")
            yield "		case $words[1] in"
            for each in command.commands:
                yield f"		{each.path[-1]}) {_zsh_name(each)} ;;"
            yield from ("		esac ;;", "	esac")
        yield "}"
    yield '_nri-nvidia "$@"'


def _zsh_name(command: grammar.Command) -> str:
    return "-".join(("_nri-nvidia", *command.path))


def _zsh_option(option: grammar.Option) -> str:
    text = option.text.replace("[", "\\[").replace("]", "\\]").replace(":", "\\:")
    flags = option.flags[0] if len(option.flags) == 1 else f"{{{','.join(option.flags)}}}"
    rest = shlex.quote(f"[{text}]{_zsh_value(option) if option.value else ''}")
    return f"'*'{flags}{rest}"


def _zsh_operand(option: grammar.Option) -> str:
    return shlex.quote(f"*{_zsh_value(option)}")


def _zsh_value(option: grammar.Option) -> str:
    start = f"{'::' if option.optional else ':'}{option.value}:"
    if option.choices:
        return f"{start}({' '.join(option.choices)})"
    return start + {"directory": "_files -/", "file": "_files", "": " "}[option.kind]


def _fish(whole: grammar.Command) -> Iterator[str]:
    """Offer a word where the words so far name its command."""
    yield from (LICENCE, MADE, "function __nri_nvidia_at")
    known = " ".join(_fish_quoted(" ".join(each.path)) for each in whole.all() if each.path)
    yield "	set -l at ''"
    yield "	set -l words (commandline -opc)"
    yield "	for word in $words[2..-1]"
    yield '		set -l longer (string trim -- "$at $word")'
    yield f"		if contains -- $longer {known}"
    yield from (
        "			set at $longer",
        "		end",
        "	end",
        '	test "$at" = "$argv[1]"',
        "end",
    )
    yield "complete -c nri-nvidia -f"
    for command in whole.all():
        at = _fish_quoted(f"__nri_nvidia_at {_fish_quoted(' '.join(command.path))}")
        start = f"complete -c nri-nvidia -n {at}"
        for each in command.commands:
            yield f"{start} -a {each.path[-1]} -d {_fish_quoted(each.summary)}"
        for operand in command.operands:
            if operand.choices:
                yield f"{start} -a {_fish_quoted(' '.join(operand.choices))}"
        for option in command.options:
            yield f"{start}{_fish_option(option)} -d {_fish_quoted(option.text)}"


def _fish_option(option: grammar.Option) -> str:
    said = "".join(
        f" -l {flag[2:]}" if flag.startswith("--") else f" -s {flag[1:]}" for flag in option.flags
    )
    if option.optional:
        return said
    if option.choices:
        return f"{said} -x -a {_fish_quoted(' '.join(option.choices))}"
    if option.kind:
        return f"{said} -r -F"
    return f"{said} -x" if option.value else said


def _fish_quoted(text: str) -> str:
    inner = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{inner}'"


SHELLS: dict[str, Callable[[grammar.Command], Iterator[str]]] = {
    "bash": _bash,
    "fish": _fish,
    "zsh": _zsh,
}
