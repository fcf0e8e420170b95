"""Run folders as tests write them (tests/record_writer.py), and what must be in them."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from torch import Tensor

from flare.config import to_toml
from flare.records import RunFolder
from flare.records.lines import first_mark, seal
from tests.record_writer import CONFIG, resume, start, step, write


def written(path: Path, rounds: int) -> Path:
    """A run folder that was written up to a round and closed."""
    with RunFolder.create(path, CONFIG) as folder:
        write(folder, start(), 0, rounds)
    return path


def lines(path: Path) -> list[bytes]:
    return (path / "rounds.jsonl").read_bytes().splitlines(keepends=True)


def checkpoint_names(path: Path) -> list[str]:
    return sorted(each.name for each in (path / "checkpoints").iterdir())


def expected(rounds: int) -> tuple[Tensor, list[bytes]]:
    """Weights and lines of a run that nothing ever interrupted."""
    weights, text = start(), []
    sha256 = hashlib.sha256(to_toml(CONFIG).encode()).hexdigest()
    mark = first_mark({"format_version": 2, "config_sha256": sha256})
    for number in range(rounds):
        weights, record = step(weights, number)
        line, mark = seal(record, mark)
        text.append(line)
    return weights, text


def assert_restored(path: Path, rounds_done: int) -> None:
    """The folder continues from that round, with that round's weights and exactly its records."""
    with RunFolder.open(path) as folder:
        weights, done = resume(folder)
    assert done == rounds_done
    wanted_weights, wanted_lines = expected(done)
    assert torch.equal(weights, wanted_weights)
    assert lines(path) == wanted_lines
    assert not [each for each in path.rglob("*") if each.name.endswith(".part")]
