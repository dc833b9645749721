# SPDX-License-Identifier: Apache-2.0
"""What a runtime starts: runs the hook that lies beside this file, compiled ahead if it can be.

The interpreter's own loader takes the compiled form only if it is of the very source that is
there and for this interpreter; else it compiles the source, which takes a few milliseconds more.
"""

import sys
from _frozen_importlib_external import SourceFileLoader

sys.dont_write_bytecode = True  # a container is no occasion to write on the host
exec(SourceFileLoader("__main__", __file__ + ".py").get_code("__main__"))  # type: ignore[arg-type]  # noqa: S102
