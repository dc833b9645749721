# SPDX-License-Identifier: Apache-2.0
"""Runs the process that asks NVML, with a time limit, and never trusts what comes back."""

import os
import sys

import attrs

from nri_nvidia.errors import HostError

from . import child
from . import report as nvml_report
from .options import Options


@attrs.frozen(kw_only=True)
class Answer:
    """NVML's report, or None and the reason as a sentence."""

    report: nvml_report.Report | None = None
    reason: str = ""


def query(options: Options, library: str) -> Answer:
    """Ask NVML through the given libnvidia-ml; blocks for at most the time limit and a second.

    A process that hangs, crashes, fails, says too much or talks nonsense is an answer with a
    reason; nothing is raised for them.
    """
    try:
        ended = child.run(
            [
                *(sys.executable, "-P", "-m", "nri_nvidia.host.nvml"),
                *("--library", library, "--parent", str(os.getpid())),
            ],
            {**os.environ, **dict(options.nvml_environment)},
            seconds=options.nvml_timeout,
            limit=nvml_report.LIMIT,
        )
    except OSError as error:
        return Answer(reason=f"the NVML process cannot be run: {error.strerror}")
    if ended.late:
        return Answer(reason=f"NVML did not answer within {options.nvml_timeout:g} s")
    if ended.much:
        return Answer(reason="the NVML process printed too much")
    if ended.status < 0:
        return Answer(reason=f"the NVML process died of {child.signal_name(-ended.status)}")
    if ended.status > 0:
        return Answer(reason=f"the NVML process failed: {ended.said}")
    try:
        return Answer(report=nvml_report.parse(ended.output))
    except HostError as error:
        return Answer(reason=error.message)
