"""Compiles the tests and what they import while pip still installs: it waits much, and leaves the cores to this.

    python compiling.py, in the environment and the folder of FLARE; it waits no longer than for FLARE, which comes last

Each package is imported as soon as it is there with all that it needs; FLARE and the tests are compiled without that,
the tests as pytest does it. What goes wrong here goes wrong again where it counts, or costs time alone, so that it is
not told.
"""

from __future__ import annotations

import compileall
import os
import subprocess
import sys
import sysconfig
import time
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from types import SimpleNamespace

from pip._vendor.packaging.requirements import Requirement

IMPORTED = {
    "sympy": "sympy",
    "pyarrow": "pyarrow",
    "hypothesis": "hypothesis",
    "sqlalchemy": "sqlalchemy",
    "scipy": "scipy.optimize, scipy.stats",
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
    "nbformat": "nbformat",
    "nbclient": "nbclient",
    "pytest_xdist": "pytest, xdist.plugin, xdist.workermanage",
    "uvicorn": "uvicorn",
    "flwr": "flwr.app, flwr.clientapp, flwr.serverapp",
}
"""By the name of what is installed, those first that are there first."""
AT_ONCE = 2
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


def compile_own() -> None:
    """FLARE and the tests, those as pytest lays them down for itself, so that not each of its processes does it."""
    from _pytest.assertion import rewrite

    root = Path(__file__).resolve().parents[1]
    compileall.compile_dir(root / "src", quiet=2)
    for path in (root / "tests").rglob("*.py"):
        if path.name == "conftest.py" or path.name.startswith("test_"):
            folder = rewrite.get_cache_dir(path)
            folder.mkdir(exist_ok=True)
            read, code = rewrite._rewrite_test(path, None)
            rewrite._write_pyc(SimpleNamespace(trace=print), code, read, folder / (path.stem + rewrite.PYC_TAIL))
        else:
            compileall.compile_file(path, quiet=2)


def main() -> None:
    if sys.argv[1:] == ["own"]:
        compile_own()
        return
    parent = os.getppid()
    left = {"pytest": [__file__, "own"]} | {name: ["-c", f"import {modules}"] for name, modules in IMPORTED.items()}
    running: list[subprocess.Popen[bytes]] = []
    while left and os.getppid() == parent:
        running = [each for each in running if each.poll() is None]
        is_over = any(Path(sysconfig.get_path("purelib")).glob("flare_wfl-*.dist-info/RECORD"))
        there = next((name for name in left if is_over or is_whole(name)), None) if len(running) < AT_ONCE else None
        if there is None:
            time.sleep(0.2)
            continue
        words = [sys.executable, *left.pop(there)]
        running.append(subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    for each in running:
        each.wait()


if __name__ == "__main__":
    main()
