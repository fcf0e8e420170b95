"""The tables of runs as files for other programs: CSV, Parquet, MATLAB.

CSV and Parquet: a folder with rounds.csv and devices.csv (or .parquet). MATLAB: one file with the structs `rounds` and
`devices`, a column each of their fields. Every table begins with the columns run, label, method, policy and seed, also
where there is one run alone, so that a program that reads one reads many.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flare.atomic import write_whole
from flare.extras import imported
from flare.research.run import Run
from flare.research.runs import Runs
from flare.research.tables import Columns
from flare.text import csv_text

KINDS = ("csv", "parquet", "mat")


def export(runs: Run | Runs, kind: str, out: Path, *, force: bool = False) -> list[Path]:
    """Write the tables of runs as files of a kind of `KINDS`, each whole or not at all; the files.

    Raises ValueError where a file is there already and not `force`, and for a name that does not fit; OSError where a
    file cannot be written.
    """
    files_of(kind, out, force=force)  # refuses before anything is computed
    return write(tables_of(runs), kind, out, force=force)


def tables_of(runs: Run | Runs) -> dict[str, Columns]:
    """The tables of runs, by name. A warning tells what is not known of their devices."""
    several = runs if isinstance(runs, Runs) else Runs([runs])
    return {"rounds": several.round_columns(), "devices": several.device_columns()}


def write(tables: Mapping[str, Columns], kind: str, out: Path, *, force: bool = False) -> list[Path]:
    """Write tables as `export` does."""
    files = files_of(kind, out, force=force)
    contents = [_mat(tables)] if kind == "mat" else [_WRITERS[kind](table) for table in tables.values()]
    for file, content in zip(files, contents, strict=True):
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            write_whole(file, content)
        except OSError as error:
            raise type(error)(f"{file}: the table cannot be written: {error.strerror or error}") from None
    return files


def files_of(kind: str, out: Path, *, force: bool) -> list[Path]:
    """The files that `export` writes; ValueError where it would refuse to."""
    if kind not in KINDS:
        raise ValueError(f"there is no kind of file {kind!r:.80}; give one of {', '.join(KINDS)}")
    if kind == "parquet":
        imported("pyarrow.parquet", "a Parquet file")
    files = _places(kind, out)
    for file in files:
        if file.is_dir() or (os.path.lexists(file) and not force):
            raise ValueError(f"{file} is there already; give another place, or --force to write over it")
    return files


def _places(kind: str, out: Path) -> list[Path]:
    if kind == "mat":
        if out.suffix.lower() != ".mat":
            raise ValueError(f"cannot write to {out}; give the name of a file that ends in .mat")
        return [out]
    if os.path.lexists(out) and not out.is_dir():
        raise ValueError(f"{out} is a file; give a folder for rounds.{kind} and devices.{kind}")
    return [out / f"{name}.{kind}" for name in ("rounds", "devices")]


def csv_bytes(table: Columns) -> bytes:
    """A table as CSV: numbers in full, an empty cell where there is none, true and false in words."""
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(table)
    writer.writerows(zip(*(_cells(column) for column in table.values()), strict=True))
    return written.getvalue().encode()


def _cells(column: NDArray[Any]) -> Iterator[str]:
    values = column.tolist()
    match column.dtype.kind:
        case "O":
            return (csv_text(value) for value in values)
        case "b":
            return ("true" if value else "false" for value in values)
        case "f":
            return ("" if value != value else repr(value) for value in values)
    return (str(value) for value in values)


def parquet_bytes(table: Columns) -> bytes:
    """A table as Parquet: nulls where there is no number; texts as dictionaries."""
    arrow, parquet = imported("pyarrow", "a Parquet file"), imported("pyarrow.parquet", "a Parquet file")
    columns = {name: arrow.array(column, from_pandas=True) for name, column in table.items()}
    for name, column in table.items():
        if column.dtype.kind == "O":
            columns[name] = arrow.array(column, type=arrow.string()).dictionary_encode()
    written = io.BytesIO()
    parquet.write_table(arrow.table(columns), written)
    return written.getvalue()


_WRITERS: Mapping[str, Callable[[Columns], bytes]] = {"csv": csv_bytes, "parquet": parquet_bytes}


def _mat(tables: Mapping[str, Columns]) -> bytes:
    """A struct for each table. A column of texts is one of whole numbers, from 1, that count in the cell array of the
    same name with `_names`; 0 is an empty text. In MATLAB: categorical(t.policy, 1:numel(t.policy_names),
    t.policy_names)."""
    from scipy.io import savemat
    from scipy.io.matlab import MatWriteError

    written = io.BytesIO()
    structs = {name: _plain_arrays(table) for name, table in tables.items()}
    try:
        savemat(written, structs, long_field_names=True, do_compression=True, oned_as="column")
    except (MatWriteError, OverflowError) as error:
        raise ValueError(
            f"a MATLAB file has no room for these tables ({error}); take --parquet, or fewer runs"
        ) from None
    return written.getvalue()


def _plain_arrays(table: Columns) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {}
    for name, column in table.items():
        if column.dtype.kind != "O":
            arrays[name] = column
            continue
        names = sorted(set(column.tolist()) - {""})
        code = {"": 0} | {text: place for place, text in enumerate(names, start=1)}
        arrays[name] = np.array([code[text] for text in column.tolist()], dtype=np.int32)
        cells = np.empty(len(names), dtype=object)
        cells[:] = names
        arrays[f"{name}_names"] = cells
    return arrays
