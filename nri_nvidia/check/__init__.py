# SPDX-License-Identifier: Apache-2.0
"""The doctor: one module gathers the facts of a node, pure functions make findings of them."""
