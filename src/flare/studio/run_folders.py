"""Which run folders lie below a folder, found as they appear: only folders that changed are looked into again.

Links are never followed, so that whatever is found lies inside.
"""

from __future__ import annotations

import os
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import final

from flare.records.manifest import CHECKPOINTS, FILE

MAX_FOLDERS = 50_000
MAX_DEPTH = 16
_SETTLED_NS = 2_000_000_000  # a folder may change twice within a tick of its clock


@dataclass(frozen=True)
class _Seen:
    """What a folder held when it was looked into."""

    changed_ns: int
    looked_ns: int
    is_run: bool
    names: frozenset[str]  # of files, hidden ones aside
    folders: tuple[str, ...]

    def holds(self, changed_ns: int) -> bool:
        return self.changed_ns == changed_ns and self.looked_ns - changed_ns > _SETTLED_NS


@final
class RunFolders:
    """The run folders below `root`, and what lies beside them in the folders that hold them."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.is_cut = False  # whether there were more folders than are looked into
        self._seen: dict[str, _Seen] = {}

    def look(self) -> list[str]:
        """The paths of all run folders below the root, with /, sorted; "." for the root itself."""
        found: list[str] = []
        kept: dict[str, _Seen] = {}
        left = [("", 0)]
        self.is_cut = False
        while left:
            path, depth = left.pop()
            seen = self._look_into(path)
            if seen is None:
                continue
            kept[path] = seen
            if seen.is_run:
                found.append(path or ".")
            elif depth >= MAX_DEPTH or len(kept) + len(left) + len(seen.folders) > MAX_FOLDERS:
                self.is_cut = self.is_cut or bool(seen.folders)
            else:
                left += [(f"{path}/{name}" if path else name, depth + 1) for name in seen.folders]
        self._seen = kept
        return sorted(found)

    def beside(self, path: str) -> frozenset[str]:
        """The names of the files in a folder that was looked into."""
        seen = self._seen.get("" if path == "." else path)
        return frozenset() if seen is None else seen.names

    def _look_into(self, path: str) -> _Seen | None:
        folder, before = os.path.join(self.root, path), self._seen.get(path)
        try:
            status = os.stat(folder, follow_symlinks=False)
            if not stat.S_ISDIR(status.st_mode):
                return None
            if before is not None and before.holds(status.st_mtime_ns):
                return before
            looked_ns = time.time_ns()
            with os.scandir(folder) as entries:
                listed = [(each.name, each.is_dir(follow_symlinks=False)) for each in entries]
        except OSError:  # it is gone, or not ours to look into
            return None
        names = frozenset(name for name, is_folder in listed if not is_folder)
        folders = (name for name, is_folder in listed if is_folder and _is_shown(name))
        return _Seen(status.st_mtime_ns, looked_ns, FILE in names, names, tuple(sorted(folders)))


def _is_shown(name: str) -> bool:
    """Whether a folder may hold runs that somebody wants to see."""
    return not name.startswith(".") and name != CHECKPOINTS and "\\" not in name


def inside(root: Path, path: str) -> Path:
    """The folder at a path below the root, as `RunFolders.look` names it; LookupError where there is none: where it
    would leave the root, goes through a link, or is no folder."""
    if path != "." and any(part in ("", ".", "..") or "\\" in part for part in path.split("/")):
        raise LookupError(path)
    try:
        found = below(root, path)
    except ValueError:
        raise LookupError(path) from None
    if not os.path.isdir(found):
        raise LookupError(path)
    return found


def below(root: Path, path: str) -> Path:
    """The place that a path, seen from the root, leads to, whether or not anything is there yet; ValueError where it
    leads out of the root on its way, or through a link, which can lead anywhere."""
    out = ValueError(f"{path!r:.80} leads out of the studio's folder")
    whole = root.resolve() / path
    steps, reached = list(whole.parts[1:]), Path(whole.anchor)
    while not _is_same(reached, root):  # a whole path may come to the root by a link above it
        if not steps or steps[0] == "..":
            raise out
        reached /= steps.pop(0)
    top = reached
    for step in steps:
        reached = reached.parent if step == ".." else reached / step
        if "\0" in step or not reached.is_relative_to(top):
            raise out
        if os.path.islink(reached):
            raise ValueError(f"{out}, or may: {step!r:.80} is a link")
    return root.resolve() / reached.relative_to(top)


def _is_same(one: Path, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except (OSError, ValueError):  # not there, or no name at all
        return False
