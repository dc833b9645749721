# SPDX-License-Identifier: Apache-2.0
"""What containers hold, where GPUs are exclusive or one is shared, and whether it is known yet.

Who decides reads it and writes the ledger with nothing awaited in between: then no two containers
can be given one GPU. A container whose creation fails later is told as stopped and removed by the
runtime, or is not among those that it lists when it is connected to the next time.
"""

import asyncio

from nri_nvidia import errors, limits
from nri_nvidia.daemon import ledger

RUNTIME = "the runtime's containers"
"""What a Synchronize lists."""
DOOR = "the containers of nri-nvidia-runtime"


class Holdings:
    """Used on the event loop alone."""

    def __init__(self, books: ledger.Ledger) -> None:
        self._books = books
        self._unread: set[str] = set()
        self._read = asyncio.Event()
        self._read.set()

    def begin(self, source: str) -> None:
        """Note that the containers of a source are there and not yet in the ledger."""
        self._unread.add(source)
        self._read.clear()

    def end(self, source: str) -> None:
        """Note that they are in the ledger, as far as they ever will be."""
        self._unread.discard(source)
        if not self._unread:
            self._read.set()

    async def known(self, left: float) -> None:
        """Wait until all sources are read, for `left` seconds; raises HostError after that."""
        try:
            async with asyncio.timeout(left):
                await self._read.wait()
        except TimeoutError:
            raise errors.HostError(
                "who holds which GPU decides here, and "
                f"{' and '.join(sorted(self._unread))} have not been looked through yet",
                hint="try again",
                code="holders-not-known",
            ) from None

    def now(self) -> tuple[limits.Holding, ...]:
        """Give what is held, in the order in which it was given."""
        return tuple(
            limits.Holding(
                gpu=held.uuid,
                minor=held.minor,
                mig=held.mig,
                container=entry.container,
                shares=entry.shares,
                shared_from=entry.shared_from,
            )
            for entry in self._books.entries.values()
            for held in entry.held
        )
