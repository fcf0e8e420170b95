"""Compiles what the tests import while pip still installs: pip keeps one core busy, and this another.

    python compiling.py, in the environment; it ends with whoever started it, or when all is done

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


def main() -> None:
    packages, parent = Path(sysconfig.get_path("purelib")), os.getppid()
    for name, modules in IMPORTED.items():
        while not list(packages.glob(f"{name}-*.dist-info/RECORD")):
            time.sleep(0.1)
            if os.getppid() != parent:
                return
        subprocess.run([sys.executable, "-c", f"import {modules}"], stderr=subprocess.DEVNULL, check=False)


if __name__ == "__main__":
    main()
