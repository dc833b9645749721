# SPDX-License-Identifier: Apache-2.0
"""The product on a node: what is put where, what was put there, and how it is taken away."""
