# SPDX-License-Identifier: Apache-2.0
"""A Decider that notes what it hears and does what a test says."""

import asyncio

from nri_nvidia.edits import model


class Noting:
    """`heard` has (what, argument) in order; `create` may be replaced.

    It wants to hear of every container: the empty marker is in each.
    """

    markers: tuple[bytes, ...] = (b"",)
    validates = False

    def __init__(self):
        self.heard = []
        self._changed = asyncio.Condition()

    async def note(self, what, argument=None):
        async with self._changed:
            self.heard.append((what, argument))
            self._changed.notify_all()

    async def until(self, what, count=1):
        """Wait until that was heard `count` times; gives the arguments."""

        def arguments():
            return [argument for name, argument in self.heard if name == what]

        async with self._changed:
            await self._changed.wait_for(lambda: len(arguments()) >= count)
            return arguments()

    async def configure(self, config, runtime):
        await self.note("configure", (config, runtime))

    async def registered(self, runtime):
        await self.note("registered", runtime)

    async def synchronized(self, containers):
        await self.note("synchronized", containers)

    async def create(self, container, deadline):
        return model.ContainerEdits()

    async def create_container(self, container, deadline):
        await self.note("create", container)
        return await self.create(container, deadline)

    def may_object(self, data):
        return self.validates

    async def validate(self, proposed, deadline):
        await self.note("validate", proposed)

    async def stop_container(self, container_id):
        await self.note("stop", container_id)

    async def remove_container(self, container_id):
        await self.note("remove", container_id)

    async def unreachable(self, reason):
        """Nothing of the tests' interest: it follows every end of an attempt."""

    async def disconnected(self):
        await self.note("disconnected")
