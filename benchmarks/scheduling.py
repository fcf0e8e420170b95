"""How fast the scheduler is: against the literal algorithms in the same run, and as the cell grows.

    python benchmarks/scheduling.py [--quick | --only-many]

writes docs/benchmarks/scheduling.md, .json and .png. The cell is the paper's at a deadline of 0.4 s, its band growing
with it (10 MHz x K/40). Ratios are what to read: peer and ours run in turn on the same rounds, and times depend on the
machine.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from flare import CELLS, Cell, RoundProblem, Status, round_problem, solve, stream  # noqa: E402
from flare.report.figures import BLUE, GREY, ORANGE, write_figure  # noqa: E402
from flare.scheduling import solve_many  # noqa: E402
from tests.oracles import greedy_literal, highs_by_number, highs_fixed_size  # noqa: E402

OUT = ROOT / "docs" / "benchmarks"
GREEN = "#009E73"
WINDOWS_FROM = 4_000
"""Devices from which on `greedy` goes by windows."""
CAPTION = (
    "How to read it: both axes are logarithmic, so a power of K is a straight line, and its exponent, in the legend, "
    "the slope. `greedy` grows faster than K until it goes by windows (dashed line), and about as K from there. "
    "`exact` at gamma 10 falls after the smallest cells: those with some tens of devices sometimes need further prices "
    "of bandwidth and a knapsack search beside the first two sorts, those with hundreds hardly ever do. At gamma 1,000 "
    "cells of every larger size need them, each its own number: hence the bumps of a median over three cells."
)


def paper_round(num_devices: int, seed: int, *, gamma: float = 10.0, deadline_s: float = 0.4) -> RoundProblem:
    config = replace(
        CELLS["paper"],
        num_devices=num_devices,
        total_bandwidth_hz=10e6 * num_devices / 40,
        deadline_s=deadline_s,
    )
    return round_problem(Cell(config, seed).draw(0), gamma=gamma)


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def best_of(times: int, work: Callable[[], Any]) -> float:
    return min(seconds(work) for _ in range(times))


def against(peer: Callable[[RoundProblem], Any], policy: str, rounds: list[RoundProblem]) -> dict[str, float]:
    """Median times of a peer and of ours over the same rounds, in turn, and the median of their ratios."""
    pairs = []
    for problem in rounds:
        peer_s = seconds(lambda p=problem: peer(replace(p)))  # type: ignore[misc]
        ours_s = best_of(3, lambda p=problem: solve(replace(p), policy))  # type: ignore[misc]
        pairs.append((peer_s, ours_s))
    return {
        "peer_s": statistics.median(peer_s for peer_s, _ in pairs),
        "ours_s": statistics.median(ours_s for _, ours_s in pairs),
        "ratio": statistics.median(peer_s / ours_s for peer_s, ours_s in pairs),
    }


def one_milp_for_each_size(problem: RoundProblem) -> None:
    list(highs_by_number(problem))


def one_milp(problem: RoundProblem) -> None:
    """A single MILP at the number of devices that is best: the least that any search over M with HiGHS costs."""
    highs_fixed_size(problem, solve(problem, "exact").num_selected)


def compare_with_peers(quick: bool) -> dict[str, Any]:
    few = 1 if quick else 5
    print("greedy against the literal Algorithm 1, K = 200", flush=True)
    rows: dict[str, Any] = {
        "greedy, K = 200, against K binary searches an iteration": against(
            greedy_literal, "greedy", [paper_round(200, seed) for seed in range(few)]
        )
    }
    print("exact against HiGHS", flush=True)
    rows["exact, K = 40, against one HiGHS MILP for each M"] = against(
        one_milp_for_each_size, "exact", [paper_round(40, seed) for seed in range(4 * few)]
    )
    rows["exact, K = 40, deadline 1 s, gamma 100, against one HiGHS MILP for each M"] = against(
        one_milp_for_each_size, "exact", [paper_round(40, seed, gamma=100.0, deadline_s=1.0) for seed in range(few)]
    )
    rows["exact, K = 1,000, against a single HiGHS MILP"] = against(
        one_milp, "exact", [paper_round(1000, seed) for seed in range(few)]
    )
    rows["exact, K = 1,000, gamma 1,000, against a single HiGHS MILP"] = against(
        one_milp, "exact", [paper_round(1000, seed, gamma=1000.0) for seed in range(few)]
    )
    return rows


def time_a_figure(rounds: int) -> dict[str, float]:
    """Draw and schedule the rounds of a figure (K = 40), two deadlines; seconds for each policy, scheduling alone."""
    print(f"{rounds} rounds of a figure", flush=True)
    cells = [Cell(replace(CELLS["paper"], deadline_s=deadline_s), seed=1) for deadline_s in (0.4, 1.0)]
    drawn = [round_problem(cell.draw(r)) for cell in cells for r in range(rounds // 2)]
    return {
        policy: seconds(lambda p=policy: [solve(replace(one), p) for one in drawn])  # type: ignore[misc]
        for policy in ("exact", "greedy")
    }


def many_at_once(rounds: int, turns: int) -> dict[str, dict[str, float]]:
    """Rounds a second of K = 40 by `solve_many` and one at a time, in turn on the same rounds, by the time of the
    processor: others who use the machine count less. The best of `turns` turns each, and the ratio of the two."""
    print(f"{rounds} rounds at once", flush=True)
    found = {}
    for deadline_s in (0.4, 1.0):
        cell = Cell(replace(CELLS["paper"], deadline_s=deadline_s), seed=1)
        drawn = [round_problem(cell.draw(r)) for r in range(rounds)]
        one_s, many_s = math.inf, math.inf
        for _ in range(turns):
            one_s = min(one_s, cpu_seconds(lambda new: [solve(one) for one in new], drawn))
            many_s = min(many_s, cpu_seconds(solve_many, drawn))
        found[f"{deadline_s:g} s"] = {
            "one_per_s": rounds / one_s,
            "many_per_s": rounds / many_s,
            "ratio": one_s / many_s,
            "load": os.getloadavg()[0],
        }
    return found


def cpu_seconds(work: Callable[[list[RoundProblem]], Any], rounds: list[RoundProblem]) -> float:
    """The time of the processor that work on rounds takes of which nothing has been computed yet."""
    new = [replace(one) for one in rounds]
    start = time.process_time()
    work(new)
    return time.process_time() - start


def grow(sizes: list[int], repeats: int) -> dict[str, dict[int, float]]:
    """Seconds a round by policy and number of devices, the median over seeds."""
    grown: dict[str, dict[int, float]] = {}
    settings = {
        "exact": ("exact", 10.0),
        "exact, gamma 1,000": ("exact", 1000.0),
        "greedy": ("greedy", 10.0),
        "greedy, gamma 1,000": ("greedy", 1000.0),
    }
    for name, (policy, gamma) in settings.items():
        grown[name] = {}
        for size in sizes:
            rounds = [paper_round(size, seed, gamma=gamma) for seed in range(repeats)]
            taken = [best_of(2, lambda p=p, how=policy: solve(replace(p), how)) for p in rounds]  # type: ignore[misc]
            grown[name][size] = statistics.median(taken)
            print(f"{name}, K = {size:,}: {grown[name][size] * 1e3:.2f} ms", flush=True)
    return grown


def exponent(times: dict[int, float], min_devices: int = 1000) -> float:
    """The slope of log time over log K, from `min_devices` on, where fixed costs no longer count."""
    large = {size: taken for size, taken in times.items() if size >= min_devices}
    return float(np.polyfit(np.log(list(large)), np.log(list(large.values())), 1)[0]) if len(large) > 1 else math.nan


def prove(cells: int) -> dict[str, Any]:
    """How many random cells are solved to proven optimality (or proven infeasible), and the largest gap."""
    print(f"proofs in {cells} random cells", flush=True)
    unproven, largest = 0, 0.0
    for seed in range(cells):
        draw = stream(seed, "benchmark")
        answer = solve(
            paper_round(
                int(draw.choice([5, 40, 200])),
                seed,
                gamma=float(draw.choice([0.0, 0.1, 1.0, 10.0, 100.0])),
                deadline_s=float(10 ** draw.uniform(-1.5, 1.0)),
            ),
            "exact",
        )
        proven = answer.status is Status.OPTIMAL or math.isinf(answer.lower_bound)
        unproven += not proven
        largest = max(largest, answer.gap)
    return {"cells": cells, "unproven": unproven, "largest_gap": largest}


def growth_figure(grown: dict[str, dict[int, float]]) -> Figure:
    figure = Figure(figsize=(7, 4.6), dpi=110, layout="constrained")
    axes = figure.add_subplot()
    for (name, times), mark, shade in zip(grown.items(), "osD^", (BLUE, ORANGE, GREY, GREEN), strict=True):
        slope = exponent(times)
        policy = name if "gamma" in name else f"{name}, gamma 10"
        label = policy if math.isnan(slope) else f"{policy}: grows as K^{slope:.2f} from 1,000 devices on"
        axes.loglog(list(times), [1e3 * taken for taken in times.values()], marker=mark, color=shade, label=label)
    if max(grown["greedy"]) > WINDOWS_FROM:
        axes.axvline(WINDOWS_FROM, color=GREY, linewidth=0.8, linestyle="--")
        axes.text(WINDOWS_FROM * 1.08, 0.03, "from here greedy\ngoes by windows", color=GREY, fontsize=8,
                  transform=axes.get_xaxis_transform())  # fmt: skip
    axes.set_xlabel("devices K (the band grows with them)")
    axes.set_ylabel("time to schedule one round (ms)")
    axes.set_title("Scheduling one round: time against the size of the cell")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return figure


def report(results: dict[str, Any]) -> str:
    lines = [
        "# Scheduling: measured",
        "",
        "Made by `make bench`; the numbers are in `scheduling.json`. "
        f"Machine: {results['machine']}. The paper's cell, band 10 MHz x K/40, deadline 0.4 s, gamma 10 unless said.",
        "",
        "| what | peer | ours | ratio |",
        "| --- | ---: | ---: | ---: |",
    ]
    for what, row in results["peers"].items():
        lines.append(
            f"| {what} | {1e3 * row['peer_s']:.4g} ms | {1e3 * row['ours_s']:.3g} ms | {row['ratio']:,.0f} x |"
        )
    rounds, proofs = results["figure"]["rounds"], results["proofs"]
    figure = ", ".join(f"{policy} {taken:.1f} s" for policy, taken in results["figure"]["seconds"].items())
    lines += [
        "",
        f"- {rounds:,} rounds of a figure (K = 40, deadlines 0.4 and 1 s): {figure}.",
        *(
            f"- `solve_many`, K = 40, deadline {deadline}: {row['many_per_s']:,.0f} rounds/s in one process, "
            f"{row['ratio']:.1f} x the {row['one_per_s']:,.0f} rounds/s of `solve` one at a time (processor time, on "
            f"a machine under load {row['load']:.1f})."
            for deadline, row in results["many"].items()
        ),
        f"- Proven optimal or proven infeasible: {proofs['cells'] - proofs['unproven']:,} of {proofs['cells']:,} "
        f"random cells (K in 5, 40, 200; gamma in 0, 0.1, 1, 10, 100; deadlines from infeasible to loose); "
        f"largest gap {proofs['largest_gap']:.1e}.",
    ]
    for name, times in results["growth"].items():
        per_size = ", ".join(f"{int(size):,}: {1e3 * taken:.3g} ms" for size, taken in times.items())
        lines.append(
            f"- {name}, time by K: {per_size}. Exponent from 1,000 devices on: {results['exponents'][name]:.2f}."
        )
    lines.append(
        f"- `greedy` looks at all devices of a small cell for every choice; from {WINDOWS_FROM:,} devices on it goes "
        "by windows of time that hold few devices each, and chooses the same. Times are medians over 3 cells."
    )
    return "\n".join([*lines, "", "![time against the number of devices](scheduling.png)", "", CAPTION, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, as a check that everything runs")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the results")
    parser.add_argument("--only-many", action="store_true", help="measure solve_many anew, and keep the rest")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    quick = arguments.quick
    if arguments.only_many:  # the rest stays as it was measured
        results = json.loads((arguments.out / "scheduling.json").read_text())
        write(results | {"many": many_at_once(5_000, 5)}, arguments.out)
        return
    sizes = [10, 40, 100] if quick else [10, 40, 100, 400, 1_000, 4_000, 10_000, 40_000, 100_000]
    rounds = 100 if quick else 12_000
    growth = grow(sizes, 1 if quick else 3)
    results = {
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, "
        f"numpy {np.__version__}",
        "peers": compare_with_peers(quick),
        "figure": {"rounds": rounds, "seconds": time_a_figure(rounds)},
        "many": many_at_once(100 if quick else 5_000, 1 if quick else 5),
        "proofs": prove(20 if quick else 1000),
        "growth": growth,
        "exponents": {name: exponent(times) for name, times in growth.items()},
    }
    write_figure(arguments.out / "scheduling.png", lambda: growth_figure(growth))
    write(results, arguments.out)


def write(results: dict[str, Any], out: Path) -> None:
    """The numbers and the page."""
    (out / "scheduling.json").write_text(json.dumps(results, indent=2) + "\n")
    (out / "scheduling.md").write_text(report(results))
    print((out / "scheduling.md").read_text())


if __name__ == "__main__":
    main()
