# SPDX-License-Identifier: Apache-2.0
"""What tests stand on; ships with the product and is imported by nothing of it."""
