# SPDX-License-Identifier: Apache-2.0
"""The NRI plugin: wire to values, handlers, and the session with the runtime."""
