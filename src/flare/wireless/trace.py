"""Recorded cells: gains, processor speeds and local steps for each round and device, from a file.

CSV   long (columns round, device, ...), wide (a column a device), or a matrix of numbers alone: `trace_csv.py`
NPZ   some of the arrays gain_db, cpu_hz, tau, h, each of shape (rounds, devices): `npz.py`
MAT   the same as variables of MATLAB: `mat.py`

Channel coefficients h may be complex and have a third axis, the antennas: `recorded.py` makes gains of them. What a
file does not hold is drawn by the laws of the cell.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flare.types import Floats


@dataclass(frozen=True, eq=False)
class Trace:
    """What a file says: some of gain_db, cpu_hz and tau, each of shape (rounds, devices)."""

    path: Path
    num_rounds: int
    num_devices: int
    values: dict[str, Floats]

    def round(self, index: int, *, repeat: bool) -> dict[str, Floats]:
        """The recorded quantities of one round, each of shape (devices,); with `repeat`, the end meets the start."""
        if index >= self.num_rounds and not repeat:
            raise ValueError(
                f"{self.path}: round {index} is not in the trace, which has rounds 0 to {self.num_rounds - 1}; "
                "run fewer rounds, or set wireless.trace_repeat = true to start it again"
            )
        return {name: values[index % self.num_rounds] for name, values in self.values.items()}


def read_trace(path: str | Path) -> Trace:
    """Read a trace; the ending of its name, .csv, .npz or .mat, says which kind it is.

    Raises ValueError with file, line and column (CSV), or array, round and device (NPZ, MAT), why, and what would be
    right.
    """
    from flare.wireless import (
        mat,
        npz,
        recorded,
        trace_csv,
    )  # here, because most cells have no trace and need none of it

    path = Path(path)
    read = {".csv": trace_csv.read_csv, ".npz": npz.read_npz, ".mat": mat.read_mat}.get(path.suffix.lower())
    if read is None:
        raise ValueError(f"{path}: a trace is a CSV, NPZ or MATLAB file; its name must end in .csv, .npz or .mat")
    values = recorded.checked(path, read(path))
    for each in values.values():
        each.setflags(write=False)  # rounds are handed out as views
    num_rounds, num_devices = next(iter(values.values())).shape
    return Trace(path, num_rounds, num_devices, values)
