"""Compiles what the tests import while pip still installs: pip keeps one core busy, and this another.

    python compiling.py, in the environment; it waits no longer than for FLARE, which comes last

Each package is imported as soon as it is there, with what it needs, which pip installs before it. What goes wrong here
goes wrong again where it counts, so that it is not told.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

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
"""By the name of what is installed, in pip's order."""


def is_installed(name: str) -> bool:
    return any(Path(sysconfig.get_path("purelib")).glob(f"{name}-*.dist-info/RECORD"))


def main() -> None:
    parent = os.getppid()
    for name, modules in IMPORTED.items():
        while not (is_installed(name) or is_installed("flare_wfl")):
            time.sleep(0.1)
            if os.getppid() != parent:
                return
        subprocess.run(
            [sys.executable, "-c", f"import {modules}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )


if __name__ == "__main__":
    main()
