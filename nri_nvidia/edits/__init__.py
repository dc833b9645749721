# SPDX-License-Identifier: Apache-2.0
"""What changes in a container."""
