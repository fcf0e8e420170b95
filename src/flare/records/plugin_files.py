"""The plugins of a run: which files they were, by their SHA-256, and whether they still are."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flare.plugins import file_checksum, loaded_checksum, plugin_text, take_plugin


@dataclass(frozen=True)
class ChangedPlugin:
    """A plugin that is not what a run began with: its file, what its SHA-256 was, and is (None: cannot be read)."""

    path: str
    was: str
    now: str | None

    def __str__(self) -> str:
        if self.now is None:
            return f"its plugin {self.path} cannot be read any more (its SHA-256 was {self.was})"
        return f"its plugin {self.path} was changed: its SHA-256 was {self.was} and is {self.now}"


def used_checksum(path: str) -> str:
    """The SHA-256 of a plugin as it was executed here, or of its file."""
    return loaded_checksum(path) or file_checksum(path)


def changed_plugins(paths: Sequence[str], manifest: Mapping[str, Any], *, on_disk: bool) -> list[ChangedPlugin]:
    """Those of a run's plugins that are not what its manifest says: as files now, or as they were executed here."""
    recorded = {each["path"]: each["sha256"] for each in manifest.get("plugins", [])}
    found = []
    for path in paths:
        try:
            now = file_checksum(path) if on_disk else used_checksum(path)
        except ValueError:
            now = None
        if now != recorded.get(path):
            found.append(ChangedPlugin(path, recorded.get(path, "not recorded"), now))
    return found


def refuse_changed(folder: Path, changed: Sequence[ChangedPlugin], *, allowed: bool) -> None:
    """ValueError where a run has changed plugins that are not allowed, or plugins that are gone."""
    refused = [each for each in changed if each.now is None or not allowed]
    if refused:
        gone = any(each.now is None for each in refused)
        or_else = (
            ", or say with --plugin FILE where it is now"
            if gone
            else (", or give --allow-changed-plugin to go on with it as it is now")
        )
        raise ValueError(
            f"{folder} cannot be continued here: {'; '.join(map(str, refused))}; put it back as it was{or_else}. "
            "Nothing of the run was touched"
        )


def take_moved(folder: Path, paths: Sequence[str], moved: Sequence[Path]) -> None:
    """From now on, files stand for those of a run's plugins that have their names; ValueError where none has."""
    for file in moved:
        named = [path for path in paths if Path(path).name == file.name]
        if len(named) != 1:
            own = ", ".join(paths) or "none"
            raise ValueError(
                f"--plugin {file}: with --resume it says where a plugin of the run is now, and "
                f"{'several' if named else 'none'} of those of {folder} have that name; its plugins are: {own}"
            )
        take_plugin(named[0], *plugin_text(file))


def excused(changed: Sequence[ChangedPlugin], files: Mapping[str, str | None]) -> set[str]:
    """The parts of an identity that come from changed plugins; `files` says which part is of which file."""
    paths = {os.path.realpath(each.path) for each in changed}
    return {part for part, path in files.items() if path in paths}


def are_sound(plugins: Any) -> bool:
    """Whether the entry of a manifest is what is written there."""
    return isinstance(plugins, list) and all(
        isinstance(each, dict) and isinstance(each.get("path"), str) and isinstance(each.get("sha256"), str)
        for each in plugins
    )
