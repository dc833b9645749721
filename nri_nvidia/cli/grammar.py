# SPDX-License-Identifier: Apache-2.0
"""The command line as values, read from the parser: what completion and the manual are made of."""

import argparse
from collections.abc import Iterator

import attrs


@attrs.frozen(kw_only=True)
class Option:
    """An option, or an operand (without flags). `value` names its value, empty for a switch.

    `optional` is a value that may be left out.
    """

    flags: tuple[str, ...]
    value: str
    text: str
    choices: tuple[str, ...] = ()
    optional: bool = False

    @property
    def kind(self) -> str:
        """What its value is on disk: `directory`, `file`, or empty for something else."""
        if "DIR" in self.value:
            return "directory"
        return "file" if self.value in {"FILE", "PATH"} else ""


@attrs.frozen(kw_only=True)
class Command:
    """The command, a verb or what is below a verb; `path` are its words after the program."""

    path: tuple[str, ...]
    summary: str
    epilog: str
    options: tuple[Option, ...]
    operands: tuple[Option, ...]
    commands: tuple["Command", ...]

    def all(self) -> Iterator["Command"]:
        """Give it and all below it, in the order of the help."""
        yield self
        for each in self.commands:
            yield from each.all()


def read(
    parser: argparse.ArgumentParser, path: tuple[str, ...] = (), summary: str = ""
) -> Command:
    """Give a parser as values."""
    options: list[Option] = []
    operands: list[Option] = []
    commands: list[Command] = []
    for action in parser._actions:  # noqa: SLF001 - argparse has no public way to ask
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            texts = {each.dest: each.help or "" for each in action._choices_actions}  # noqa: SLF001
            commands += [
                read(own, (*path, name), texts.get(name, ""))
                for name, own in action.choices.items()
            ]
        elif action.help != argparse.SUPPRESS:
            (options if action.option_strings else operands).append(_option(parser, action))
    return Command(
        path=path, summary=summary, epilog=parser.epilog or "",
        options=tuple(options), operands=tuple(operands), commands=tuple(commands),
    )  # fmt: skip


def _option(parser: argparse.ArgumentParser, action: argparse.Action) -> Option:
    metavar = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    switch = action.option_strings and action.nargs == 0
    return Option(
        flags=tuple(action.option_strings),
        value="" if switch else metavar,
        text=(action.help or "") % {**vars(action), "prog": parser.prog},
        choices=tuple(map(str, action.choices or ())),
        optional=action.nargs == "?",
    )
