"""manifest.json: what a run folder is, and where and by what it was made."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

FILE = "manifest.json"
FORMAT, FORMAT_VERSION = "flare-run", 1


def new_manifest(seed: int, config_toml: str) -> dict[str, Any]:
    """The manifest of a run that starts now, here."""
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "flare": import_module("flare").__version__,  # not an import: the package stands above all its layers
        "commit": _commit(),
        "seed": seed,
        "config_sha256": hashlib.sha256(config_toml.encode()).hexdigest(),
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


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a run folder; ValueError where it is none, or none that this version can read."""
    if not folder.is_dir():
        raise ValueError(f"there is no run folder {folder}; give the folder of a run (--out of flare run)")
    path = folder / FILE
    try:
        manifest = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ValueError(f"{folder} is not a run folder: it has no {FILE}; give the folder of a run") from None
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}); put it back from a copy, or start the run again") from None
    except OSError as error:
        raise OSError(f"{path} cannot be read: {error.strerror}") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise ValueError(f'{folder} is not a run folder: its {FILE} does not say "format": "{FORMAT}"')
    if manifest.get("format_version") != FORMAT_VERSION:
        raise ValueError(
            f"{folder} is a run folder of format version {manifest.get('format_version')}, this flare reads version "
            f"{FORMAT_VERSION}; use the flare that wrote it (version {manifest.get('flare')}), or start the run again"
        )
    return manifest


def is_run_folder(folder: Path) -> bool:
    """Whether the folder holds a run, of whatever version."""
    try:
        manifest = json.loads((folder / FILE).read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(manifest, dict) and manifest.get("format") == FORMAT


def refuse_changed_config(manifest: dict[str, Any], path: Path) -> None:
    """ValueError where the configuration is not, byte for byte, the one that the run began with."""
    if hashlib.sha256(path.read_bytes()).hexdigest() != manifest.get("config_sha256"):
        raise ValueError(
            f"{path} was changed since the run began, so that the run cannot be continued; put it back as it was, or "
            "start a new run from it in another folder"
        )


def _commit() -> str | None:
    """The commit of the checkout that the package runs from ("-dirty" where files differ from it), if it is one."""
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
