"""Small made-up data sets in the files' own formats, and a catalogue that takes them for the real ones."""

from __future__ import annotations

import gzip
import hashlib
import io
import struct
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flare.data.catalogue import CATALOGUE
from flare.data.files import DataFile
from flare.data.origins import Origin
from flare.rng import stream

SAMPLES = {"train": 60, "t10k": 20}


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def images(part: str, samples: int, word: str) -> np.ndarray:
    return stream(0, word, part, "images").integers(0, 256, (samples, 28, 28), dtype=np.uint8)


def labels(samples: int) -> np.ndarray:
    return (np.arange(samples) % 10).astype(np.uint8)


def idx_files(word: str) -> dict[str, bytes]:
    """The four files of a data set like MNIST; `word` makes them different from others."""
    files = {}
    for part, samples in SAMPLES.items():
        files[f"{part}-images-idx3-ubyte"] = idx(images(part, samples, word))
        files[f"{part}-labels-idx1-ubyte"] = idx(labels(samples))
    return files


def cifar_files() -> dict[str, bytes]:
    names = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
    files = {}
    for name in names:
        rows = stream(0, "cifar", name).integers(0, 256, (20, 3073), dtype=np.uint8)
        rows[:, 0] = labels(20)
        files[name] = rows.tobytes()
    return files


FILES = {"mnist": idx_files("mnist"), "fashion-mnist": idx_files("fashion"), "cifar10": cifar_files()}


def pinned(file: DataFile, content: bytes) -> DataFile:
    return DataFile(file.name, len(content), hashlib.sha256(content).hexdigest())


def use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *origins: Origin) -> Path:
    """From here on the made-up files are the right ones; the empty cache is in `tmp_path`, and nothing is fetched
    from anywhere but `origins`. Returns the cache folder."""
    for name, files in FILES.items():
        known = CATALOGUE[name]
        train, test = ([pinned(file, files[file.name]) for file in part] for part in (known.train, known.test))
        made_up = replace(known, train=tuple(train), test=tuple(test), origins=origins)
        monkeypatch.setitem(CATALOGUE, name, made_up)
    cache = tmp_path / "cache"
    monkeypatch.setenv("FLARE_CACHE", str(cache))
    monkeypatch.delenv("FLARE_DATA", raising=False)
    if origins:
        monkeypatch.delenv("FLARE_OFFLINE", raising=False)
    else:
        monkeypatch.setenv("FLARE_OFFLINE", "1")
    return cache


def write(folder: Path, name: str, *, zipped: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in FILES[name].items():
        if zipped:
            (folder / f"{file}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / file).write_bytes(content)
    return folder


def tar(members: dict[str, bytes], mode: str = "w:gz") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()
