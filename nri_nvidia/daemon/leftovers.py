# SPDX-License-Identifier: Apache-2.0
"""Containers that hold GPUs and will not run (again), of which NRI says nothing.

One that could not be started is there until somebody removes it, which a kubelet may do never, and
there is no event for it (containerd 1.7 to 2.1, seen). The same is true of one that containerd,
killed and started again, finds half made. So the runtime's CRI service is asked. Of the latter it
may say that they have ended while their processes are there: what has a cgroup still holds.
"""

import asyncio
from collections.abc import Awaitable, Callable

from nri_nvidia.daemon import cgroups, cri, ledger

_PERIOD = 10.0
_LIMIT = 2.0


class Leftovers:
    """Lets go of such containers; `end` is what a container's end is told to."""

    def __init__(
        self,
        asked: cri.Cri,
        books: ledger.Ledger,
        runtime: Callable[[], str],
        end: Callable[[str], Awaitable[None]],
        exists: Callable[[str], bool] = cgroups.exists,
    ) -> None:
        self._cri = asked
        self._books = books
        self._runtime = runtime
        self._end = end
        self._exists = exists

    async def let_go(self, left: float) -> bool:
        """Forget those that have ended and are still there; tell whether there was any."""
        ended = await self._cri.ended(self._runtime(), left)
        held = {key: entry.container for key, entry in self._books.entries.items()}
        known = {**held, **self._books.missed}
        gone = [key for key in known if key in ended and not self._exists(known[key].cgroup)]
        for container_id in gone:
            await self._end(container_id)
        return bool(gone)

    async def keep(self, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Do so now and then while anybody holds anything of a runtime's; for ever, as a task."""
        while True:
            await sleep(_PERIOD)
            known = (*self._books.entries, *self._books.missed)
            if self._runtime() and not all(map(ledger.is_unknown_to_nri, known)):
                await self.let_go(_LIMIT)
