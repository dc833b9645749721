# SPDX-License-Identifier: Apache-2.0
# nri-nvidia-hook, as a runtime starts it: `sh FRONT DIRECTORY PYTHON -I -S HOOK OPTION...`.
# The process that stands ready in DIRECTORY does it, or else Python does, started for it alone.
warm=$1
shift
if [ -r "$warm/ask" ]; then
	. "$warm/ask"
	ask hook && exit "$status"
fi
exec "$@"
