# SPDX-License-Identifier: Apache-2.0
"""The long-running process: one a node."""
