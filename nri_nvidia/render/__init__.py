# SPDX-License-Identifier: Apache-2.0
"""One set of edits in the forms of the different doors."""
