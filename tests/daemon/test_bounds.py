# SPDX-License-Identifier: Apache-2.0
"""What others can make the daemon hold or write is bounded, and what they need is open."""

import asyncio
import logging
import os

import pytest

from nri_nvidia import pipeline, reasons
from nri_nvidia.daemon import decisionlog, ledger, statedir, web
from nri_nvidia.request import container as containers
from nri_nvidia.request import model as request_model


async def test_callers_that_say_nothing_hold_few_descriptors(tmp_path):
    """Beyond a number callers are let go at once, whether they ask or not."""
    served = web.Web({"/": None})
    path = str(tmp_path / "web.sock")
    await served.open(f"unix:{path}")
    callers = [await asyncio.open_unix_connection(path) for _ in range(web._MOST_CONNECTED + 3)]
    try:
        for reader, _ in callers[web._MOST_CONNECTED :]:
            assert await reader.read() == b""
        assert served._serving == web._MOST_CONNECTED
    finally:
        for _, writer in callers:
            writer.close()
            await writer.wait_closed()
        await served.close()
    while served._serving:
        await asyncio.sleep(0)


@pytest.mark.parametrize("decision", list(pipeline.Decision))
def test_a_log_line_is_short(caplog, decision):
    """A variable of an image that is a megabyte long does not make such a line."""
    long = "x" * (1 << 20)
    plan = pipeline.Plan(
        decision=decision,
        request=request_model.GpuRequest(source="env", devices=(long,) * 3),
        reasons=(reasons.Reason(code="c", message=f"{long}: no such GPU"),),
    )
    container = containers.Container(id="1", name=long, env=(long,))
    decided = ledger.Decided(time=0.0, container=container, plan=plan, duration_ms=1.0)
    with caplog.at_level(logging.INFO):
        decisionlog.write(ledger.shortened(decided))
    assert caplog.records
    assert max(len(line) for line in caplog.messages) < 5000


def test_every_user_reaches_the_daemons_directory(tmp_path):
    """Hooks of user namespaces report there, also where the daemon's umask hides files."""
    before = os.umask(0o077)
    try:
        os.close(statedir.claim(tmp_path / "run/nri-nvidia"))
    finally:
        os.umask(before)
    for path in (tmp_path / "run", tmp_path / "run/nri-nvidia"):
        assert path.stat().st_mode & 0o777 == 0o755
