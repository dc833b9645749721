# SPDX-License-Identifier: Apache-2.0
"""A node's files as a mapping, for planners."""

from nri_nvidia.configure import model

RUNTIME = "/opt/nri-nvidia/bin/nri-nvidia-runtime"


class Paper:
    """Files by path; a link is a text that begins with `-> `."""

    def __init__(self, files=None):
        self.files = dict(files or {})

    def text(self, path):
        return self.files.get(path)

    def names(self, directory):
        below = [
            p.removeprefix(f"{directory}/") for p in self.files if p.startswith(f"{directory}/")
        ]
        return tuple(sorted({name.partition("/")[0] for name in below}))

    def is_directory(self, path):
        return any(each.startswith(f"{path}/") for each in self.files)

    def link(self, path):
        found = self.files.get(path)
        return found.removeprefix("-> ") if found else None

    def after(self, proposal):
        """Give the tree with the changes made."""
        made = {
            change.path: change.after if isinstance(change, model.File) else f"-> {change.target}"
            for change in proposal.changes
        }
        return Paper({**self.files, **made})


def options(**more):
    """Give options as the command line makes them."""
    return model.Options(**{"runtime": RUNTIME, **more})


def settled(propose, tree, given):
    """Give the tree after a planner's changes, which has to find nothing to do there."""
    after = tree.after(propose(tree, given))
    assert propose(after, given).needed == ()
    return after
