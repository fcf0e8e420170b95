"""What hostile testing found, each as it was done."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

import flare
from flare.records import RunFolder
from flare.records.run import read_run
from flare.scheduling import POLICIES, Choice
from flare.sweeps import listed
from tests.hostile import flare as command
from tests.run_folders import written

SMALL = ["--quiet", "--set", "run.rounds=2", "--set", "wireless.num_devices=5", "--set", "learning.model=logistic"]


@pytest.mark.parametrize(
    "setting", ["learning.device=cuda", "scheduling.gamma=1e308", "wireless.total_bandwidth_hz=1e-300"]
)
def test_force_keeps_the_old_run_where_the_new_one_cannot_be(
    setting: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if setting == "learning.device=cuda":
        pytest.importorskip("torch")
        import torch

        if torch.cuda.is_available():
            pytest.skip("there is a GPU")
    out = str(tmp_path / "run")
    assert command(capsys, "run", *SMALL, "--out", out)[0] == 0
    before = (tmp_path / "run" / "rounds.jsonl").read_bytes()
    code, _, err = command(capsys, "run", *SMALL, "--out", out, "--force", "--set", setting)
    assert code == 2, err
    assert (tmp_path / "run" / "rounds.jsonl").read_bytes() == before


@pytest.mark.parametrize("names", [[".."], ["."], [], "run", [3], ["a/b"], ["/abs"]])
def test_a_list_of_runs_leads_nowhere_else(names: object, tmp_path: Path) -> None:
    (tmp_path / "comparison.json").write_text(json.dumps(names))
    written(tmp_path / "one", 3)
    with pytest.raises(
        ValueError, match=r"comparison.json is damaged .*write into it the names .*there are \[\"one\"\]"
    ):
        listed(tmp_path)
    (tmp_path / "comparison.json").write_text('["one"]')
    assert listed(tmp_path) == [tmp_path / "one"]


def test_where_no_list_is_there_is_no_comparison(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is no folder of a comparison"):
        listed(tmp_path)


def test_a_folder_where_a_file_belongs_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert command(capsys, "run", *SMALL, "--out", str(out))[0] == 0
    (tmp_path / "page.html").mkdir()
    code, _, err = command(capsys, "report", str(out), "--out", str(tmp_path / "page.html"))
    assert code == 2
    assert "page.html" in err
    assert "folder" in err
    assert ".part" not in err


def test_a_whole_number_that_is_too_large_is_called_so(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["schedule", "--cell", "paper", "--policy", "ps", "-o", f"num_selected={10**20}"]
    code, _, err = command(capsys, *asked)
    assert code == 2
    assert "option num_selected is a whole number beyond what can be kept" in err
    assert f"give one from {1 - 2**63} to {2**63 - 1}" in err


def test_a_changed_configuration_is_not_reported_as_the_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert command(capsys, "run", *SMALL, "--out", str(out))[0] == 0
    text = (out / "config.toml").read_text()
    for changed in (text.replace('policy = "exact"', 'policy = "greedy"'), ""):
        (out / "config.toml").write_text(changed)
        with pytest.raises(ValueError, match="was changed since the run began"):
            read_run(out)
    (out / "config.toml").write_text(text)
    assert read_run(out).num_rounds == 2
    manifest = json.loads((out / "manifest.json").read_text())
    (out / "manifest.json").write_text(json.dumps(manifest | {"format_version": True}))
    with pytest.raises(ValueError, match="format version True"):
        RunFolder.open(out)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (np.ma.masked_all(40), "is a masked array, whose mask would be lost"),
        (np.ma.masked_array([1, 2], mask=[True, False]), "is a masked array"),
        (Choice([0], lower_bound="x"), "gave lower_bound = 'x'"),  # type: ignore[arg-type]
        (Choice([0], lower_bound=None), "gave lower_bound = None"),  # type: ignore[arg-type]
        (Choice([0], proven="yes"), "proven = 'yes'"),  # type: ignore[arg-type]
        (Choice([0], lower_bound=1e9), "above the objective"),
        (Choice([0], memory={"\ud800": np.zeros(1)}), "a name is a word"),
        (Choice([0], memory={"device_x": np.zeros(3)}), "has one entry for each"),
    ],
)
def test_an_answer_that_is_none_is_refused_in_words(answer: object, why: str) -> None:
    problem = flare.round_problem(flare.Cell(flare.CELLS["paper"], seed=1).draw(0))
    fits = int(np.argmin(problem.needed_hz))
    if isinstance(answer, Choice):
        answer = Choice([fits], answer.lower_bound, answer.proven, answer.memory)

    @flare.policy("hostile answer")
    def hostile(problem):  # type: ignore[no-untyped-def]
        return answer

    try:
        with pytest.raises(ValueError, match=why):
            flare.solve(problem, "hostile answer")
    finally:
        del POLICIES["hostile answer"]


def test_figures_are_not_written_through_a_link(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "out").mkdir()
    os.symlink(elsewhere, tmp_path / "out" / "figures")
    code, _, err = command(
        capsys, "reproduce", "fig7", "--quick", "--seeds", "1", "--quiet", "--out", str(tmp_path / "out")
    )
    assert code == 2
    assert "is a link, through which nothing is written" in err
    assert list(elsewhere.iterdir()) == []
