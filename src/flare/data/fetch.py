"""Files of a data set: from a folder of the user's, from the cache, or fetched once into the cache.

What is returned has been checked by SHA-256 as the very bytes that are returned, whichever way they came. Files appear
in the cache whole or not at all.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from flare.atomic import write_whole
from flare.data.catalogue import CATALOGUE
from flare.data.files import DataFile, spelled, unpacked
from flare.data.origins import Origin, Progress
from flare.reading import read_small


def cache_folder() -> Path:
    """Where fetched files are kept: FLARE_CACHE, or `flare` in the place where this platform keeps such things."""
    named = os.environ.get("FLARE_CACHE")
    if named:
        return Path(named).expanduser().absolute()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "flare"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "flare"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "flare"


def offline() -> bool:
    """Whether FLARE_OFFLINE forbids to fetch anything."""
    return os.environ.get("FLARE_OFFLINE", "") not in ("", "0")


def obtain(name: str, *, folder: str = "", progress: Progress | None = None) -> dict[str, bytes]:
    """The checked content of every file of a data set, by file name.

    A file is looked for in `folder` (or, where that is empty, in the folder FLARE_DATA), then in the cache; what is
    missing is fetched into the cache. A damaged file in a folder of the user's is an error, and so is a `folder` that
    has none of the files; a damaged file in the cache is fetched anew. ValueError that says how to provide the files
    where they cannot be had.
    """
    wanted, own, damage = CATALOGUE[name].files, _own_folder(folder), list[str]()
    found = {file.name: content for file in wanted if own and (content := _from_own(name, file, own)) is not None}
    if folder and not found:
        names = ", ".join(file.name for file in wanted)
        raise ValueError(
            f"the data folder '{folder}' has none of the files of data set '{name}' ({names}; plain or .gz): put them "
            "there, or name no folder, and they are taken from the cache or fetched (FLARE_DATA names a folder that "
            "need not have every data set)"
        )
    for file in wanted:
        if file.name not in found and (content := _from_cache(name, file, damage)) is not None:
            found[file.name] = content
    missing = [file for file in wanted if file.name not in found]
    if missing:
        found |= _fetched(name, missing, damage, progress or _silent)
    return found


def fetch(name: str, *, folder: str = "", progress: Progress | None = None) -> Path:
    """Bring every file of a data set into the cache, also those of a folder of the user's; the folder they are in."""
    content = obtain(name, folder=folder, progress=progress)
    for file in CATALOGUE[name].files:
        if _from_cache(name, file, []) is None:
            _place(_cached(name, file), content[file.name])
    return cache_folder() / name


def cache_state(name: str) -> str:
    """Whether the files of a data set are cached: "cached", "in part", "damaged" or "not cached"."""
    damage: list[str] = []
    whole = sum(_from_cache(name, file, damage) is not None for file in CATALOGUE[name].files)
    if damage:
        return "damaged"
    return "cached" if whole == len(CATALOGUE[name].files) else "in part" if whole else "not cached"


def _own_folder(folder: str) -> Path | None:
    named = folder or os.environ.get("FLARE_DATA", "")
    if not named:
        return None
    path = Path(named).expanduser()
    if not path.is_dir():
        who = "the data folder" if folder else "FLARE_DATA"
        raise ValueError(f"{who} is '{named}', which is no folder; name one that holds the files of the data set")
    return path


def _from_own(name: str, file: DataFile, folder: Path) -> bytes | None:
    """The file from a folder of the user's, None where it is not there; ValueError where only damaged ones are."""
    wrong: ValueError | None = None
    for path in _candidates(name, file, folder):
        try:
            content = unpacked(read_small(path, file.max_packed_bytes), file.size_bytes, str(path))
            if hashlib.sha256(content).hexdigest() in _others(file):
                continue  # MNIST and Fashion-MNIST name their files alike
            file.check(content, str(path))
            return content
        except ValueError as error:
            wrong = error
    if wrong is not None:
        raise ValueError(f"{wrong}; put a good copy there, or name another data folder") from None
    return None


def _candidates(name: str, file: DataFile, folder: Path) -> Iterator[Path]:
    for place in CATALOGUE[name].places:
        yield from (path for spelling in spelled(file.name) if (path := folder / place / spelling).is_file())


def _others(file: DataFile) -> set[str]:
    """Checksums of every other file that is known."""
    return {other.sha256 for known in CATALOGUE.values() for other in known.files} - {file.sha256}


def _cached(name: str, file: DataFile) -> Path:
    return cache_folder() / name / file.name


def _from_cache(name: str, file: DataFile, damage: list[str]) -> bytes | None:
    """The file from the cache, None where it is not there or damaged; then `damage` says how."""
    path = _cached(name, file)
    if not path.is_file():
        return None
    try:
        content = read_small(path, file.max_packed_bytes)
        file.check(content, str(path))
    except ValueError as error:
        damage.append(str(error))
        return None
    return content


def _fetched(name: str, missing: list[DataFile], damage: list[str], progress: Progress) -> dict[str, bytes]:
    """The missing files from the first origins that have them, placed in the cache."""
    found: dict[str, bytes] = {}
    failed: list[str] = []
    for origin in () if offline() else CATALOGUE[name].origins:
        for file, content in _tried(origin, [each for each in missing if each.name not in found], failed, progress):
            _place(_cached(name, file), content)
            found[file.name] = content
        if len(found) == len(missing):
            return found
    raise ValueError(_how_to_provide(name, missing, damage, failed))


def _tried(
    origin: Origin, missing: list[DataFile], failed: list[str], progress: Progress
) -> list[tuple[DataFile, bytes]]:
    """What an origin has of the missing files, checked; where it fails, `failed` says why."""
    taken: list[tuple[DataFile, bytes]] = []
    try:
        with tempfile.TemporaryDirectory(prefix="flare-data-") as work:
            for file, content in origin.files(missing, Path(work), progress):
                file.check(content, file.name)
                taken.append((file, content))
        if len(taken) < len(missing):
            failed.append(f"{origin.title}: does not hold every file")
    except (ValueError, OSError, http.client.HTTPException, subprocess.SubprocessError) as error:
        failed.append(f"{origin.title}: {error}")
    return taken


def _place(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content)
    except OSError as error:
        raise OSError(
            f"cannot keep {path}: {error.strerror}; make room there, or name another folder in FLARE_CACHE"
        ) from None


def _how_to_provide(name: str, missing: list[DataFile], damage: list[str], failed: list[str]) -> str:
    tried = "FLARE_OFFLINE is set" if offline() else "; ".join(failed)
    names = ", ".join(file.name for file in missing)
    damaged = f"The cached file {damage[0]}. " if damage else ""
    return (
        f"data set '{name}' is not here and could not be fetched ({tried}). {damaged}"
        f"Put the files {names} (plain or .gz) into a folder and name it with --data-dir, data.folder or FLARE_DATA, "
        f"or copy them from another cache into {cache_folder() / name}; 'digits' and 'synthetic' need no files"
    )


def _silent(what: str, done_bytes: int, total_bytes: int | None) -> None:
    """Progress that nobody watches."""
