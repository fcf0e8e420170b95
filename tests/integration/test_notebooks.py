"""The notebooks of the examples run from top to bottom, and hold no outputs of whoever ran them last."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

from tests import ready_python
from tests.ready_python import ROOT

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
IMPORTED = ("ipykernel.kernelapp", "pandas", "scipy.optimize", "torch")
"""Nothing of flare, and not matplotlib: as it is imported it asks where to draw."""
ASK = f"""
import os, sys
from pathlib import Path
sys.path.insert(0, {str(ROOT)!r})
from tests import ready_python
env = dict(os.environ, JPY_PARENT_PID=sys.argv[1])
run = ready_python.run([sys.executable, *sys.argv[2:]], cwd=Path.cwd(), env=env, imported={IMPORTED!r})
sys.exit(run.returncode)
"""


class ReadyKernels(AsyncKernelManager):
    """Each kernel is a copy of a process that has imported what takes long, and ends when that does."""

    def format_kernel_cmd(self, extra_arguments: list[str] | None = None) -> list[str]:
        server = (ready_python.process(IMPORTED) / "pid").read_text()
        return [sys.executable, "-c", ASK, server, *super().format_kernel_cmd(extra_arguments)[1:]]


def shown(book: Any, kind: str) -> list[str]:
    """What the cells show of a kind."""
    outputs = [output for cell in book.cells if cell.cell_type == "code" for output in cell.outputs]
    return [output["data"][kind] for output in outputs if kind in output.get("data", {})]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    book = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in book.cells)
    NotebookClient(
        book,
        timeout=120,
        kernel_name="python3",
        kernel_manager_class=ReadyKernels,
        resources={"metadata": {"path": str(tmp_path)}},
    ).execute()
    texts = [output.get("name") for cell in book.cells for output in cell.get("outputs", [])]
    assert "stderr" not in texts  # no warnings
    assert any("<progress max=" in page for page in shown(book, "text/html"))
    assert shown(book, "image/png")
    written = sorted(each.name for each in tmp_path.iterdir())
    assert written == (["accuracy.pdf", "comparison"] if path.stem == "figure_for_a_paper" else [])


def test_there_are_notebooks() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["figure_for_a_paper", "own_data_and_model", "own_policy"]
