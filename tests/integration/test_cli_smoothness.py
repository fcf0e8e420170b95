"""gamma "auto" and tau_bar "safe" as a user sets them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.test_cli_run import SMALL, flare, records, refused

BOTH = ["--set", "scheduling.gamma=auto", "--set", "learning.options.tau_bar=safe"]


def test_a_run_by_the_estimated_smoothness_and_its_resumption(tmp_path: Path) -> None:
    flare("run", *SMALL, *BOTH, "--out", "one", cwd=tmp_path)
    written = records(tmp_path / "one")
    ((gamma, found),) = {(record["gamma"], record["smoothness"]) for record in written}
    assert gamma == 1.0 / found
    assert 'gamma = "auto"\n' in (tmp_path / "one" / "config.toml").read_text()
    for late in (tmp_path / "one" / "checkpoints").glob("round-*6.safetensors"):
        late.unlink()  # as if killed after the fourth round
    flare("run", "--resume", "one", cwd=tmp_path)
    assert records(tmp_path / "one") == written
    flare("report", "one", "--out", "one.html", cwd=tmp_path)


def test_the_configuration_explains_both(tmp_path: Path) -> None:
    told = flare("config", cwd=tmp_path).stdout
    assert '"auto": global_lr / L' in told
    assert "safe: the most, up to 0.58 / (L local_lr)" in told


@pytest.mark.parametrize("given", ["automatic", "-1", "true"])
def test_a_wrong_gamma_is_refused(tmp_path: Path, given: str) -> None:
    told = refused("run", "--set", f"scheduling.gamma={given}", cwd=tmp_path)
    assert 'it must be a finite number, at least 0, or one of "auto", "auto-lr"' in told


def test_a_schedule_alone_has_no_model_to_estimate_from(tmp_path: Path) -> None:
    (tmp_path / "cell.toml").write_text('[scheduling]\ngamma = "auto"\n')
    assert "give --gamma a number" in refused("schedule", "--cell", "cell.toml", cwd=tmp_path)
    flare("schedule", "--cell", "cell.toml", "--gamma", "3", cwd=tmp_path)
