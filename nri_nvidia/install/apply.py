# SPDX-License-Identifier: Apache-2.0
"""Does what was decided, in an order in which every moment leaves something that works."""

import attrs

from nri_nvidia.install import model, steps, tree


def place_release(there: tree.Tree, todo: steps.Installation) -> None:
    """Put the release in its directory, which nothing uses yet, and record it.

    Paths that are new are recorded before they are made; what is written over, afterwards: until
    then it is as the manifest says.
    """
    paths = [model.MANIFEST, f"{todo.release.directory}/x", *(each.path for each in todo.writes)]
    made = {*there.manifest().directories, *there.missing(paths)}
    planned = [tree.entry(each) for each in todo.writes if not there.now(each.path)]
    before = tree.added(attrs.evolve(todo.before, directories=tuple(made)), planned)
    there.write_manifest(before)
    there.put_release(todo.release)
    there.write_manifest(tree.added(before, there.held(todo.release.directory)))


def install(there: tree.Tree, todo: steps.Installation) -> None:
    """Put everything in place; what the release of before alone has stays for `tidy`."""
    place_release(there, todo)
    for thing in todo.writes:
        there.put(thing)
    recorded = tree.added(there.manifest(), map(tree.entry, todo.writes))
    there.write_manifest(
        attrs.evolve(recorded, version=todo.release.version, release=todo.release.name)
    )


def disown(there: tree.Tree, path: str) -> None:
    """Have a path be the administrator's from now on."""
    recorded = there.manifest()
    left = {name: entry for name, entry in recorded.entries.items() if name != path}
    there.write_manifest(attrs.evolve(recorded, entries=left))


def tidy(there: tree.Tree, todo: steps.Installation) -> None:
    """Remove what only the release of before had, once nothing runs from it."""
    there.remove(todo.leaves)
    folders = {
        str(parent) for entry in todo.leaves for parent in tree.folders(entry.path, model.RELEASES)
    }
    there.remove_directories(folders)
    recorded = there.manifest()
    gone = {entry.path for entry in todo.leaves}
    left = {path: entry for path, entry in recorded.entries.items() if path not in gone}
    there.write_manifest(attrs.evolve(recorded, entries=left))


def go_back(there: tree.Tree, todo: steps.Installation) -> None:
    """Have the release of before used again; the new one stays recorded beside it."""
    old = todo.before.release
    link = model.Link(path=model.CURRENT, target=f"releases/{old}")
    there.put(link)
    recorded = tree.added(there.manifest(), [tree.entry(link)])
    there.write_manifest(attrs.evolve(recorded, version=todo.before.version, release=old))


def uninstall(there: tree.Tree, todo: steps.Removal) -> None:
    """Remove what the manifest names, and last the manifest."""
    there.remove(todo.entries)
    folders = {
        str(parent)
        for entry in todo.entries
        for parent in tree.folders(entry.path, model.RELEASES)
    }
    there.remove_directories(folders)
    there.place(model.MANIFEST).unlink()
    there.remove_directories({model.RELEASES, *todo.before.directories})
