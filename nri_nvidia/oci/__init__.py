# SPDX-License-Identifier: Apache-2.0
"""What runs inside or in front of a low-level OCI runtime."""
