"""manifest.json: what a run folder is, and where and by what it was made."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from flare.atomic import write_whole
from flare.config import Config, load
from flare.config.code_parts import CODE_PARTS, code_key
from flare.config.toml import MAX_FILE_BYTES
from flare.records.old_format import FORMAT_1
from flare.records.plugin_files import are_sound, used_checksum
from flare.records.regular_files import read_regular, refuse_irregular

FILE, CONFIG, ROUNDS, CHECKPOINTS = "manifest.json", "config.toml", "rounds.jsonl", "checkpoints"
FORMAT, FORMAT_VERSION = "flare-run", 2
_MAX_BYTES = 4 << 20  # the names and shapes of some ten thousand arrays; what else is in it is small


def flare_version() -> str:
    """The version of FLARE; not by an import: the package stands above all its layers."""
    return str(import_module("flare").__version__)


def new_manifest(config: Config, config_toml: str, identity: Mapping[str, str]) -> dict[str, Any]:
    """The manifest of a run that starts now, here, and is made of what `identity` says.

    Raises ValueError where the configuration is longer than can be read back.
    """
    if len(config_toml.encode()) > MAX_FILE_BYTES:
        raise ValueError(
            f"the configuration has more than the {MAX_FILE_BYTES} bytes that a run folder can hold; give the steps "
            "of so many devices by a law, by groups or by a trace"
        )
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "flare": flare_version(),
        "commit": _commit(),
        "seed": config.seed,
        "config_sha256": hashlib.sha256(config_toml.encode()).hexdigest(),
        "identity": dict(identity),
        "plugins": [{"path": path, "sha256": used_checksum(path)} for path in config.plugins],
        "hardware": {
            "machine": f"{platform.system()} {platform.machine()}",
            "cpu_count": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
            "python": platform.python_version(),
            "torch": torch.__version__,
        },
        "created": now(),
        "status": "running",
    }


def now() -> str:
    """The time, to the second, in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Write it, on the disk before this returns; ValueError where it is longer than can be read back."""
    content = (json.dumps(manifest, indent=2) + "\n").encode()
    if len(content) > _MAX_BYTES:
        raise ValueError(f"{folder / FILE} would have {len(content)} bytes, more than {_MAX_BYTES}; give fewer facts")
    write_whole(folder / FILE, content, durable=True)


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a run folder; ValueError where it is none, or none that this version can read."""
    if not folder.is_dir():
        raise ValueError(f"there is no run folder {folder}; give the folder of a run (--out of flare run)")
    path = folder / FILE
    try:
        content = read_regular(path, _MAX_BYTES)
    except FileNotFoundError:
        raise ValueError(f"{folder} is not a run folder: it has no {FILE}; give the folder of a run") from None
    except OSError as error:
        raise OSError(f"{path} cannot be read: {error.strerror}") from error
    try:
        manifest = _parsed(content)
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}); put it back from a copy, or start the run again") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise ValueError(f'{folder} is not a run folder: its {FILE} does not say "format": "{FORMAT}"')
    version = manifest.get("format_version")
    if isinstance(version, bool) or version not in (FORMAT_1, FORMAT_VERSION):
        raise ValueError(
            f"{folder} is a run folder of format version {manifest.get('format_version')}, this flare reads versions "
            f"{FORMAT_1} and {FORMAT_VERSION}; use the flare that wrote it (version {manifest.get('flare')}), or start "
            "the run again"
        )
    _refuse_odd_values(path, manifest)
    return manifest


def is_run_folder(folder: Path) -> bool:
    """Whether the folder holds a run, of whatever version; false of one that never began."""
    return _has_manifest(folder) and _has_begun(folder)


def never_began(folder: Path) -> bool:
    """Whether the folder is what a process leaves that is killed while it makes it: the manifest, which is the first to
    be written, and nothing of a run. It may be taken for a new one."""
    return _has_manifest(folder) and not _has_begun(folder)


def _has_manifest(folder: Path) -> bool:
    try:
        manifest = _parsed(read_regular(folder / FILE, _MAX_BYTES))
    except (OSError, ValueError):
        return False
    return isinstance(manifest, dict) and manifest.get("format") == FORMAT


def _has_begun(folder: Path) -> bool:
    """Whether there is a configuration, a record or a checkpoint."""
    inner = folder / CHECKPOINTS
    written = inner.is_symlink() or (inner.exists() and not inner.is_dir()) or (inner.is_dir() and any(inner.iterdir()))
    return written or any(os.path.lexists(folder / name) for name in (CONFIG, ROUNDS))


def read_config(path: Path) -> Config:
    """The configuration in a run folder; ValueError where it cannot be read."""
    refuse_irregular(path)
    return load(path, of_run=True)


_DIFFERENCES = {
    "samples": "its samples are others",
    "division": "its samples are divided otherwise among the devices",
    "layers": "the layers of its model are others",
    "start": "the start weights of its model are others",
    "trace": "the trace of its channels, speeds or steps is another",
} | {code_key(part): f"the code of its {part} is another" for part in CODE_PARTS}
"""What is said of parts of an identity that are checksums."""


def refuse_other(
    folder: Path, manifest: dict[str, Any], identity: Mapping[str, str], *, but: Collection[str] = ()
) -> None:
    """ValueError that names the parts, `but` for some, in which a run is not made of what `identity` says."""
    recorded = manifest.get("identity", {})
    others = [
        _DIFFERENCES.get(part)
        or f"its {part} is {recorded.get(part, 'not known')}, and here it is {identity.get(part, 'not known')}"
        for part in sorted(recorded.keys() | identity.keys())
        if recorded.get(part) != identity.get(part)
        and part not in but
        and not (part == "data" and _same_own_data(recorded, identity))
    ]
    if others:
        raise ValueError(
            f"{folder} cannot be continued here: {'; '.join(others)}; continue it in Python with the data, model "
            "and code that it was begun with (docs/training.md says how), or begin a new run in another folder"
        )


def _same_own_data(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Whether two identities are of the same samples of a user's own, whatever they are called."""
    return one.get("samples") == other.get("samples") and all(
        each.get("data", "").startswith("own data") for each in (one, other)
    )


def refuse_changed_config(manifest: dict[str, Any], path: Path) -> None:
    """ValueError where the configuration is not, byte for byte, the one that the run began with."""
    if hashlib.sha256(read_regular(path, MAX_FILE_BYTES)).hexdigest() != manifest["config_sha256"]:
        raise ValueError(
            f"{path} was changed since the run began, so that it no longer says what the run is, and the run cannot be "
            "continued; put it back as it was, or start a new run from it in another folder"
        )


def _parsed(content: bytes) -> Any:
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("its brackets are nested too deeply") from None


def _refuse_odd_values(path: Path, manifest: dict[str, Any]) -> None:
    """ValueError where an entry that is read again has another type than was written."""
    ended = manifest.get("records", {"rounds": 0, "check": ""})
    identity = manifest.get("identity", {})
    sound = {
        "config_sha256": isinstance(manifest.get("config_sha256"), str),
        "records": isinstance(ended, dict)
        and isinstance(ended.get("rounds"), int)
        and isinstance(ended.get("check"), str),
        "identity": isinstance(identity, dict) and all(isinstance(each, str) for each in identity.values()),
        "plugins": are_sound(manifest.get("plugins", [])),
    }
    for name, is_sound in sound.items():
        if not is_sound:
            raise ValueError(f'{path} is damaged: its "{name}" is not what flare writes; put it back from a copy')


@cache
def _commit() -> str | None:
    """The commit of the checkout that the package runs from ("-dirty" where files differ from it), if it is one.

    Asked once in a process: what it has imported stays the code that it runs, whatever becomes of the checkout.
    """
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return None
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, env=environment, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
