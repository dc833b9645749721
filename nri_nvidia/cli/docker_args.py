# SPDX-License-Identifier: Apache-2.0
"""`nri-nvidia docker-args`: what a docker with nothing of ours has to be told on its command line.

There is no hook then: neither ld.so.cache nor links of programs in the container. What has to
find the driver does so by LD_LIBRARY_PATH.
"""

import argparse
import posixpath
import shlex
import sys

import attrs

from nri_nvidia import errors, pipeline
from nri_nvidia.cli import output, settings, shared
from nri_nvidia.host import cache, volumes
from nri_nvidia.render import docker
from nri_nvidia.request import container as containers


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this verb."""
    parser.add_argument(
        "gpus",
        metavar="GPUS",
        nargs="*",
        help="as in NVIDIA_VISIBLE_DEVICES, with blanks or commas between (default: all)",
    )
    shared.add_host(parser)
    shared.add_config(parser)
    parser.add_argument("--capabilities", metavar="LIST", help="as in NVIDIA_DRIVER_CAPABILITIES")
    parser.add_argument(
        "--no-library-path", action="store_true", help="the image sets LD_LIBRARY_PATH itself"
    )
    parser.add_argument("--json", action="store_true", help="print a JSON list, nothing quoted")


def main(options: argparse.Namespace) -> int:
    """Print the arguments; raises what refuses the request."""
    config = settings.config(options.config)
    rules = config.rules(interpreter=config.hook.interpreter)
    inject = attrs.evolve(rules.inject, layout="volume", hook=None)
    rules = attrs.evolve(rules, inject=inject)
    host = cache.Cache(settings.host(config, options.host))
    host.refresh_nvml()
    env = [f"NVIDIA_VISIBLE_DEVICES={','.join(' '.join(options.gpus).split()) or 'all'}"]
    if options.capabilities is not None:
        env.append(f"NVIDIA_DRIVER_CAPABILITIES={options.capabilities}")
    asking = containers.Container(env=tuple(env))
    plan = pipeline.plan(asking, host.get(), rules)
    ready: dict[str, str] = {}
    if plan.unprepared is not None:
        wanted = plan.unprepared
        if options.host is None:
            kept = volumes.Volumes(config.inject.volume_dir, config.host.root)
            try:
                ready[wanted.name] = kept.build(wanted.name, wanted.files, wanted.links).path
            except errors.HostError as error:
                # What the daemon does meanwhile is not done for a docker that has nothing of ours.
                raise errors.HostError(
                    error.message,
                    hint="docker is told of that directory: inject.volume_dir names another place",
                    code=error.code,
                ) from error
        else:
            ready[wanted.name] = posixpath.join(config.inject.volume_dir, wanted.name)
        plan = pipeline.plan(asking, host.get(), rules, pipeline.Context(volumes=ready))
    if not plan.created:
        raise plan.refusal()
    for reason in plan.reasons:
        sys.stderr.write(f"nri-nvidia: {errors.printable(str(reason))}\n")
    edits = plan.edits
    names = [name for name, _ in edits.env]
    if ready and not options.no_library_path and "LD_LIBRARY_PATH" not in names:
        path = ":".join(f"{inject.library_dir}/{name}" for name in ("lib64", "lib32"))
        edits = attrs.evolve(edits, env=(*edits.env, ("LD_LIBRARY_PATH", path)))
    words = docker.arguments(edits)
    if options.json:
        output.print_json(list(words))
    elif words:
        print(shlex.join(words))
    return 0
