# SPDX-License-Identifier: Apache-2.0
"""How each recorded case of NVIDIA's stack applies to us; the one place that says so.

A case that is not named here applies now. `LATER` names the part that it waits for, `OTHER_MODE`
the upstream mode whose dialect it shows, `INTERNAL` what is no behaviour that a user can see, and
`OTHERWISE` the decision by which we differ.
"""

CATEGORIES = (
    "request-resolution",
    "hook-config",
    "access-rules",
    "driver-capabilities",
    "device-selection",
    "device-nodes",
    "device-edits",
    "imex",
    "mig",
    "cuda-version",
    "requirements-collection",
    "requirements-legacy-dialect",
    "requirements-csv-dialect",
    "cuda-compat",
    "cdi-requests",
    "k8s-device-plugin",
    "nri-plugin",
    "mode",
    "security",
    "driver-files",
    "hooks",
    "proc",
    "application-profile",
)

LATER: dict[str, str] = {}

OTHER_MODE = {
    "reqcsv-bang": "csv: a lone ! is no operator there; the legacy dialect takes it for !=",
    "reqcsv-brand_unset": "csv: what is not known fails there; in the legacy dialect it holds",
    "reqcsv-cuda_unset": "csv: the same as reqcsv-brand_unset",
    "reqcsv-driver_unset": "csv: the same as reqcsv-brand_unset",
    "reqcsv-unknown_prop_and": "csv: an unknown property is passed over there; never silent here",
    "nodes-jit-cdi-gpu-compute": "jit-cdi gives all nodes whatever the capabilities are",
    "nodes-jit-cdi-gpu-utility": "the same as nodes-jit-cdi-gpu-compute",
    "nodes-management": "management: a CDI specification for tools, no request of a container",
}

INTERNAL = {
    "cdireq-modes-0": "how the toolkit sorts ids into parts of its own; here each kind has a field",
    "cdireq-modes-3": "the same as cdireq-modes-0",
    "cdireq-modes-5": "the same as cdireq-modes-0",
    "cdireq-modes-6": "the same as cdireq-modes-0",
    "mode-request-0": "one way serves every request: there are no modes to choose from",
    "hook-ctk-args": "the names of the toolkit's two programs",
    "ldconfig-hook-args": "how the toolkit tells its hook the folders; ours knows its two",
    "annotations-invalid-kept": "the form of a CDI name is checked at a later stage upstream; "
    "here a name that means nothing is refused where it is resolved",
    "gids-0": "a node whose mode is not known; here each has one",
    "gids-3": "the same as gids-0",
}

OTHERWISE = {
    "files-driver-root": "one directory in every container, whatever the host's layout",
    "files-legacy-debian-dir": "the same: the hook tells the image's loader where that is",
    "files-legacy-rhel-dir": "the same as files-legacy-debian-dir",
    "ldconfig-dup-dirs": "our two folders are in a file of a fixed name, written anew",
    "ldconfig-filter-0": "our folders are listed whatever else is: to say it twice is harmless",
    "ldconfig-filter-1": "the same as ldconfig-filter-0",
    "ldconfig-filter-4": "the same as ldconfig-filter-0",
    "symlink-abs-target": "a link is made to what is there; none that leads nowhere",
    "symlink-exists-other": "what the image has of that name is kept",
    "select-jit-busid": "PCI bus ids are accepted in every door: harmless, and legacy has them",
    "security-ldconfig-relative": "hook.ldconfig is the host's always, and no setting makes it the "
    "container's; a path that is not absolute is refused with the file",
    "nri-3": "a management name in a foreign namespace fails the creation: never silent",
    "nri-5": "the same as nri-3",
    "annotations-one": "a name of another vendor in an annotation is the runtime's to resolve",
    "resolve-ann_ws": "blanks around a name in an annotation mean nothing, as in the variables",
    "select-jit-lower-uuid": "the case of a UUID does not matter",
    "select-jit-uuid-prefix": "a unique beginning of 8 hex digits or more is accepted: old "
    "documentation and scripts use it",
    "select-legacy-uuid-prefix": "the same as select-jit-uuid-prefix",
    "nodes-legacy-gpu-graphics": "graphics has its GPU's DRM nodes, as by the toolkit's runtime, "
    "and the modeset node where there is one, as in CDI: Vulkan looks for it",
    "nodes-missing-skipped": "a missing node is made or an error: never silent",
    "select-legacy-no-gpus-host": "an index on a node without a GPU is an error: never silent",
}
