# SPDX-License-Identifier: Apache-2.0
"""ttRPC over a multiplexed connection; knows neither NRI nor GPUs.

`frames`, `mux` and `connection` turn bytes into events and back without doing IO. `transport`
moves the bytes, `server` and `channel` put generated service bases and stubs on top, and `peer`
joins all of them on one socket.
"""
