"""How schedules look in a terminal, as JSON and as CSV."""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np
from rich import box
from rich.table import Table

from flare.cli.console import MAX_ROWS, add_row, console, say, say_json
from flare.scheduling import POLICIES, RoundProblem, Schedule, Status
from flare.scheduling.explain import Explanation, LeftOut
from flare.scheduling.known_round import KnownRound
from flare.scheduling.nobody import Names
from flare.text import csv_text
from flare.units import human

_WIDE = 88  # characters of a row before the reason
_SHORT = {  # reasons in a narrow terminal
    LeftOut.NEVER: "must not",
    LeftOut.HELD_UP: "held up",
    LeftOut.FULL: "one too many",
    LeftOut.NOT_CHOSEN: "not chosen",
    LeftOut.TOO_SLOW: "too slow",
    LeftOut.TOO_WEAK: "too weak",
    LeftOut.WORSE: "worse by {:.3g}",
    LeftOut.EQUAL: "no change",
    LeftOut.BETTER: "better by {:.3g}",
    LeftOut.ALONE: "passed over",
}
_OPTIONS = Names("--deadline", "--bandwidth", "--payload")


def schedule(this: KnownRound, answer: Schedule, detail: Explanation, *, as_json: bool, as_csv: bool) -> None:
    """Print one schedule."""
    names = this.names
    if not as_json and not as_csv:
        screen = console()
        wide = _WIDE + max(map(len, detail.reason))
        screen.print(_device_table(answer, detail, names, narrow=screen.width < wide))
        for line in _in_words(this, answer, detail):
            say(line)
        return
    whole = this.as_dict(answer, detail)
    if as_json:
        say_json(whole)
    else:
        _print_csv(whole["devices"])


def comparison(
    this: KnownRound,
    answers: list[tuple[Schedule, float]],
    bound: float,
    options: dict[str, dict[str, Any]],
    *,
    as_json: bool,
    as_csv: bool,
) -> None:
    """Print all policies side by side, the best objective first; `bound` is the proven bound of the round, and
    `options` are those that were set, by policy."""
    problem = this.problem
    rows = sorted((_compared(answer, took_s, bound, problem) for answer, took_s in answers), key=_best_first)
    if as_json:
        rows = [row | {"options": options.get(row["policy"], {})} for row in rows]
        say_json({"lower_bound": bound, "deadline_s": problem.deadline_s, "guard_s": this.guard_s, "policies": rows})
    elif as_csv:
        _print_csv(rows)
    else:
        screen = console()
        proven = any(row["status"] == "optimal" for row in rows)
        screen.print(_comparison_table(rows, options, proven=proven, narrow=screen.width < 112))
        if later := [row["policy"] for row in rows if _ends_otherwise(row)]:
            say(
                "Last, as another round end is another problem, and their objectives do not compare: "
                f"{', '.join(later)}."
            )
        if not problem.possible:
            say(f"Nobody sends: {this.why_nobody(answers[0][0], _OPTIONS)}.")


def _table(narrow: bool) -> Table:
    return Table(box=None if narrow else box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1) if narrow else (0, 2))


def _device_table(answer: Schedule, detail: Explanation, names: list[str], *, narrow: bool) -> Table:
    problem, table = answer.problem, _table(narrow)
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
            human(float(answer.compute_s[i]), "s"),
            human(float(detail.upload_s[i]), "s") if sends else "",
            human(float(detail.finish_s[i]), "s") if sends else "",
            _short(detail, i) if narrow else detail.reason[i],
            style=None if sends else "dim",
        )
    return table


def _short(detail: Explanation, device: int) -> str:
    """Why a device is left out, in few words."""
    why = detail.why[device]
    return "" if why is None else _SHORT.get(why, why).format(abs(float(detail.objective_change[device])))


def _in_words(this: KnownRound, answer: Schedule, detail: Explanation) -> Iterable[str]:
    problem = answer.problem
    if problem.num_devices > MAX_ROWS:
        more = answer.num_selected - min(answer.num_selected, MAX_ROWS)
        if more:
            yield f"… and {more} more that send."
        yield "--csv lists every device."
    yield f"{answer.num_selected} of {problem.num_devices} devices send" + (
        f"; left out: {detail.left_out}." if detail.left_out else "."
    )
    if answer.status is Status.INFEASIBLE:
        yield f"Nobody sends this round (status infeasible): {this.why_nobody(answer, _OPTIONS)}."
        return
    if not math.isnan(answer.utility):
        proof = _utility_in_words(answer)
        yield f"Utility {answer.utility:.6g}: {proof} (policy {answer.policy})."
    if math.isnan(answer.lower_bound):
        yield f"Objective {answer.objective:.6g} (policy {answer.policy})."
    else:
        optimal = answer.status is Status.OPTIMAL
        proof = "proven optimal" if optimal else f"at most {_percent(answer.gap)} above the optimum"
        bound = f"{answer.lower_bound:.6g}"
        yield f"Objective {answer.objective:.6g}, proven bound {bound}: {proof} (policy {answer.policy})."
    yield from _set_by_policy(answer)
    own = math.isnan(answer.lower_bound)  # of the deadline that was asked for, there is one
    end = "when the policy ends it" if own else _before_the_deadline(this, answer)
    yield f"The round ends after {human(answer.latency_s, 's')}, {end}."
    if answer.broadcast_s:
        yield (
            f"Before that, the base station broadcasts {human(answer.downlink_bits, 'bit')} in "
            f"{human(answer.broadcast_s, 's')}, at the rate of the weakest sender: {human(answer.round_s, 's')} in all."
        )


def _before_the_deadline(this: KnownRound, answer: Schedule) -> str:
    """How much earlier a round ends than it must, and what the guard has to do with that."""
    left_s = this.problem.deadline_s
    spare, left, whole = (human(each, "s") for each in (left_s - answer.latency_s, left_s, left_s + this.guard_s))
    own = _own_deadlines(answer, left_s - answer.latency_s)
    if not this.guard:
        return f"{spare} before the deadline of {whole}{own}"
    guard = human(this.guard_s, "s")
    return f"{spare} before the {left} that a guard of {guard} leaves of the deadline of {whole}{own}"


def _own_deadlines(answer: Schedule, spare_s: float) -> str:
    """How much earlier than its own deadline a device finishes at least, where that is less than the round has to
    spare."""
    due_s, at = answer.problem.due_s, answer.selected
    if due_s is None:
        return ""
    left_s = max(float((due_s[at] - answer.compute_s[at] - answer.upload_s[at]).min()), 0.0)
    if left_s >= spare_s:
        return ""
    return f"; of the devices' own deadlines the tightest is met with {human(left_s, 's')} left"


def _set_by_policy(answer: Schedule) -> Iterable[str]:
    """The speeds and powers that a policy set, in a sentence each."""
    for what, values, unit in (("compute at", answer.cpu_hz, "Hz"), ("send with", answer.power_w, "W")):
        if values is not None:
            least, most = (human(float(each), unit) for each in np.sort(values[answer.selected])[[0, -1]])
            yield f"Devices {what} {least} to {most}, as {answer.policy} sets it for each (--json and --csv list them)."


def _utility_in_words(answer: Schedule) -> str:
    if answer.utility_bound == answer.utility:
        return "proven to be the greatest that fits"
    return f"at most {_percent(answer.utility_bound / answer.utility - 1.0)} under the greatest that fits"


def _compared(answer: Schedule, took_s: float, bound: float, asked: RoundProblem) -> dict[str, Any]:
    problem = answer.problem
    if problem.deadline_s != asked.deadline_s:  # as the policy set it: the bound is of another round
        bound = math.nan
    return {
        "policy": answer.policy,
        "status": answer.status.value,
        "num_selected": answer.num_selected,
        "mean_tau": float(np.mean(problem.tau[answer.selected])) if answer.num_selected else math.nan,
        "objective": answer.objective,
        "gap": answer.objective / bound - 1.0 if answer.num_selected else math.nan,
        "latency_s": answer.latency_s,
        "broadcast_s": answer.broadcast_s,
        "band_residual": answer.band_residual,
        "finish_spread": answer.finish_spread,
        "utility": answer.utility,
        "utility_bound": answer.utility_bound,
        "solve_s": took_s,
    }


def _best_first(row: dict[str, Any]) -> tuple[bool, float, int]:
    """By objective; last those of rounds to which the policy gave another end."""
    return (_ends_otherwise(row), row["objective"], list(POLICIES).index(row["policy"]))


def _ends_otherwise(row: dict[str, Any]) -> bool:
    """Whether the policy gave the round another end, so that its objective is that of another problem."""
    return math.isnan(row["gap"]) and row["num_selected"] > 0


def _comparison_table(
    rows: list[dict[str, Any]], options: dict[str, dict[str, Any]], *, proven: bool, narrow: bool
) -> Table:
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
            ", ".join([row["policy"], *(f"{name}={value}" for name, value in options.get(row["policy"], {}).items())]),
            str(row["num_selected"]),
            "–" if nobody else f"{row['mean_tau']:.2f}",
            "–" if nobody else f"{row['objective']:.4f}",
            "–" if math.isnan(row["gap"]) else ("optimal" if row["status"] == "optimal" else _percent(row["gap"])),
            human(row["latency_s"], "s"),
            human(row["solve_s"], "s", digits=3),
            *([] if narrow else [POLICIES[row["policy"]].summary.split(":")[0]]),
        )
    return table


def _percent(share: float) -> str:
    return f"{100.0 * max(share, 0.0):.1f} %"


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
    return "" if value is None or (isinstance(value, float) and not math.isfinite(value)) else value
