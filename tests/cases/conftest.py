# SPDX-License-Identifier: Apache-2.0
"""What the recorded cases need beside values: a root file system, and the hook on it."""

from tests.host.conftest import tree
from tests.oci.conftest import case, hook, place, python_hook, shared, toolbox

__all__ = ["case", "hook", "place", "python_hook", "shared", "toolbox", "tree"]
