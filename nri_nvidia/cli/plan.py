# SPDX-License-Identifier: Apache-2.0
"""`nri-nvidia plan`: one container against one host, with nothing running."""

import argparse
import re
import sys

import attrs

from nri_nvidia import errors, limits, pipeline, resolve
from nri_nvidia.cli import output, settings, shared
from nri_nvidia.config import model as config_model
from nri_nvidia.host import cache, model
from nri_nvidia.oci import bundle
from nri_nvidia.render import cdi, document, oci
from nri_nvidia.request import container as containers
from nri_nvidia.request import model as request_model
from nri_nvidia.request import parse, rules

_OPTIONS = re.compile(r"[a-z]{2,}(?:=[^,]*)?(?:,[a-z]{2,}(?:=[^,]*)?)*")
_SANDBOX = "that of the plan"
"""The pod of the container, and of holders that are named without one."""
FORMATS = ("json", "text", "nri", "oci", "cdi")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this verb; design: `plan` is the contract of tests and tools."""
    shared.add_host(parser)
    shared.add_config(parser)
    for option, name, text in (
        ("--env", "K=V", "a variable of the container"),
        ("--mount", "SRC:DST", "a mount that the spec already holds"),
        ("--annotation", "K=V", "an annotation of the container"),
        ("--label", "K=V", "a label of the pod"),
        ("--device", "PATH", "a device node that the spec already holds"),
        ("--image-env", "K=V", "a variable of the image, which --env overrides"),
        ("--allocated", "UUID", "what the kubelet gave the container; `none` for nothing"),
        (
            "--held",
            "DEVICE=CONTAINER",
            "a GPU or MIG device, by UUID, that NAME of this pod holds, or NS/POD/NAME",
        ),
    ):
        parser.add_argument(
            option, metavar=name, action="append", default=[], help=f"{text}; may be repeated"
        )
    parser.add_argument("--namespace", metavar="NS", default="", help="the pod's namespace")
    parser.add_argument("--pod", metavar="POD", default="", help="the pod's name")
    parser.add_argument("--name", metavar="N", default="", help="the container's name")
    parser.add_argument(
        "--runtime-handler",
        metavar="HANDLER",
        default="",
        help="the handler of the pod's runtime class, as `kata`",
    )
    parser.add_argument("--privileged", action="store_true", help="the container is privileged")
    parser.add_argument("--spec", metavar="FILE", help="an OCI config.json to start from")
    parser.add_argument("--format", choices=FORMATS, default="text", help="default: text")
    parser.add_argument(
        "--json", action="store_const", const="json", dest="format", help="same as --format json"
    )


def main(options: argparse.Namespace) -> int:
    """Print the plan; 0 when the container would be created, 1 when that would be refused."""
    try:
        config = settings.config(options.config)
        host = cache.Cache(settings.host(config, options.host))
        context = _context(options)
        context = attrs.evolve(context, holdings=_found(context.holdings, host))
        spec = {} if options.spec is None else bundle.read(options.spec)
        container = _container(options, bundle.container(spec))
    except (errors.RequestError, errors.ConfigError) as error:
        if options.format == "json":  # whoever reads JSON is to find the refusal there
            output.print_json(document.plan(pipeline.refused(error, None)))
        raise
    decided = _decided(container, config, host, context)
    if options.format not in {"json", "text"}:
        _complain(decided)
        if not decided.created or (options.format == "cdi" and not decided.edits):
            # A document of nothing would be taken for one (and CDI allows none without edits).
            return 0 if decided.created else 1
    match options.format:
        case "json":
            output.print_json(document.plan(decided))
        case "text":
            kind = settings.kind(host.last) if host.last else []
            output.print_lines([*kind, *_text(decided)])
        case "nri":
            # Imported here alone: the messages' library takes longer than all the rest.
            from nri_nvidia.render import nri  # noqa: PLC0415

            output.print_json(nri.adjustment(decided.edits).to_dict())
        case "oci":
            output.print_json(oci.patched(spec, decided.edits))
        case _:
            output.print_json(cdi.document({container.name or "container": decided.edits}))
    return 0 if decided.created else 1


def _decided(
    container: containers.Container,
    config: config_model.Config,
    host: cache.Cache,
    context: pipeline.Context,
) -> pipeline.Plan:
    """Decide as the daemon would; where it could not look or act, it would refuse."""
    settled = config.rules(interpreter=config.hook.interpreter)
    if not pipeline.asks(container, settled, context=context):
        return pipeline.plan(container, model.Inventory(), settled, context)
    try:
        settled = config.rules(interpreter=settings.interpreter(config))
        _ask_nvml(host)
        return pipeline.plan(container, host.get(), settled, context)
    except errors.HostError as error:
        return pipeline.refused(error, parse.parse(container, settled.request).request)


def _container(options: argparse.Namespace, base: containers.Container) -> containers.Container:
    pairs = {name: [_pair(f"--{name}", text) for text in getattr(options, name)]
             for name in ("env", "annotation", "label")}  # fmt: skip
    image = [_pair("--image-env", text) for text in options.image_env]
    mounts = []
    for text in options.mount:
        source, _, destination = text.partition(":")
        if not source or not destination.startswith("/"):
            raise errors.ConfigError(f"--mount {text}: write it as SOURCE:/DESTINATION")
        destination, flags = _with_options(destination)
        mounts.append(
            containers.Mount(
                source=source,
                destination=destination,
                type="bind",
                options=flags,
            )
        )
    for path in options.device:
        if not path.startswith("/"):
            raise errors.ConfigError(f"--device {path or repr(path)}: write its path from / on")
    return attrs.evolve(
        base,
        sandbox=_SANDBOX,
        name=options.name or base.name,
        pod=options.pod or base.pod,
        namespace=options.namespace or base.namespace,
        runtime_handler=options.runtime_handler or base.runtime_handler,
        labels={**base.labels, **dict(pairs["label"])},
        annotations={**base.annotations, **dict(pairs["annotation"])},
        env=(*(f"{k}={v}" for k, v in image), *base.env, *(f"{k}={v}" for k, v in pairs["env"])),
        mounts=(*base.mounts, *mounts),
        devices=(*base.devices, *(containers.Device(path=path) for path in options.device)),
        privileged=True if options.privileged else base.privileged,
    )


def _with_options(text: str) -> tuple[str, tuple[str, ...]]:
    """Split `/DESTINATION:ro,nosuid`; a colon before no options is the destination's (`…/0:1`)."""
    destination, separator, flags = text.rpartition(":")
    if separator and _OPTIONS.fullmatch(flags):
        return destination, tuple(flags.split(","))
    return (destination, ()) if separator and not flags else (text, ())


def _pair(option: str, text: str, form: str = "KEY=VALUE") -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise errors.ConfigError(f"{option} {text}: write it as {form}")
    return key, value


def _context(options: argparse.Namespace) -> pipeline.Context:
    image = dict(_pair("--image-env", text) for text in options.image_env)
    if "" in options.allocated:
        raise errors.ConfigError("--allocated '': write a UUID, or none for nothing")
    return pipeline.Context(
        allocated=frozenset(options.allocated) - {"none"} if options.allocated else None,
        image=rules.Image(env=image) if options.image_env else None,
        holdings=tuple(
            _holding(*_pair("--held", text, "DEVICE=CONTAINER")) for text in options.held
        ),
    )


def _holding(device: str, holder: str) -> limits.Holding:
    """Give what another container holds; a MIG device is held whatever GPU it is of."""
    head, separator, rest = device.partition("-")
    if head.upper() not in {"GPU", "MIG"} or not separator or not holder:
        raise errors.ConfigError(f"--held {device}={holder}: write it as UUID=CONTAINER")
    device = f"{head.upper()}-{rest.lower()}"
    mig = device if head.upper() == "MIG" else ""
    return limits.Holding(
        gpu="" if mig else device,
        minor=-1,
        mig=mig,
        container=containers.Container(
            id=holder, name=holder, sandbox="" if "/" in holder else _SANDBOX
        ),
    )


def _ask_nvml(host: cache.Cache) -> None:
    if host.nvml_stale:
        host.refresh_nvml()


def _found(holdings: tuple[limits.Holding, ...], host: cache.Cache) -> tuple[limits.Holding, ...]:
    """Give what is held as the host calls it; raises ConfigError for what it does not have.

    Where the host cannot say, they stay as they are: the decision has the reason then.
    """
    found: list[limits.Holding] = []
    for held in holdings:
        asked = request_model.GpuRequest(
            source=request_model.Source.ENV, variable="--held", devices=(held.mig or held.gpu,)
        )
        try:
            _ask_nvml(host)
            (item,) = resolve.resolve(asked, host.get()).assigned
        except errors.HostError:
            found.append(held)
        except errors.RequestError as error:
            raise errors.ConfigError(error.message, hint=error.hint) from error
        else:
            mig = item.mig.uuid if item.mig else ""
            gpu = "" if mig else item.gpu.uuid
            found.append(attrs.evolve(held, gpu=gpu, mig=mig, minor=item.gpu.minor))
    return tuple(found)


def _complain(plan: pipeline.Plan) -> None:
    for reason in plan.reasons:
        sys.stderr.write(errors.printable(f"{plan.decision}: {reason}") + "\n")


def _text(plan: pipeline.Plan) -> list[str]:
    request = plan.request
    lines = [f"decision: {plan.decision}"]
    for reason in plan.reasons:
        lines.append(f"reason: {reason.message} [{reason.code}]")
        if reason.hint:
            lines.append(f"  {reason.hint}")
    if request is None:
        said = "what it asks for does not count" if plan.reasons else "it asks for no GPU"
        return [*lines, f"request: none: {said}"]
    devices = ",".join(request.devices) or "none"
    capabilities = ",".join(sorted(map(str, request.capabilities))) or "none"
    lines.append(f"request: {request.variable}: {devices}; capabilities {capabilities}")
    if plan.decision is not pipeline.Decision.INJECT:
        return lines
    lines.append(f"driver: {plan.driver_version or 'of unknown version'}")
    for item in plan.assigned:
        what = f"{item.mig.uuid} on" if item.mig else ""
        place = f"at {item.gpu.bus_id}" if item.gpu.bus_id else ""
        named = (what, item.gpu.uuid, item.gpu.name, place)
        lines.append(f"gpu {item.gpu.index}: {' '.join(filter(None, named))}")
    if plan.cuda_compat:
        lines.append(f"cuda compatibility: {plan.cuda_compat.reason.message}")
    lines += ["devices:"] if plan.edits.devices else []
    lines += output.columns(
        ((d.path, f"{d.type} {d.major}:{d.minor}", d.access) for d in plan.edits.devices), "  "
    )
    lines += ["mounts:"] if plan.edits.mounts else []
    lines += output.columns(((m.destination, m.source) for m in plan.edits.mounts), "  ")
    lines += [f"hook: {' '.join(hook.args)}" for hook in plan.edits.hooks]
    return lines
