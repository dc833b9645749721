# SPDX-License-Identifier: Apache-2.0
"""Run the command line as `python -m nri_nvidia`."""

import sys

from nri_nvidia import cli

if __name__ == "__main__":
    sys.exit(cli.main())
