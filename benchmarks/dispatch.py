"""What it costs to hand runs to workers: 1,000 tiny runs by this process, by two processes, and on Ray.

A tiny run is one round of a small cell that is scheduled and not trained. The cost of dispatch is what a run takes more
than its share of the time that the runs take one after the other in this process, where nothing is handed on; starting
the workers is told apart. Limit: 20 ms a run.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flare.atomic import write_whole
from flare.config import Config, override
from flare.sweeps import Place, Task, run_tasks
from flare.units import human

LIMIT_S = 0.020
PROCESSES = 2
SETTINGS = ("wireless.num_devices=8", "wireless.deadline_s=5", "learning.model=logistic", "run.rounds=1")
OUT = Path(__file__).resolve().parents[1] / "docs" / "benchmarks"


def tiny_runs(number: int, folder: Path) -> list[Task]:
    """Runs that take next to nothing."""
    base = override(Config(), SETTINGS)
    return [
        Task(str(seed), replace(base, seed=seed), folder / str(seed), trained=False, keep_checkpoints=False)
        for seed in range(number)
    ]


def timed(number: int, place: Place) -> tuple[float, float]:
    """How long so many runs take, and how long until the first of them was told of."""
    with tempfile.TemporaryDirectory() as folder:
        first_s: list[float] = []
        seen: set[str] = set()
        begin_s = time.perf_counter()

        def callback(task: Task, *_: object) -> None:
            first_s.append(time.perf_counter() - begin_s)
            seen.add(task.key)

        run_tasks(tiny_runs(number, Path(folder)), place, callback=callback)
        assert len(seen) == number, f"{len(seen)} of {number} runs were told of"
        return time.perf_counter() - begin_s, first_s[0]


def measured(number: int, *, with_ray: bool) -> list[dict[str, Any]]:
    """What each place takes, in seconds."""
    here_s, _ = timed(number, Place("cpu"))
    rows: list[dict[str, Any]] = [{"by": "this process", "all_s": here_s, "first_s": None, "dispatch_s": None}]
    places = {f"{PROCESSES} processes": Place("cpu", PROCESSES)}
    if with_ray:
        places[f"Ray, {PROCESSES} processes"] = Place("cpu", PROCESSES, "ray", "local")
    for name, place in places.items():
        all_s, first_s = timed(number, place)
        dispatch_s = (all_s - first_s - here_s / PROCESSES) / number
        rows.append({"by": name, "all_s": all_s, "first_s": first_s, "dispatch_s": dispatch_s})
    return rows


def page(number: int, rows: list[dict[str, Any]]) -> str:
    """The table as Markdown."""
    header = ["by", "all runs", "until the first", "a run", "cost of dispatch a run"]
    lines = [header, ["---"] * len(header)]
    for row in rows:
        first, dispatch = ("–" if row[name] is None else human(row[name], "s", 3) for name in ("first_s", "dispatch_s"))
        lines.append([row["by"], human(row["all_s"], "s", 3), first, human(row["all_s"] / number, "s", 3), dispatch])
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return f"# Dispatch\n\n{(__doc__ or '').strip()}\n\n{number:,} runs, `python benchmarks/dispatch.py`:\n\n{table}\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and write dispatch.json and dispatch.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few runs, and no Ray: checks that it runs")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args(arguments)
    number = 20 if options.quick else 1000
    with_ray = not options.quick and importlib.util.find_spec("ray") is not None
    rows = measured(number, with_ray=with_ray)
    text = page(number, rows)
    options.out.mkdir(parents=True, exist_ok=True)
    write_whole(options.out / "dispatch.json", (json.dumps({"runs": number, "rows": rows}, indent=1) + "\n").encode())
    write_whole(options.out / "dispatch.md", text.encode())
    print(text)
    worst_s = max(row["dispatch_s"] for row in rows if row["dispatch_s"] is not None)
    if worst_s > LIMIT_S and not options.quick:
        raise SystemExit(f"the cost of dispatch is {human(worst_s, 's', 3)} a run, more than {human(LIMIT_S, 's', 3)}")


if __name__ == "__main__":
    main()
