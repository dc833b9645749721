# SPDX-License-Identifier: Apache-2.0
"""Generated messages and service bases; `protos/generate.py` makes this package.

When it is imported, the message library looks up its own version, which nobody here asks for. The
modules that read a package's metadata are a twentieth of the daemon's start and of its memory.
"""

import sys
import types

_version = types.ModuleType("betterproto._version")
_version.__version__ = "not looked up"
sys.modules.setdefault("betterproto._version", _version)
