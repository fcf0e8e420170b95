"""What a round of every policy takes at 1,000 devices.

    python benchmarks/policies.py [--quick]

writes docs/benchmarks/policies.md and .json. The cell is the paper's at a deadline of 0.4 s, its band growing with it
(10 MHz x K/40), and once more at 1 s. Histories, labels, answers and processors are drawn. Times are processor times of
one thread, medians over rounds after one that is not counted, and the worst.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from flare import CELLS, Cell, RoundProblem, round_problem
from flare.rng import stream
from flare.scheduling import POLICIES, Hardware, History, Memory, Probed, solve
from flare.scheduling.hardware import hardware_for

OUT = Path(__file__).resolve().parent.parent / "docs" / "benchmarks"
LIMIT_S = 0.05
DEADLINES_S = (0.4, 1.0, 5.0)
"""At the last one nearly all devices can send at once, each on a band of its own."""


def a_round(num_devices: int, deadline_s: float, seed: int) -> tuple[RoundProblem, Hardware]:
    """A round of the grown cell, and the hardware of its devices."""
    band_hz = 10e6 * num_devices / 40
    grown = replace(CELLS["paper"], num_devices=num_devices, total_bandwidth_hz=band_hz, deadline_s=deadline_s)
    drawn = Cell(grown, seed=seed).draw(0)
    return round_problem(drawn), hardware_for(drawn.compute_s, drawn.cpu_hz, drawn.power_w, drawn.config.capacitance)


def what_is_known(num_devices: int, seed: int) -> tuple[History, Probed]:
    """A history in which half of the devices have sent, and the answers of all."""
    rng = stream(seed, "benchmark")
    sent = rng.random(num_devices) < 0.5
    of_sent = {
        name: np.where(sent, rng.uniform(0.1, 2.0, num_devices), np.nan)
        for name in ("last_loss", "mean_squared_loss", "update_norm", "compute_s", "upload_s")
    }
    labels = rng.multinomial(20, rng.dirichlet(np.full(10, 0.3), num_devices)).astype(float)
    empty = History.empty(num_devices, num_samples=rng.integers(20, 200, num_devices), label_counts=labels)
    sketch = np.where(sent[:, None], rng.normal(size=(num_devices, 256)), np.nan)
    history = replace(
        empty,
        times_sent=sent.astype(float),
        rounds_since_sent=np.where(sent, rng.integers(1, 30, num_devices), np.inf),
        sketch=sketch,
        **of_sent,
    )
    answers = rng.uniform(0.1, 2.0, num_devices)
    return history, replace(Probed.nothing(num_devices), loss=answers, norm=answers)


def times_of(name: str, num_devices: int, deadline_s: float, rounds: int) -> list[float]:
    """Processor seconds of each round, the memory of a policy going along."""
    taken: list[float] = []
    memory: Memory = {}
    for index in range(rounds + 1):
        problem, hardware = a_round(num_devices, deadline_s, index)
        history, probed = what_is_known(num_devices, index)
        rng = stream(index, "policy")
        begin = time.thread_time()
        schedule = solve(problem, name, rng=rng, history=history, memory=memory, hardware=hardware, probed=probed)
        taken.append(time.thread_time() - begin)
        memory = schedule.memory
    return taken[1:]


def report(results: dict[str, Any]) -> str:
    """The page."""
    lines = [
        "# A round of every policy: measured",
        "",
        f"Made by `benchmarks/policies.py`. Machine: {results['machine']}.",
        "",
        f"{results['devices']:,} devices, {results['rounds']} rounds; processor time of a round, median (worst). What",
        f"a policy knows of its devices is drawn. No median may be above {1e3 * LIMIT_S:g} ms. At",
        f"{DEADLINES_S[-1]:g} s nearly all devices can send at once, and `chen` has a block for each of them.",
        "",
        f"| policy | {' | '.join(f'deadline {each:g} s' for each in DEADLINES_S)} |",
        "| --- |" + " ---: |" * len(DEADLINES_S),
    ]
    for row in results["rows"]:
        cells = (f"{1e3 * each['median_s']:.1f} ({1e3 * each['worst_s']:.1f}) ms" for each in row["deadlines"])
        lines.append(f"| `{row['policy']}` | {' | '.join(cells)} |")
    over = [row["policy"] for row in results["rows"] if any(each["median_s"] > LIMIT_S for each in row["deadlines"])]
    return "\n".join([*lines, "", f"Above the limit: {', '.join(over) or 'none'}.", ""])


def main(given: list[str] | None = None) -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few devices and rounds, as a check that everything runs")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the results")
    arguments = parser.parse_args(given)
    devices, rounds = (20, 1) if arguments.quick else (1000, 7)
    rows = []
    for name in [each for each in POLICIES if POLICIES.origin(each).built_in]:
        deadlines = []
        for deadline_s in DEADLINES_S:
            taken = times_of(name, devices, deadline_s, rounds)
            deadlines.append({"deadline_s": deadline_s, "median_s": statistics.median(taken), "worst_s": max(taken)})
        rows.append({"policy": name, "deadlines": deadlines})
    results = {
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, numpy {np.__version__}",
        **{"devices": devices, "rounds": rounds, "rows": rows},
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "policies.json").write_text(json.dumps(results, indent=2) + "\n")
    (arguments.out / "policies.md").write_text(report(results))
    print(report(results))


if __name__ == "__main__":
    main()
