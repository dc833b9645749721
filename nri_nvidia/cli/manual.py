# SPDX-License-Identifier: Apache-2.0
"""The manual page, nri-nvidia(8), made from the parser (groff_man(7))."""

from collections.abc import Iterator

import nri_nvidia
from nri_nvidia import cli
from nri_nvidia.cli import grammar

_FILES = (
    ("/etc/nri-nvidia/config.toml", "Settings; each is explained there."),
    ("/etc/nri-nvidia/runtime", "The real runtime of nri-nvidia-runtime, in the first line."),
    ("/opt/nri-nvidia", "What nri-nvidia install put there, and the manifest of all of it."),
    ("/run/nri-nvidia", "The control socket, the hook, the last decisions."),
    ("/run/nri/nri.sock.nri-nvidia", "Locked by the one that serves the runtime of that socket."),
    ("/var/lib/nri-nvidia/driver", "Prepared directories of driver files."),
    ("/var/lib/nri-nvidia/configured", "What nri-nvidia configure has changed."),
    ("FILE.before-nri-nvidia", "What FILE of an engine was before nri-nvidia configure."),
    ("/var/run/cdi/nri-nvidia-*.json", "CDI specifications, with cdi.keep."),
)
_STATUS = (
    ("0", "Done."),
    ("1", "Failed or refused."),
    ("2", "Wrong use or wrong settings."),
    ("3", "The daemon is not running."),
)


def page() -> str:
    """Give the page's source."""
    return "\n".join(_page(grammar.read(cli.parser()))) + "\n"


def _page(whole: grammar.Command) -> Iterator[str]:
    yield '.\\" SPDX-License-Identifier: Apache-2.0'
    yield f'.TH NRI\\-NVIDIA 8 "" "nri\\-nvidia {_text(nri_nvidia.__version__)}"'
    yield from (".SH NAME", "nri\\-nvidia \\- give containers their NVIDIA GPUs through NRI")
    yield from (".SH SYNOPSIS", ".B nri\\-nvidia", "VERB [OPTION]...")
    yield from (".SH DESCRIPTION", _text(nri_nvidia.__doc__ or ""))
    yield ".SH OPTIONS"
    yield from _options(whole)
    yield ".SH VERBS"
    for command in whole.all():
        if command.path:
            yield from _command(command)
    yield ".SH EXIT STATUS"
    yield from _terms(_STATUS)
    yield ".SH FILES"
    yield from _terms(_FILES)
    yield from (".SH SEE ALSO", ".BR systemctl (1),", ".BR ld.so (8)")


def _command(command: grammar.Command) -> Iterator[str]:
    words = ["nri-nvidia", *command.path]
    if command.options:
        words.append("[OPTION]...")
    words += [operand.value for operand in command.operands]
    yield f'.SS "{_text(" ".join(words))}"'
    yield _text(_sentence(command.summary))
    yield from _options(command)
    if command.epilog:
        yield from (".PP", _text(command.epilog))


def _options(command: grammar.Command) -> Iterator[str]:
    for option in (*command.operands, *command.options):
        if "--help" not in option.flags or not command.path:
            yield ".TP"
            yield f"\\fB{_text(', '.join(option.flags))}\\fR \\fI{_text(option.value)}\\fR"
            yield _text(_sentence(option.text)) or "\\&"


def _terms(pairs: tuple[tuple[str, str], ...]) -> Iterator[str]:
    for name, meaning in pairs:
        yield from (".TP", f".B {_text(name)}", _text(meaning))


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if not text or text.endswith(".") else ".")


def _text(text: str) -> str:
    """Give a text as groff has it; on one line, so that none begins with a request."""
    plain = " ".join(text.split()).replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq")
    return f"\\&{plain}" if plain.startswith((".", "'")) else plain
