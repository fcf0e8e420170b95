"""How schedules look in a terminal, as JSON and as CSV."""

from __future__ import annotations

import csv
import json
import math
import sys
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
from rich import box
from rich.table import Table

from flare.cli.console import MAX_ROWS, add_row, console, say
from flare.scheduling import POLICIES, RoundProblem, Schedule, Status
from flare.scheduling.explain import NOT_WORTH_IT, TOO_SLOW, TOO_WEAK, Explanation
from flare.scheduling.nobody import Names, why_nobody
from flare.text import csv_text, json_text
from flare.types import Floats
from flare.units import human

_SHORT = {TOO_SLOW: "too slow", TOO_WEAK: "too weak", NOT_WORTH_IT: "not worth it"}  # reasons in a narrow terminal
_OPTIONS = Names("--deadline", "--bandwidth", "--payload")


def schedule(
    problem: RoundProblem,
    answer: Schedule,
    detail: Explanation,
    energy_j: Floats,
    names: list[str],
    *,
    as_json: bool,
    as_csv: bool,
) -> None:
    """Print one schedule."""
    devices = _device_rows(problem, answer, detail, energy_j, names)
    if as_json:
        _print_json(_summary(problem, answer) | {"devices": list(devices)})
    elif as_csv:
        _print_csv(devices)
    else:
        screen = console()
        screen.print(_device_table(problem, answer, detail, names, narrow=screen.width < 105))
        for line in _in_words(problem, answer, detail):
            say(line)


def comparison(
    problem: RoundProblem, answers: list[tuple[Schedule, float]], bound: float, *, as_json: bool, as_csv: bool
) -> None:
    """Print all policies side by side, the best objective first; `bound` is the proven bound of the round."""
    rows = sorted((_compared(problem, answer, took_s, bound) for answer, took_s in answers), key=_best_first)
    if as_json:
        _print_json({"lower_bound": bound, "deadline_s": problem.deadline_s, "policies": rows})
    elif as_csv:
        _print_csv(rows)
    else:
        screen = console()
        proven = any(row["status"] == "optimal" for row in rows)
        screen.print(_comparison_table(rows, proven=proven, narrow=screen.width < 112))
        if problem.reachable.size == 0:
            say(f"Nobody sends: {why_nobody(problem, answers[0][0].policy, _OPTIONS)}.")


def _summary(problem: RoundProblem, answer: Schedule) -> dict[str, Any]:
    return {
        "policy": answer.policy,
        "status": answer.status.value,
        "num_selected": answer.num_selected,
        "objective": answer.objective,
        "lower_bound": answer.lower_bound,
        "gap": answer.gap,
        "latency_s": answer.latency_s,
        "deadline_s": problem.deadline_s,
        "total_bandwidth_hz": problem.total_bandwidth_hz,
        "payload_bits": problem.payload_bits,
        "gamma": problem.gamma,
        "band_residual": answer.band_residual,
        "finish_spread": answer.finish_spread,
        "utility": answer.utility,
        "utility_bound": answer.utility_bound,
    }


def _device_rows(
    problem: RoundProblem, answer: Schedule, detail: Explanation, energy_j: Floats, names: list[str]
) -> Iterable[dict[str, Any]]:
    sends = answer.bandwidth_hz > 0.0
    for i, name in enumerate(names):
        yield {
            "device": name,
            "selected": bool(sends[i]),
            "bandwidth_hz": float(answer.bandwidth_hz[i]),
            "compute_s": float(problem.compute_s[i]),
            "upload_s": float(detail.upload_s[i]),
            "finish_s": float(detail.finish_s[i]),
            "tau": float(problem.tau[i]),
            "energy_j": float(energy_j[i]),
            "reason": detail.reason[i],
        }


def _table(narrow: bool) -> Table:
    return Table(box=None if narrow else box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1) if narrow else (0, 2))


def _device_table(
    problem: RoundProblem, answer: Schedule, detail: Explanation, names: list[str], *, narrow: bool
) -> Table:
    table = _table(narrow)
    for heading, justify in (
        ("device", "left"),
        ("sends" if narrow else "selected", "center"),
        ("tau", "right"),
        ("bandwidth", "right"),
        ("computing", "right"),
        ("upload", "right"),
        ("finish", "right"),
        ("left out" if narrow else "left out because", "left"),
    ):
        table.add_column(heading, justify=justify, no_wrap=heading != "device")  # type: ignore[arg-type]
    shown = range(problem.num_devices) if problem.num_devices <= MAX_ROWS else answer.selected[:MAX_ROWS].tolist()
    for i in shown:
        sends = answer.bandwidth_hz[i] > 0.0
        add_row(
            table,
            names[i],
            "yes" if sends else "",
            f"{problem.tau[i]:g}",
            human(float(answer.bandwidth_hz[i]), "Hz") if sends else "",
            human(float(problem.compute_s[i]), "s"),
            human(float(detail.upload_s[i]), "s") if sends else "",
            human(float(detail.finish_s[i]), "s") if sends else "",
            _SHORT.get(detail.reason[i], detail.reason[i]) if narrow else detail.reason[i],
            style=None if sends else "dim",
        )
    return table


def _in_words(problem: RoundProblem, answer: Schedule, detail: Explanation) -> Iterable[str]:
    if problem.num_devices > MAX_ROWS:
        more = answer.num_selected - min(answer.num_selected, MAX_ROWS)
        if more:
            yield f"… and {more} more that send."
        yield "--csv lists every device."
    left_out = Counter(reason for reason in detail.reason if reason)
    reasons = ", ".join(
        f"{count} {reason if count == 1 else reason.replace(' its ', ' their ')}"
        for reason, count in left_out.most_common()
    )
    yield f"{answer.num_selected} of {problem.num_devices} devices send" + (
        f"; left out: {reasons}." if reasons else "."
    )
    if answer.status is Status.INFEASIBLE:
        yield f"Nobody sends this round (status infeasible): {why_nobody(problem, answer.policy, _OPTIONS)}."
        return
    if not math.isnan(answer.utility):
        proof = _utility_in_words(answer)
        yield f"Utility {answer.utility:.6g}: {proof} (policy {answer.policy})."
    optimal = answer.status is Status.OPTIMAL
    proof = "proven optimal" if optimal else f"at most {_percent(answer.gap)} above the optimum"
    yield f"Objective {answer.objective:.6g}, proven bound {answer.lower_bound:.6g}: {proof} (policy {answer.policy})."
    yield (
        f"The round ends after {human(answer.latency_s, 's')}, "
        f"{human(problem.deadline_s - answer.latency_s, 's')} before the deadline of {human(problem.deadline_s, 's')}."
    )


def _utility_in_words(answer: Schedule) -> str:
    if answer.utility_bound == answer.utility:
        return "proven to be the greatest that fits"
    return f"at most {_percent(answer.utility_bound / answer.utility - 1.0)} under the greatest that fits"


def _compared(problem: RoundProblem, answer: Schedule, took_s: float, bound: float) -> dict[str, Any]:
    return {
        "policy": answer.policy,
        "status": answer.status.value,
        "num_selected": answer.num_selected,
        "mean_tau": float(np.mean(problem.tau[answer.selected])) if answer.num_selected else math.nan,
        "objective": answer.objective,
        "gap": answer.objective / bound - 1.0 if answer.num_selected else math.nan,
        "latency_s": answer.latency_s,
        "solve_s": took_s,
    }


def _best_first(row: dict[str, Any]) -> tuple[float, int]:
    return (row["objective"], list(POLICIES).index(row["policy"]))


def _comparison_table(rows: list[dict[str, Any]], *, proven: bool, narrow: bool) -> Table:
    table = _table(narrow)
    above = "above optimum" if proven else "above bound"
    wide = ("policy", "devices", "mean tau", "objective", above, "latency", "time taken")
    for heading in ("policy", "devices", "tau", "objective", above[:11], "latency", "time") if narrow else wide:
        table.add_column(heading, justify="left" if heading == "policy" else "right", no_wrap=True)
    if not narrow:
        table.add_column("rule", style="dim", no_wrap=True)
    for row in rows:
        nobody = row["num_selected"] == 0
        add_row(
            table,
            row["policy"],
            str(row["num_selected"]),
            "–" if nobody else f"{row['mean_tau']:.2f}",
            "–" if nobody else f"{row['objective']:.4f}",
            "–" if nobody else ("optimal" if row["status"] == "optimal" else _percent(row["gap"])),
            human(row["latency_s"], "s"),
            human(row["solve_s"], "s", digits=3),
            *([] if narrow else [POLICIES[row["policy"]].summary.split(":")[0]]),
        )
    return table


def _percent(share: float) -> str:
    return f"{100.0 * max(share, 0.0):.1f} %"


def _print_json(value: Any) -> None:
    print(json_text(json.dumps(_finite(value), indent=2, ensure_ascii=False)))


def _finite(value: Any) -> Any:
    """JSON has no nan and no infinity: null stands for both."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _print_csv(rows: Iterable[dict[str, Any]]) -> None:
    writer = None
    for row in rows:
        if writer is None:
            writer = csv.DictWriter(sys.stdout, list(row), lineterminator="\n")
            writer.writeheader()
        writer.writerow({key: _cell(value) for key, value in row.items()})


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return csv_text(value)
    return "" if isinstance(value, float) and not math.isfinite(value) else value
