# SPDX-License-Identifier: Apache-2.0
"""A runtime's side of NRI and a daemon as a process, together."""

import asyncio

from nri_nvidia._api.nri.pkg.api import v1alpha1 as api
from nri_nvidia.testing import host_spec

EIGHT = host_spec.HostSpec(gpus=(host_spec.GpuSpec(),) * 8)
POD = api.PodSandbox(id="p", name="pod", namespace="team")


def container(number, *env, devices=(), **fields):
    return api.Container(
        id=f"container{number:055d}",
        pod_sandbox_id="p",
        name=f"c{number}",
        env=[*env],
        linux=api.LinuxContainer(devices=[bytes(device) for device in devices]),
        **fields,
    )


class Pair:
    """A runtime and a daemon that is registered with it."""

    def __init__(self, rt, daemon):
        self.runtime = rt
        self.daemon = daemon

    async def create(self, number, *env, **fields):
        return await self.runtime.create(container(number, *env, **fields), POD)


async def status(pair):
    return await asyncio.to_thread(pair.daemon.status)
