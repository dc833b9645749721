# SPDX-License-Identifier: Apache-2.0
"""What is looked at before each answer: the host, the hook's place, the prepared directories.

One thread looks at all of it, with one call to it and one back.
"""

import asyncio
import contextlib

import attrs

from nri_nvidia.config import model
from nri_nvidia.daemon import hookplace, hostwatch, volumekeeper, worker


@attrs.frozen(kw_only=True)
class Begun:
    """Looks under way; None for what is not wanted, or is looked at by whoever asks for it."""

    host: "asyncio.Future[hostwatch.Seen] | None" = None
    hook: "asyncio.Future[hookplace.Installed] | None" = None
    volumes: "asyncio.Future[volumekeeper.Look] | None" = None


class Looks:
    """Begins the looks for an answer."""

    def __init__(
        self,
        watch: hostwatch.HostWatch,
        place: hookplace.HookPlace,
        keeper: volumekeeper.VolumeKeeper,
    ) -> None:
        self._watch, self._place, self._keeper = watch, place, keeper
        self._thread = worker.Worker("looks")
        self._last: worker.Batch | None = None

    def begin(self, hook: model.Hook | None) -> Begun:
        """Begin each look that is not under way; while one hangs each has a thread of its own."""
        if self._last is not None and not self._last.done:
            with contextlib.suppress(RuntimeError):  # those that wait for them say what is wrong
                return Begun(host=self._watch.begin(), volumes=self._keeper.begin())
            return Begun()
        batch = self._last = worker.Batch()
        begun = Begun(
            host=self._watch.begin(batch),
            hook=self._place.begin(hook, batch) if hook else None,
            volumes=self._keeper.begin(batch),
        )
        batch.begin(self._thread)
        return begun

    def close(self) -> None:
        """Let the thread go; one that hangs is left behind."""
        self._thread.close()
