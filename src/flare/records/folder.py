"""The run folder: all that is needed to resume a run, to draw it and to report on it.

    config.toml      the complete configuration
    manifest.json    versions, seed, hardware, what the run is made of, status
    rounds.jsonl     one object a round, each with a checksum (flare.records.lines)
    checkpoints/     the last two snapshots, each with its checksum
    .lock            held by the one process that writes
    *.aside-1        what was damaged, or cut off with something damaged, and may be missed

A process may die at any moment, and somebody may have changed the files. `restore` puts in order what is left: records
and snapshot of the same round (flare.records.recovery).
"""

from __future__ import annotations

import contextlib
import json
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

from flare.atomic import sync_folder, write_whole
from flare.config import Config, to_toml
from flare.records import manifest as manifests
from flare.records.checkpoint import Snapshot, encode
from flare.records.checkpoints import checkpoint_path, checkpoints, drop_old
from flare.records.disk_errors import explained
from flare.records.layout import refuse_occupied, remove_partial, remove_run
from flare.records.lines import Mark, first_mark, max_line_bytes, to_json
from flare.records.locking import lock
from flare.records.manifest import CHECKPOINTS, CONFIG, ROUNDS
from flare.records.old_format import FORMAT_1, refuse_to_continue
from flare.records.plugin_files import ChangedPlugin, changed_plugins, refuse_changed
from flare.records.record_file import RecordFile, read_file, survey
from flare.records.recovery import find_recovery, put_aside
from flare.records.regular_files import folder_is_there, has_other_names, make_own

_ENDING = {"ended", "result", "records"}


class RunFolder:
    """A run on disk. Made by `create` or `open`; written by one process at a time, read by any number.

    `create` and `restore` make this process the writer, until `close`, the end of a with block or of the process.
    """

    def __init__(self, path: Path, config: Config, manifest: dict[str, Any]) -> None:
        self.path = path
        self.config = config
        self.manifest = manifest
        self._records: RecordFile | None = None  # open where this process is the writer
        self._held = ExitStack()  # the lock and the open file
        self._end_before: Mapping[str, Any] = {}  # how the run had ended before it was continued
        self._close = weakref.finalize(self, self._held.close)
        self._max_line_bytes = max_line_bytes(config.wireless.num_devices)

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

        `facts` are written into the manifest beside its own. `identity` says what the run is made of, part by part
        ("data", "model", ...), for `refuse_other`.

        Raises ValueError where the folder is in use, OSError where it cannot be written.
        """
        path = Path(path).absolute()
        config_toml = to_toml(config)
        manifest = manifests.new_manifest(config, config_toml, identity or {}) | dict(facts or {})
        folder = cls(path, config, manifest)
        with explained("the run folder", path, "then start the run again"):
            refuse_occupied(path, force)
            path.mkdir(parents=True, exist_ok=True)
            try:
                folder._held.callback(lock(path))
                refuse_occupied(path, force)  # another process may have been first
                folder._write_new(config_toml)
            except BaseException:
                folder.close()
                raise
        return folder

    @staticmethod
    def refuse_occupied(path: str | Path, *, force: bool = False) -> None:
        """ValueError where `create` would refuse the folder; nothing is touched."""
        refuse_occupied(Path(path).absolute(), force)

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """A run that is there, to read; call `restore` to continue it. ValueError where it is damaged or no run."""
        path = Path(path).absolute()
        manifest = manifests.read_manifest(path)
        if manifests.never_began(path):
            raise ValueError(
                f"{path} holds no run yet: a process is making the folder at this moment (then look again), or was "
                "killed there, and nothing is lost; start the run again (its folder is taken as it is), or delete it"
            )
        try:
            return cls(path, manifests.read_config(path / CONFIG), manifest)
        except ValueError as error:
            raise ValueError(f"the run folder is damaged, or of another version of flare: {error}") from None

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let another process write."""
        self._records = None
        self._held.close()

    def append(self, record: dict[str, Any]) -> None:
        """Record the next round: its "round" is the number of rounds recorded so far, and it has no key "check".

        The line is with the system when this returns: a killed process does not lose it.
        """
        records = self._writable()
        try:
            records.append(record)
        except OSError:
            with self._resumable("the record of a round", self.path / ROUNDS):
                raise

    def checkpoint(self, snapshot: Snapshot) -> None:
        """Write a snapshot to the disk, after the records that it continues; the last two are kept.

        Rounds recorded after that of the snapshot are taken back: a run that is interrupted between record and state
        continues from the state.
        """
        records = self._writable()
        recorded = records.mark.rounds
        if snapshot.rounds_done > recorded:
            raise ValueError(
                f"a snapshot after {snapshot.rounds_done} rounds is ahead of the {recorded} recorded rounds; "
                "append the record of every round, then take the snapshot"
            )
        path = checkpoint_path(self.path / CHECKPOINTS, snapshot.rounds_done)
        with self._resumable("a checkpoint", path):
            if snapshot.rounds_done < recorded:
                records.cut(self._mark_after(snapshot.rounds_done))
            pieces = encode(snapshot, str(records.mark.check))
            records.sync()  # a checkpoint must never be ahead of the records
            self._make_checkpoint_folder()
            if not self.manifest.get("has_checkpoints"):  # said before the first: where none is left, records are kept
                self._write_manifest({"has_checkpoints": True})
            write_whole(path, *pieces, durable=True)
            drop_old(path.parent)

    def refuse_old_format(self) -> None:
        """ValueError where the folder is of format 1, which can be read and not continued."""
        if self._is_old:
            refuse_to_continue(self.path, self.manifest.get("flare"))

    def refuse_changed_config(self) -> None:
        """ValueError where config.toml is no longer what the run began with."""
        manifests.refuse_changed_config(self.manifest, self.path / CONFIG)

    def restore(self, refuse: Callable[[Snapshot], object] = lambda _: None) -> Snapshot | None:
        """The newest snapshot that fits to the records, and the records cut back to its round; None: start from the
        beginning. A snapshot that `refuse` raises ValueError of counts as damaged.

        What is damaged is logged and kept beside under a name that ends in ".aside-1", records that are cut off with it
        too (flare.records.recovery). Raises ValueError where another process writes, the configuration was changed,
        no checkpoint fits to the records or the folder is of format 1; OSError where the folder cannot be written.
        """
        self.refuse_old_format()
        self.refuse_changed_config()
        try:
            with self._resumable("the run folder", self.path):
                return self._restored(refuse)
        except BaseException:
            self.close()
            raise

    def _restored(self, refuse: Callable[[Snapshot], object]) -> Snapshot | None:
        rounds, checkpoint_folder = self.path / ROUNDS, self.path / CHECKPOINTS
        if self._records is None:
            self._held.callback(lock(self.path))
        recovery = find_recovery(rounds, checkpoint_folder, self._first_mark(), self._max_line_bytes, refuse)
        remove_partial(self.path)
        put_aside(recovery, rounds, had_checkpoints=bool(self.manifest.get("has_checkpoints")))
        self._make_checkpoint_folder()
        drop_old(checkpoint_folder)
        if has_other_names(rounds):  # also where the records as they were are kept
            make_own(rounds, recovery.mark.num_bytes)
            self._records = None
        self._open_records(recovery.mark).cut(recovery.mark)
        if self.manifest.get("status") != "running" or recovery.snapshot is None:
            self._end_before = {name: self.manifest.get(name) for name in ("status", "records", "ended")}
            gone = _ENDING if recovery.snapshot is not None else _ENDING | {"has_checkpoints"}
            self.manifest = {name: value for name, value in self.manifest.items() if name not in gone}
            self._write_manifest({"status": "running"})
        return recovery.snapshot

    def finish(self, status: str, **facts: Any) -> None:
        """Say in the manifest how the run ended ("finished", "diverged", "interrupted", ...), `facts` as its result. A
        run that had ended so, and did no more when it was continued, ended then."""
        records = self._writable()
        result = json.loads(to_json(facts))
        ended = {"rounds": records.mark.rounds, "check": records.mark.check}
        is_as_before = (self._end_before.get("status"), self._end_before.get("records")) == (status, ended)
        when = self._end_before.get("ended") if is_as_before else None
        with self._resumable("how the run ended", self.path / manifests.FILE):
            records.sync()
            told = {"status": status, "ended": when or manifests.now(), "result": result, "records": ended}
            self._write_manifest(told)

    def identify(self, identity: Mapping[str, str]) -> None:
        """Say what the run is made of, where `create` was not told and nothing is recorded yet; else `refuse_other`."""
        if self._writable().mark.rounds == 0 and not self.manifest.get("identity"):
            with explained("the run folder", self.path, "then start the run again"):
                self._write_manifest({"identity": dict(identity)})
        self.refuse_other(identity)

    def refuse_other(self, identity: Mapping[str, str], *, but: Collection[str] = ()) -> None:
        """ValueError where the run was made of something else, with the parts that differ, `but` for some; to call
        before `restore`."""
        manifests.refuse_other(self.path, self.manifest, identity, but=but)

    def refuse_changed_plugins(self, *, allowed: bool = False) -> None:
        """ValueError where the file of a plugin is not what the run began with, unless `allowed`, or is gone."""
        refuse_changed(self.path, self.changed_plugins(on_disk=True), allowed=allowed)

    def changed_plugins(self, *, on_disk: bool) -> list[ChangedPlugin]:
        """Those of the run's plugins that are not what they were: as files now, or as they were executed here."""
        return changed_plugins(self.config.plugins, self.manifest, on_disk=on_disk)

    def accept_plugins(self, changed: Sequence[ChangedPlugin], identity: Mapping[str, str], rounds: int) -> None:
        """Write down that the run goes on after so many rounds with plugins that were changed; after `restore`."""
        self._writable()
        now = {each.path: each.now for each in changed}
        entry = [
            {"when": manifests.now(), "path": each.path, "was": each.was, "is": each.now, "after_rounds": rounds}
            for each in changed
        ]
        before = {each["path"]: each["sha256"] for each in self.manifest.get("plugins", [])}
        plugins = [{"path": path, "sha256": sha256} for path, sha256 in (before | now).items()]
        changes = [*self.manifest.get("changed_plugins", []), *entry]
        self._write_manifest({"plugins": plugins, "changed_plugins": changes, "identity": dict(identity)})

    def drop_checkpoints(self) -> None:
        """Remove all checkpoints, of a run that has ended: what is left is all that a report needs."""
        self._writable()
        drop_old(self.path / CHECKPOINTS, kept=0)

    @property
    def has_checkpoints(self) -> bool:
        """Whether there is a checkpoint to continue from."""
        return bool(checkpoints(self.path / CHECKPOINTS))

    def iter_records(self) -> Iterator[dict[str, Any]]:
        """The recorded rounds one by one, also while another process writes; as they were written, or ValueError."""
        path, rounds = self.path / ROUNDS, 0
        ended = self.manifest.get("records", {"rounds": 0, "check": None})
        try:
            for record, mark in read_file(path, self._first_mark(), self._max_line_bytes):
                rounds = mark.rounds
                if rounds == ended["rounds"] and mark.check != ended["check"]:
                    raise ValueError(f"{path}: line {rounds} is not the one that the run ended with")
                yield record
            if rounds < ended["rounds"]:
                raise ValueError(f"{path}: lines {rounds + 1} to {ended['rounds']} are missing")
        except ValueError as error:
            raise ValueError(f"{error}; put the file back from a copy, or {self._way_back(rounds)}") from None

    def _way_back(self, rounds: int) -> str:
        """What can be done where only so many records are sound, in words."""
        try:
            found = [] if self._is_old else [done for done, _ in checkpoints(self.path / CHECKPOINTS)]
        except (ValueError, OSError):  # what is wrong with the records counts here
            return "start the run again in another folder"
        if self._is_old or (found and min(found) > rounds):  # none goes on from what is left
            return "start the run again in another folder"
        back = "go back to the last sound checkpoint" if found else "compute it again from the beginning"
        return f"{back} with --resume {self.path}"

    def records(self) -> list[dict[str, Any]]:
        """All recorded rounds."""
        return list(self.iter_records())

    @property
    def _is_old(self) -> bool:
        return bool(self.manifest["format_version"] == FORMAT_1)

    def _first_mark(self) -> Mark:
        return first_mark(self.manifest)

    def _mark_after(self, rounds: int) -> Mark:
        surveyed = survey(self.path / ROUNDS, self._first_mark(), self._max_line_bytes, {rounds})
        if rounds not in surveyed.marks:
            raise ValueError(f"the records were changed while the run was going: {surveyed.fault}")
        return surveyed.marks[rounds]

    def _writable(self) -> RecordFile:
        if self._records is None:
            raise ValueError(f"{self.path} is open to read only; call restore() first to continue the run")
        return self._records

    def _resumable(self, what: str, path: Path) -> AbstractContextManager[None]:
        return explained(
            what, path, f"what was written before is safe: the run can then be continued with --resume {self.path}"
        )

    def _open_records(self, mark: Mark, *, new: bool = False) -> RecordFile:
        if self._records is None:
            self._records = RecordFile(self.path / ROUNDS, mark, self._max_line_bytes, new=new)
            self._held.callback(self._records.close)
        return self._records

    def _write_new(self, config_toml: str) -> None:
        replaced = manifests.is_run_folder(self.path)
        try:
            remove_run(self.path)
            self._write_manifest({})  # first, so that --force works on what a killed process leaves
            self._make_checkpoint_folder()
            write_whole(self.path / CONFIG, config_toml.encode(), durable=True)
            self._open_records(self._first_mark(), new=True)
            sync_folder(self.path.parent)
        except BaseException:
            if not replaced:
                with contextlib.suppress(OSError):
                    for name in (manifests.FILE, CONFIG, ROUNDS):
                        (self.path / name).unlink(missing_ok=True)
                    (self.path / CHECKPOINTS).rmdir()
            raise

    def _write_manifest(self, changes: Mapping[str, Any]) -> None:
        changed = self.manifest | dict(changes)
        manifests.write_manifest(self.path, changed)
        self.manifest = changed

    def _make_checkpoint_folder(self) -> None:
        if not folder_is_there(self.path / CHECKPOINTS):
            (self.path / CHECKPOINTS).mkdir()
            sync_folder(self.path)
