"""What a testbed writes down: every delivery as a row, the numbers as tables, the scatter plot."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from flare.atomic import write_whole
from flare.testbed.drawing import draw_scatter
from flare.testbed.measured import Delivery
from flare.testbed.summary import Spread, Summary, summarise

COLUMNS: dict[str, Callable[[Delivery], object]] = {
    "run": lambda each: each.run,
    "round": lambda each: each.round,
    "device": lambda each: each.device,
    "bandwidth_hz": lambda each: each.bandwidth_hz,
    "rate_bps": lambda each: each.rate_bps,
    "payload_bits": lambda each: each.payload_bits,
    "deadline_s": lambda each: each.deadline_s,
    "compute_s": lambda each: each.compute_s,
    "measured_compute_s": lambda each: each.measured_compute_s,
    "busy_s": lambda each: each.busy_s,
    "upload_s": lambda each: each.upload_s,
    "measured_upload_s": lambda each: each.measured_upload_s,
    "net_upload_s": lambda each: each.net_upload_s,
    "finish_s": lambda each: each.finish_s,
    "measured_finish_s": lambda each: each.measured_finish_s,
    "net_finish_s": lambda each: each.net_finish_s,
    "delivery_s": lambda each: each.delivery_s,
    "hand_over_s": lambda each: each.hand_over_s,
    "protocol_s": lambda each: each.protocol_s,
    "fetch_s": lambda each: each.fetch_s,
    "pauses_s": lambda each: each.link.pauses_s,
    "frames": lambda each: each.link.frames,
    "frame_bytes": lambda each: each.link.frame_bytes,
    "tcp_bytes": lambda each: each.link.tcp_bytes,
    "other_bytes": lambda each: each.link.other_bytes,
    "guard_s": lambda each: each.guard_s,
    "beyond_guard": lambda each: int(each.beyond_guard),
    "missed": lambda each: int(each.missed),
}
"""A column of the table of deliveries each. Predicted are compute_s, upload_s and finish_s."""


def write_results(delivered: Mapping[str, Sequence[Delivery]], compared: Sequence[str], folder: Path) -> Summary:
    """Write `measurements.csv` of all deliveries, and of the runs that are compared `summary.md` and `scatter.svg`."""
    summary = summarise({name: delivered[name] for name in compared})
    every = [each for those in delivered.values() for each in those]
    write_whole(folder / "measurements.csv", as_csv(every).encode())
    write_whole(folder / "summary.md", as_markdown(summary).encode())
    draw_scatter(folder / "scatter.svg", {name: delivered[name] for name in compared})
    return summary


def as_csv(delivered: Sequence[Delivery]) -> str:
    """All deliveries, a row each; what is not known is empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for each in delivered:
        writer.writerow([_cell(value(each)) for value in COLUMNS.values()])
    return out.getvalue()


def _cell(value: object) -> object:
    if isinstance(value, float):
        return f"{value:.6g}" if math.isfinite(value) else ""
    return value


def as_markdown(summary: Summary) -> str:
    """The tables of a comparison."""
    return "\n".join([_policies(summary), _errors(summary), _overhead(summary), _bytes(summary), _goals(summary)])


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [" | ".join(head), " | ".join(["---"] * len(head)), *(" | ".join(row) for row in rows)]
    return "".join(f"| {line} |\n" for line in lines)


def _policies(summary: Summary) -> str:
    head = ["policy", "devices a round", "in time", "round predicted, s", "measured, s", "less overhead, s", "missed"]
    rows = [
        [
            each.policy,
            f"{each.scheduled:.2f}",
            f"{each.in_time:.2f}",
            f"{each.predicted_s:.2f}",
            f"{each.measured_s:.2f}",
            f"{each.net_s:.2f}",
            f"{each.missed} of {each.updates}",
        ]
        for each in summary.policies
    ]
    return _table(head, rows) + "".join(f"\n{words}.\n" for words in summary.incomplete)


def _spreads(first: str, spreads: Mapping[str, Spread], shown: Callable[[float], str]) -> str:
    rows = [[name, shown(each.median), shown(each.high), shown(each.greatest)] for name, each in spreads.items()]
    return _table([first, "median", "95 of 100 below", "greatest"], rows)


def _errors(summary: Summary) -> str:
    return _spreads("error of", summary.errors, lambda value: f"{100.0 * value:.1f} %")


def _overhead(summary: Summary) -> str:
    return _spreads("overhead, s", summary.overhead_s, lambda value: f"{value:.3f}")


def _bytes(summary: Summary) -> str:
    own = summary.update_bytes["the update itself"]
    rows = [[name, f"{value:,.0f}", f"{100.0 * value / own:.2f} %"] for name, value in summary.update_bytes.items()]
    return _table(["bytes from a device for one update, median", "bytes", "of the update"], rows)


def _goals(summary: Summary) -> str:
    rows = [[each.what, each.reached, each.verdict] for each in summary.goals]
    return _table(["goal", "reached", "met"], rows)
