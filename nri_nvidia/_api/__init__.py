# SPDX-License-Identifier: Apache-2.0
"""Generated messages and service bases; `protos/generate.py` makes this package."""
