"""The benchmarks run on small sizes and write what they say they write."""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path

import pytest

from flare.scheduling import POLICIES
from tests import ready_python
from tests.studio_client import served

ROOT = Path(__file__).resolve().parents[2]


def test_the_benchmark_of_the_simulator_writes_numbers_and_a_page(tmp_path: Path) -> None:
    command = [sys.executable, "benchmarks/simulation.py", "--quick", "--out", str(tmp_path)]
    done = ready_python.run(command, cwd=ROOT, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((tmp_path / "simulation.json").read_text())
    assert 0.0 < results["cost"]["share"] < 1.0
    assert "Peak memory" in (tmp_path / "simulation.md").read_text()


def test_the_scheduling_benchmark_writes_numbers_a_page_and_a_picture(tmp_path: Path) -> None:
    command = [sys.executable, "benchmarks/scheduling.py", "--quick", "--out", str(tmp_path)]
    done = ready_python.run(command, cwd=ROOT, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((tmp_path / "scheduling.json").read_text())
    assert results["proofs"]["unproven"] == 0
    assert all(row["ratio"] > 0.0 for row in results["peers"].values())
    assert "| ratio |" in (tmp_path / "scheduling.md").read_text()
    assert (tmp_path / "scheduling.png").read_bytes().startswith(b"\x89PNG")


def test_the_benchmark_of_the_flower_strategy_writes_numbers_and_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One case is measured in a process of its own, as all are in the real benchmark; the others in this one."""
    benchmark = runpy.run_path(str(ROOT / "benchmarks" / "flower.py"))
    there, apart = benchmark["main"].__globals__, benchmark["apart"]
    there["apart"] = lambda *case: (apart if case[1:3] == (3, "all") else benchmark["measure"])(*case)
    monkeypatch.setattr("sys.argv", ["flower.py", "--quick", "--out", str(tmp_path)])
    benchmark["main"]()
    rows = json.loads((tmp_path / "flower.json").read_text())["rows"]
    cases = [(asked, policy) for asked in (5, 3) for policy in ("exact", "all")]
    assert [(row["nodes"], row["asked"], row["policy"]) for row in rows] == [(5, *case) for case in cases]
    assert [row["sent"] for row in rows if row["policy"] == "all"] == [5, 3]
    assert "| strategy |" in (tmp_path / "flower.md").read_text()


def test_the_benchmark_of_the_uplink_writes_numbers_and_a_page(tmp_path: Path) -> None:
    other = {
        "machine": "another",
        "gpu": json.loads((ROOT / "docs/benchmarks/uplink.json").read_text())["machines"][1]["gpu"],
    }
    (tmp_path / "uplink.json").write_text(json.dumps({"machines": [{"machine": "this one"}, other]}))
    benchmark = runpy.run_path(str(ROOT / "benchmarks" / "uplink.py"))
    benchmark["main"](["--quick", "--out", str(tmp_path), "--machine", "this one"])
    ours, kept = json.loads((tmp_path / "uplink.json").read_text())["machines"]
    assert (ours["machine"], kept) == ("this one", other)  # measured anew, and left alone
    core = ours["core"]
    assert {row["codec"] for row in core["rows"]} == {"none", "float16", "qsgd", "ternary", "sign", "topk"}
    for row in core["rows"]:
        assert row["of_round"] == row["arrive_s"] / (core["training_s"] + row["arrive_s"]) > 0.0
        assert row["encode_s"] > 0.0 < row["decode_s"]
    page = (tmp_path / "uplink.md").read_text()
    assert "- A: this one\n- B: another; on one core of it nothing is measured\n" in page
    rows = [line.split(" | ")[:2] for line in page.splitlines() if line.startswith(("| A |", "| B |"))]
    assert rows.count(["| A", "ternary"]) == 1 + ("gpu" in ours)
    assert rows.count(["| B", "ternary"]) == 1
    told = json.loads((ROOT / "docs/benchmarks/uplink.json").read_text())["machines"]
    assert benchmark["report"](told) == (ROOT / "docs/benchmarks/uplink.md").read_text()


def test_the_benchmark_of_rules_writes_numbers_and_a_page(tmp_path: Path) -> None:
    runpy.run_path(str(ROOT / "benchmarks" / "rules.py"))["main"](["--quick", "--out", str(tmp_path)])
    rows = json.loads((tmp_path / "rules.json").read_text())["rows"]
    names = ["fedavg", "fedsam", "moon", "heterofl"]
    assert [(row["engine"], row["method"]) for row in rows] == [
        (engine, name) for engine in ("sequential", "batched") for name in names
    ]
    assert all(row["ratio"] > 0.0 for row in rows)
    assert "| ratio |" in (tmp_path / "rules.md").read_text()


def test_the_benchmark_of_policies_writes_numbers_and_a_page(tmp_path: Path) -> None:
    runpy.run_path(str(ROOT / "benchmarks" / "policies.py"))["main"](["--quick", "--out", str(tmp_path)])
    rows = json.loads((tmp_path / "policies.json").read_text())["rows"]
    assert {row["policy"] for row in rows} == set(POLICIES)
    assert "Above the limit: " in (tmp_path / "policies.md").read_text()


def test_the_benchmark_of_dispatch_writes_numbers_and_a_page(tmp_path: Path) -> None:
    command = [sys.executable, "benchmarks/dispatch.py", "--quick", "--out", str(tmp_path)]
    done = ready_python.run(command, cwd=ROOT, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "dispatch.json").read_text())["rows"]
    assert [row["by"] for row in rows] == ["this process", "2 processes"]
    assert all(row["all_s"] > 0.0 for row in rows)
    assert "| cost of dispatch a run |" in (tmp_path / "dispatch.md").read_text()


def test_the_benchmark_of_reproductions_times_a_command_and_keeps_the_rows_of_others(tmp_path: Path) -> None:
    benchmark = runpy.run_path(str(ROOT / "benchmarks" / "reproduction.py"))
    (tmp_path / "reproduction.json").write_text((ROOT / "docs/benchmarks/reproduction.json").read_text())
    before = json.loads((tmp_path / "reproduction.json").read_text())["rows"]
    benchmark["main"](["--quick", "--out", str(tmp_path)])
    *kept, row = json.loads((tmp_path / "reproduction.json").read_text())["rows"]
    assert kept == before
    assert row["typed"] == "flare reproduce fig3 --seeds 2 --quick"
    assert row["runs"] == 6
    parts = [row[name] for name in ("until_first_round_s", "rounds_s", "after_last_round_s")]
    assert min(parts) >= 0.0
    assert sum(parts) == pytest.approx(row["seconds"])
    again = benchmark["with_row"]({"rows": [row, *before]}, row | {"seconds": 1.0})["rows"]
    assert [each["seconds"] for each in again] == [1.0, *(each["seconds"] for each in before)]
    told = json.loads((ROOT / "docs/benchmarks/reproduction.json").read_text())
    assert benchmark["report"](told) == (ROOT / "docs/benchmarks/reproduction.md").read_text()


def test_the_benchmark_of_the_service_measures_requests_and_writes_a_page(tmp_path: Path) -> None:
    module = runpy.run_path(str(ROOT / "benchmarks" / "service.py"))
    with served(tmp_path, service=True) as studio:
        row = module["measured"](studio.port, os.getpid(), "/api/schedule", module["body_of"](40), 0.2)
    assert row["per_s"] > 0.0 < row["median_ms"] <= row["worst_of_100_ms"]
    results = {"machine": "this one", "load": 0.0, "rows": {module["SERVICE"]: row}, "ratio": 0.5, "by_processor": 1e3}
    page = module["page"](results)
    assert "| requests a second |" in page
    assert "What it is built for: 300 rounds of 40 devices a second on two cores." in page
