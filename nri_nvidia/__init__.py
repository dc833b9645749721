# SPDX-License-Identifier: Apache-2.0
"""Gives containers their NVIDIA GPUs from one daemon, through containerd's NRI."""

__version__ = "0.1.0.dev0"
