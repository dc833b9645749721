# SPDX-License-Identifier: Apache-2.0
"""What has to change in engines' own configuration so that their containers come by us.

A planner per engine goes from what is there to the files as they should be; `files` alone writes.
"""
