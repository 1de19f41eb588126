"""Tar archives in a tar archive, such as ImageNet's thousand classes, seen as if they were unpacked, and read where they lie."""

from pathlib import Path, PurePosixPath

from components import progress
from components.prepare.archives import tar_members
from components.prepare.holders import Entry, Tar
from components.prepare.tree import Tree


def opened(tree: Tree, archives: dict[str, str]) -> Tree:
    """The tree with its files `archives`, uncompressed tars, replaced by their members, below the folder that each name maps to.

    The stamp stays, since the archives' own sizes and times are in it. Raises ValueError for an archive that does not lie in a tar,
    holds no file, or has members that no archive should have (links, names that lead out of it).
    """
    if not archives:
        return tree
    progress.show(f"listing what the {len(archives)} archives in {tree.source} hold")
    entries = {name: entry for name, entry in tree.entries.items() if name not in archives}
    folders = set(tree.folders)
    for name, folder in archives.items():
        outer, shown, before = tree.entries[name], tree.where(name), len(entries)
        holder = tree.files.holders[outer.holder]
        if not isinstance(holder, Tar):
            raise ValueError(
                f"archive {shown!r} was taken out of the archive it came in; give that one as it is, or unpack this into {folder!r}"
            )
        folders.update(str(parent) for parent in PurePosixPath(f"{folder}/file").parents if parent.name)
        for member, _, start, size in tar_members(Path(shown), holder.path, outer.start, outer.start + outer.size):
            path = f"{folder}/{member}"
            if size < 0:
                folders.add(path)
                continue
            if path in entries:
                raise ValueError(f"archive {shown!r} holds {member!r}, which is there already; remove one of the two")
            entries[path] = Entry(outer.holder, f"{outer.name}/{member}", start, size)
        if len(entries) == before:
            raise ValueError(f"archive {shown!r} holds no file or is no tar; download it again")
    return Tree(tree.source, tree.files, entries, folders, tree.stamp)
