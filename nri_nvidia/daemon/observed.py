# SPDX-License-Identifier: Apache-2.0
"""What can be asked over HTTP: `/metrics`, `/healthz` and `/readyz`."""

import functools
import http
from collections.abc import Mapping, Sequence

from nri_nvidia import errors
from nri_nvidia.daemon import decider, hostwatch, readiness, web
from nri_nvidia.reasons import Reason


def routes(state: decider.Decider, watch: hostwatch.HostWatch) -> Mapping[str, web.Route]:
    """Give what is answered at each path."""
    # Imported by those alone who serve it, and before anybody waits for it.
    from nri_nvidia.daemon import metrics  # noqa: PLC0415

    async def series() -> web.Answer:
        seen = await readiness.look(state, watch)
        ready = not readiness.missing(state, seen)
        body = metrics.text(state, watch, seen.inventory, ready=ready)
        return web.Answer(body=body, type=metrics.CONTENT_TYPE)

    return {
        "/metrics": series,
        "/healthz": functools.partial(_health, state),
        "/readyz": functools.partial(_ready, state, watch),
    }


async def _health(state: decider.Decider) -> web.Answer:
    return _told(readiness.stuck(state))


async def _ready(state: decider.Decider, watch: hostwatch.HostWatch) -> web.Answer:
    return _told(readiness.missing(state, await readiness.look(state, watch)))


def _told(reasons: Sequence[Reason]) -> web.Answer:
    if not reasons:
        return web.Answer(body=b"ok\n")
    lines = [f"{reason.code}: {errors.printable(str(reason))}\n" for reason in reasons]
    return web.Answer(
        status=http.HTTPStatus.SERVICE_UNAVAILABLE, body="".join(lines).encode("utf-8", "replace")
    )
