"""Compiles what the tests import while pip still installs: it waits much, and leaves the cores to this.

    python compiling.py, in the environment; it waits no longer than for FLARE, which comes last

Each package is imported as soon as it is there with all that it needs. What goes wrong here goes wrong again where it
counts, so that it is not told.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import time
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from pip._vendor.packaging.requirements import Requirement

IMPORTED = {
    "sympy": "sympy",
    "pyarrow": "pyarrow",
    "hypothesis": "hypothesis",
    "sqlalchemy": "sqlalchemy",
    "scipy": "scipy.optimize, scipy.stats",
    "pytest": "pytest",
    "playwright": "playwright.sync_api",
    "jedi": "jedi",
    "torch": "torch",
    "scikit_learn": "sklearn.datasets",
    "pandas": "pandas",
    "matplotlib": "matplotlib.pyplot",
    "ipython": "IPython",
    "optuna": "optuna",
    "ipykernel": "ipykernel.kernelapp",
    "fastapi": "fastapi",
    "ray": "ray",
    "flwr": "flwr.app, flwr.clientapp, flwr.serverapp",
}
"""By the name of what is installed, those first that are there first."""
_WHOLE: set[str] = set()


def is_whole(name: str) -> bool:
    """Whether it is installed, and all that it needs."""
    if name in _WHOLE:
        return True
    try:
        found = distribution(name)
    except PackageNotFoundError:
        return False
    if found.read_text("RECORD") is None:  # which pip writes last
        return False
    _WHOLE.add(name)  # also where two need one another
    asked = [Requirement(each) for each in found.requires or []]
    if all(is_whole(each.name) for each in asked if each.marker is None or each.marker.evaluate({"extra": ""})):
        return True
    _WHOLE.remove(name)
    return False


def main() -> None:
    parent = os.getppid()
    left = dict(IMPORTED)
    while left and os.getppid() == parent:
        is_over = any(Path(sysconfig.get_path("purelib")).glob("flare_wfl-*.dist-info/RECORD"))
        there = next((name for name in left if is_over or is_whole(name)), None)
        if there is None:
            time.sleep(0.3)
            continue
        subprocess.run(
            [sys.executable, "-c", f"import {left.pop(there)}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )


if __name__ == "__main__":
    main()
