# SPDX-License-Identifier: Apache-2.0
"""Containers that were there before this process: what is known of those that we have served."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nri_nvidia import errors
from nri_nvidia.daemon import ledger, recorder, upgrades
from nri_nvidia.host import model as host
from nri_nvidia.host import reach
from nri_nvidia.request import container as containers

logger = logging.getLogger(__name__)


async def kept(
    store: recorder.Recorder, container_ids: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Give the records of these containers that a daemon of before has left."""
    if not container_ids:
        return {}
    try:
        found = await store.ask(
            lambda known: {key: known.read(key) for key in container_ids if key in known.known}
        )
    except errors.Error as error:
        logger.warning("what the running containers were given is not known: %s", error)
        return {}
    return {key: record for key, record in (found or {}).items() if record}


def passed_over(record: Mapping[str, Any] | None) -> bool:
    """Tell a container that a daemon of before decided to give nothing: it was not missed."""
    return record is not None and record["decision"] == "ignore" and not record["missed"]


def entry(
    container: containers.Container,
    inventory: host.Inventory,
    record: Mapping[str, Any] | None = None,
) -> ledger.Entry:
    """Give a served container's entry: by the record of its decision, else by its nodes."""
    if record and record["decision"] == "inject" and not record["missed"]:
        hook = record["hook"]
        return ledger.Entry(
            container=container,
            since=record["time"],
            held=tuple(
                ledger.Held(
                    index=gpu["index"],
                    uuid=gpu["uuid"],
                    minor=gpu["minor"],
                    mig=(gpu["mig"] or {}).get("uuid", ""),
                )
                for gpu in record["gpus"]
            ),
            capabilities=tuple((record["request"] or {}).get("capabilities", ())),
            driver_version=record["driver_version"],
            adopted=True,
            source=(record["request"] or {}).get("source", ""),
            shares=record.get("shares") is True,
            shared_from=(record["request"] or {}).get("shares", ""),
            hook=("; ".join(hook["failures"]) or "ok") if hook else "",
            notes=tuple(hook.get("notes", ())) if hook else (),
        )
    return ledger.Entry(
        container=container,
        since=0.0,
        adopted=True,
        driver_version=upgrades.version_in(container),
        # It has the nodes of all GPUs, whether it asked or not.
        shares=container.privileged is True,
        held=tuple(_held({device.path for device in container.devices}, inventory)),
    )


def _held(paths: set[str], inventory: host.Inventory) -> Iterator[ledger.Held]:
    """Give the GPUs whose nodes a container has: by MIG device where it has their nodes, too."""
    nodes = reach.capability_nodes(inventory)
    for gpu in inventory.usable:
        # In WSL and of a Jetson's own GPU there is no such node, but others that make it up.
        alone = gpu.node is None and bool(gpu.nodes)
        if alone and not all(node.path in paths for node in gpu.nodes):
            continue
        if not alone and f"/dev/nvidia{gpu.minor}" not in paths:
            continue
        migs = [
            mig.uuid
            for mig in gpu.mig_devices
            if all(
                name in nodes and nodes[name].path in paths
                for name in reach.mig_capabilities(gpu, mig)
            )
        ]
        for mig in migs or [""]:
            yield ledger.Held(index=gpu.index, uuid=gpu.uuid, minor=gpu.minor, mig=mig)
