"""The run folder: all that is needed to resume a run, to draw it and to report on it.

    config.toml      the complete configuration
    manifest.json    versions, seed, hardware, status
    rounds.jsonl     one object a round; also the lock of the folder, held by the one process that writes
    checkpoints/     the last two snapshots, each with its checksum

A process may die at any moment. What it leaves is put in order by `restore`: records and snapshot of the same round.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from flare.atomic import PART, sync_folder, write_all, write_whole
from flare.config import Config, load, to_toml
from flare.records import manifest as manifests
from flare.records.checkpoint import Snapshot, encode
from flare.records.checkpoints import checkpoint_path, checkpoints, drop_old, newest_sound
from flare.records.lines import measure, read_lines, to_line
from flare.records.locking import lock, telling

_CONFIG, _ROUNDS, _CHECKPOINTS = "config.toml", "rounds.jsonl", "checkpoints"
_PARTIAL = re.compile(r"\.(config\.toml|manifest\.json|round-\d+\.safetensors)\.\d+" + re.escape(PART))
_ENDING = {"ended", "result"}


class RunFolder:
    """A run on disk. Made by `create` or `open`; written by one process at a time, read by any number.

    `create` and `restore` make this process the writer, until `close`, the end of a with block or of the process.
    """

    def __init__(self, path: Path, config: Config, manifest: dict[str, Any]) -> None:
        self.path = path
        self.config = config
        self.manifest = manifest
        self._file: int | None = None  # rounds.jsonl, open and locked
        self._close: Callable[[], object] | None = None
        self._rounds = 0
        self._bytes = 0

    @classmethod
    def create(
        cls,
        path: str | Path,
        config: Config,
        *,
        force: bool = False,
        facts: Mapping[str, Any] | None = None,
        identity: Mapping[str, str] | None = None,
    ) -> RunFolder:
        """Make the folder of a new run. With `force` a run that is already there makes way, but nothing else.

        `facts` are written into the manifest beside its own.

        Raises ValueError where the folder is in use, OSError where it cannot be written.
        """
        path = Path(path).absolute()
        config_toml = to_toml(config)
        folder = cls(
            path,
            config,
            manifests.new_manifest(config.seed, config_toml) | {"identity": dict(identity or {})} | dict(facts or {}),
        )
        with telling("the run folder", path, "then start the run again"):
            _refuse_occupied(path, force)
            path.mkdir(parents=True, exist_ok=True)
            folder._lock()
            try:
                _refuse_occupied(path, force)  # another process may have been first
                folder._write_new(config_toml)
            except BaseException:
                folder.close()
                raise
        return folder

    @staticmethod
    def refuse_occupied(path: str | Path, *, force: bool = False) -> None:
        """ValueError where `create` would refuse the folder; nothing is touched."""
        _refuse_occupied(Path(path).absolute(), force)

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """A run that is there, to read; call `restore` to continue it. ValueError where it is damaged or no run."""
        path = Path(path).absolute()
        manifest = manifests.read_manifest(path)
        try:
            return cls(path, load(path / _CONFIG), manifest)
        except ValueError as error:
            raise ValueError(f"the run folder is damaged, or of another version of flare: {error}") from None

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let another process write."""
        if self._close is not None:
            self._close()
        self._file = self._close = None

    def append(self, record: dict[str, Any]) -> None:
        """Record a round. The line is with the system when this returns: a killed process does not lose it."""
        file = self._writable()
        line = to_line(record)
        try:
            write_all(file, line)
        except BaseException as error:
            with contextlib.suppress(OSError):
                os.ftruncate(file, self._bytes)
            with self._resumable("the record of a round", self.path / _ROUNDS):
                raise error
        self._rounds += 1
        self._bytes += len(line)

    def checkpoint(self, snapshot: Snapshot) -> None:
        """Write a snapshot to the disk, after the records that it continues; the last two are kept.

        Rounds recorded after that of the snapshot are taken back: a run that is interrupted between record and state
        continues from the state.
        """
        file = self._writable()
        if snapshot.rounds_done > self._rounds:
            raise ValueError(
                f"a snapshot after {snapshot.rounds_done} rounds is ahead of the {self._rounds} recorded rounds; "
                "append the record of every round, then take the snapshot"
            )
        path = checkpoint_path(self.path / _CHECKPOINTS, snapshot.rounds_done)
        pieces = encode(snapshot)
        with self._resumable("a checkpoint", path):
            if snapshot.rounds_done < self._rounds:
                self._cut(snapshot.rounds_done)
            os.fsync(file)  # a checkpoint must never be ahead of the records
            write_whole(path, *pieces, durable=True)
            drop_old(path.parent)

    def restore(self) -> Snapshot | None:
        """The newest sound snapshot, and the records cut back to its round; None: start from the beginning.

        A damaged checkpoint is logged and set aside (its name then ends in ".damaged"). Raises ValueError where
        another process writes or the configuration was changed, OSError where the folder cannot be written.
        """
        manifests.refuse_changed_config(self.manifest, self.path / _CONFIG)
        try:
            with self._resumable("the run folder", self.path):
                return self._restored()
        except BaseException:
            self.close()
            raise

    def _restored(self) -> Snapshot | None:
        if self._file is None:
            self._lock()
        self._remove_partial()
        recorded, _ = measure(self.path / _ROUNDS)
        snapshot = newest_sound(self.path / _CHECKPOINTS, recorded)
        drop_old(self.path / _CHECKPOINTS)
        self._cut(0 if snapshot is None else snapshot.rounds_done)
        if self.manifest.get("status") != "running":
            self.manifest = {k: v for k, v in self.manifest.items() if k not in _ENDING} | {"status": "running"}
            self._write_manifest()
        return snapshot

    def identify(self, identity: Mapping[str, str]) -> None:
        """Write down what the run is, where the folder does not know it yet; ValueError where it is another."""
        self.refuse_other(identity)
        if not self.manifest.get("identity"):
            self.manifest["identity"] = dict(identity)
            self._write_manifest()

    def refuse_other(self, identity: Mapping[str, str]) -> None:
        """ValueError where the run is another."""
        told = self.manifest.get("identity", {})
        for part, mine in identity.items():
            if part in told and told[part] != mine:
                raise ValueError(f"{self.path}: the run has another {part}: {told[part]}, not {mine}")

    def finish(self, status: str, **facts: Any) -> None:
        """Say in the manifest how the run ended ("finished", "diverged", "interrupted", ...), `facts` as its result."""
        file = self._writable()
        self.manifest |= {"status": status, "ended": manifests.now(), "result": json.loads(to_line(facts))}
        with self._resumable("how the run ended", self.path / manifests.FILE):
            os.fsync(file)
            self._write_manifest()

    def drop_checkpoints(self) -> None:
        """Remove all checkpoints, of a run that has ended: what is left is all that a report needs."""
        self._writable()
        drop_old(self.path / _CHECKPOINTS, kept=0)

    @property
    def has_checkpoints(self) -> bool:
        """Whether there is a checkpoint to continue from."""
        return bool(checkpoints(self.path / _CHECKPOINTS))

    def iter_records(self) -> Iterator[dict[str, Any]]:
        """The recorded rounds one by one, also while another process writes."""
        return read_lines(self.path / _ROUNDS)

    def records(self) -> list[dict[str, Any]]:
        """All recorded rounds."""
        return list(self.iter_records())

    def _cut(self, rounds: int) -> None:
        """Keep the records of so many rounds: one call of the system, whole or not at all, that needs no room."""
        self._rounds, self._bytes = measure(self.path / _ROUNDS, rounds)
        os.ftruncate(self._writable(), self._bytes)
        os.fsync(self._writable())

    def _lock(self) -> None:
        """Become the writer."""
        file = os.open(self.path / _ROUNDS, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            lock(file, self.path)
        except BaseException:
            os.close(file)
            raise
        self._file = file
        self._close = weakref.finalize(self, os.close, file)

    def _writable(self) -> int:
        if self._file is None:
            raise ValueError(f"{self.path} is open to read only; call restore() first to continue the run")
        return self._file

    def _resumable(self, what: str, path: Path) -> AbstractContextManager[None]:
        return telling(
            what, path, f"what was written before is safe: the run can then be continued with --resume {self.path}"
        )

    def _write_new(self, config_toml: str) -> None:
        replaced = manifests.is_run_folder(self.path)
        try:
            self._remove_run()
            self._write_manifest()  # first, so that --force works on what a killed process leaves
            (self.path / _CHECKPOINTS).mkdir(exist_ok=True)
            write_whole(self.path / _CONFIG, config_toml.encode(), durable=True)
            sync_folder(self.path.parent)
        except BaseException:
            if not replaced:
                with contextlib.suppress(OSError):
                    (self.path / manifests.FILE).unlink(missing_ok=True)
                    (self.path / _CONFIG).unlink(missing_ok=True)
                    (self.path / _CHECKPOINTS).rmdir()
            raise

    def _write_manifest(self) -> None:
        content = json.dumps(self.manifest, indent=2) + "\n"
        write_whole(self.path / manifests.FILE, content.encode(), durable=True)

    def _remove_partial(self) -> None:
        """Remove what a killed process was writing."""
        for folder in (self.path, self.path / _CHECKPOINTS):
            for each in folder.iterdir() if folder.is_dir() else ():
                if _PARTIAL.fullmatch(each.name):
                    each.unlink()

    def _remove_run(self) -> None:
        """Remove records, checkpoints and configuration; what others put into the folder stays."""
        self._remove_partial()
        for each in (self.path / _CHECKPOINTS).glob("round-*.safetensors*"):
            each.unlink()
        (self.path / _CONFIG).unlink(missing_ok=True)
        os.ftruncate(self._writable(), 0)


def _refuse_occupied(path: Path, force: bool) -> None:
    if not path.exists():
        return
    if not path.is_dir():
        raise ValueError(f"{path} is a file; give a folder for the run")
    others = (each for each in path.iterdir() if not _PARTIAL.fullmatch(each.name))
    # An empty rounds.jsonl alone is what is left of a run that could not be started.
    if not any(each.name != _ROUNDS or each.stat().st_size for each in others):
        return
    if not manifests.is_run_folder(path):
        raise ValueError(f"{path} is not empty and not a run folder, so that nothing is written there; give another")
    if not force:
        raise ValueError(
            f"{path} already holds a run; continue it with --resume, write over it with --force, or give another folder"
        )
