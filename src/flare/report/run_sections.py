"""The pictures of a report and the words around them, section by section."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from flare.config import PLAIN
from flare.records.run import OTHER_FAULTS, RunNumbers, time_in_words
from flare.report import run_figures as draw
from flare.report.curves import (
    MAX_POINTS,
    MIN_SEEDS,
    Curve,
    accuracy_against_bits,
    accuracy_against_rounds,
    accuracy_against_time,
    against_rounds,
    evenly,
    over_seeds,
)
from flare.report.fleet_sections import nodes_section
from flare.report.panels import Panel, Section, labels_of, line_panel, nothing, range_panel, spoken
from flare.report.run_figures import DEVICES, ROUND
from flare.report.run_groups import Group, runs_of
from flare.types import Floats, Indices
from flare.units import human

BAND = (
    "Band: 95 % t-interval over the seeds, cut off where it would dwarf the curves. Curves are thin where some seeds "
    "have ended, and end where most have."
)
NO_BAND = f"No bands: a 95 % interval takes {MIN_SEEDS} seeds."
MAX_FAULT_PANELS, MAX_FAULT_KINDS = 4, 5
MAX_GAP_POINTS = 30


def all_sections(groups: Sequence[Group]) -> list[Section]:
    """Every section, in the order of the page."""
    parts = (_accuracy, _loss, _participation, _work, _time, _schedules, nodes_section, _real)
    return [made for part in parts if (made := part(groups)) is not None]


def _band(groups: Sequence[Group]) -> str:
    if not any(len(group.runs) >= MIN_SEEDS for group in groups):
        return NO_BAND
    return BAND if len(groups) <= draw.MAX_BANDS else f"No bands: those of more than {draw.MAX_BANDS} hide each other."


def _bins(groups: Sequence[Group], max_points: int = MAX_POINTS) -> str:
    """What a point of a curve over rounds stands for, where it is more than one round."""
    if max(run.num_rounds for group in groups for run in group.runs) <= max_points:
        return ""
    return f" At most {max_points} points, each the mean of the rounds around it."


def _accuracy(groups: Sequence[Group]) -> Section:
    rounds = [accuracy_against_rounds(group) for group in groups]
    seconds = [accuracy_against_time(group) for group in groups]
    panels = [
        line_panel(
            "accuracy-rounds",
            "Accuracy against rounds",
            "What a round is worth.",
            (ROUND, "test accuracy (%)"),
            groups,
            rounds,
        ),
        line_panel(
            "accuracy-time",
            f"Accuracy against {time_in_words(runs_of(groups))}",
            "What a second is worth. A curve goes from where all of its seeds have been tested to where the "
            "first of those with the most rounds ends.",
            (f"{time_in_words(runs_of(groups))} (s)", "test accuracy (%)"),
            groups,
            seconds,
        ),
    ]
    if any(group.config.uplink.codec != PLAIN for group in groups):
        panels.append(
            line_panel(
                "accuracy-bits",
                "Accuracy against what was sent",
                "What a bit on the air is worth: those of all devices, scales and places included.",
                ("sent by all devices (bit)", "test accuracy (%)"),
                groups,
                [accuracy_against_bits(group) for group in groups],
            )
        )
    return Section("Accuracy", _band(groups), panels)


def _loss(groups: Sequence[Group]) -> Section:
    train = [against_rounds(group, lambda run: run.of_round["train_loss"]) for group in groups]
    test = [against_rounds(group, lambda run: run.of_round["test_loss"]) for group in groups]
    panels = [
        line_panel(
            "train-loss",
            "Training loss",
            f"Mean over the senders' steps.{_bins(groups)}",
            (ROUND, "training loss"),
            groups,
            train,
        ),
        line_panel(
            "test-loss", "Test loss", "Of the global model on the test samples.", (ROUND, "test loss"), groups, test
        ),
    ]
    return Section("Loss", _band(groups), panels)


def _participation(groups: Sequence[Group]) -> Section:
    seeds = set.intersection(*({run.config.seed for run in group.runs} for group in groups))
    shown = [next((run for run in group.runs if run.config.seed in seeds), group.runs[0]) for group in groups]
    shares = np.full((len(groups), max(run.num_devices for run in shown)), np.nan)
    for row, run in zip(shares, shown, strict=True):
        row[: run.num_devices] = run.participation()
    order = np.argsort(-np.nansum(shares, axis=0), kind="stable")
    never = [int((row == 0.0).sum()) for row in shares]
    which = f"seed {min(seeds)}" if seeds else "the first seed of each"
    ranked = [_ranked(group) for group in groups]
    panels = [
        Panel(
            "participation-devices",
            "Who takes part",
            f"Share of the rounds in which each device sent ({which}); busiest over all groups first.",
            spoken(groups, never, lambda number: f"{number:.0f}", "Devices that never sent: "),
            lambda: draw.strip("device, busiest over all groups first", labels_of(groups), shares[:, order]),
        ),
        line_panel(
            "participation-ranked",
            "How evenly",
            "Devices of each run, its busiest first; mean over the seeds. A flat line is fair.",
            ("devices, busiest first (% of all)", "share of the rounds (%)"),
            groups,
            ranked,
        ),
    ]
    return Section("Participation", "", panels)


def _ranked(group: Group) -> Curve:
    """Share of the rounds against the rank of a device in its run."""
    devices = max(run.num_devices for run in group.runs)
    table = np.zeros((len(group.runs), devices))
    for row, run in zip(table, group.runs, strict=True):
        row[: run.num_devices] = np.sort(run.participation())[::-1]
    places = evenly(devices)
    return over_seeds(100.0 * (1.0 + places) / devices, table[:, places])


def _work(groups: Sequence[Group]) -> Section:
    def mean_tau_bar(group: Group) -> float:
        """Where rates are scaled by it; other methods record one and do not use it."""
        if all((run.of_selected["lr"] == run.config.learning.local_lr).all() for run in group.runs):
            return math.nan
        known = np.concatenate([run.of_round["tau_bar"] for run in group.runs])
        return float(known[np.isfinite(known)].mean()) if np.isfinite(known).any() else math.nan

    tau_bars = [mean_tau_bar(group) for group in groups]
    panels = [
        range_panel(
            "devices",
            "Devices a round",
            "Those that send.",
            DEVICES,
            groups,
            lambda run: run.num_senders.astype(float),
        ),
        range_panel(
            "steps",
            "Local steps",
            "τ of every selected device."
            + (" Upright line: the mean of τ̄, which scales the rates." if np.isfinite(tau_bars).any() else ""),
            "local steps τ",
            groups,
            lambda run: run.of_selected["tau"],
            tau_bars,
        ),
        range_panel(
            "rates",
            "Learning rates",
            "Of every selected device.",
            "local learning rate",
            groups,
            lambda run: run.of_selected["lr"],
        ),
        range_panel(
            "energy",
            "Energy a round",
            "All devices together, computing and upload, also of those that were asked before the selection.",
            "energy (J)",
            groups,
            RunNumbers.round_energy_j,
        ),
    ]
    if any(run.age.any() for group in groups for run in group.runs):
        panels.append(
            range_panel(
                "age",
                "Age of updates",
                "How many steps the global model had made since a device received the one that it computed from; 0 is "
                "fresh, and all updates of synchronous runs are.",
                "age (steps of the global model)",
                groups,
                lambda run: run.age,
            )
        )
    text = "Mark: mean. Thick: the middle half of the values. Thin: all but the outer tenth."
    return Section("Devices, steps and learning rates", text, panels)


def _deadline_s(group: Group) -> float:
    """The mean deadline of the rounds of a group, which policies may set; without rounds, that of its settings."""
    means_s = [float(run.of_round["deadline_s"].mean()) for run in group.runs if run.num_rounds]
    return float(np.mean(means_s)) if means_s else group.config.wireless.deadline_s


def _time(groups: Sequence[Group]) -> Section:
    splits_s = np.array([np.mean([run.round_split_s() for run in group.runs], axis=0) for group in groups])
    asking_s, broadcasts_s = splits_s[:, 0].tolist(), splits_s[:, 1].tolist()
    begins_s = splits_s[:, :2].sum(axis=1).tolist()
    deadlines_s = [_deadline_s(group) + at for group, at in zip(groups, begins_s, strict=True)]
    before = " and ".join(
        words for words, known in (("the probe", any(asking_s)), ("the broadcast", any(broadcasts_s))) if known
    )
    parts = [sum(int(run.without_sender.sum()) for run in group.runs) for group in groups]
    wholes = [sum(run.num_rounds for run in group.runs) for group in groups]
    labels = labels_of(groups)
    panels = [
        Panel(
            "latency",
            "Time of a round",
            "Mean over selected devices and rounds. Waiting: for the last of them. A round in which nobody can send "
            "lasts until the deadline."
            + (f" The deadline begins after {before}." if before else "")
            + (" Asking: devices compute and answer before any is selected." if any(asking_s) else ""),
            spoken(
                groups, splits_s.sum(axis=1).tolist(), lambda value_s: human(value_s, "s", 3), "Mean time of a round: "
            ),
            lambda: draw.split_bars("mean time of a round (s)", labels, splits_s, deadlines_s),
        )
    ]
    if any(parts):
        panels.append(
            Panel(
                "infeasible",
                "Rounds without a sender",
                "Nobody could meet the deadline, the policy found nobody, or nothing came of those that were selected.",
                spoken(groups, parts, lambda number: f"{number:.0f}", "Rounds without a sender: "),
                lambda: draw.share_bars("share of the rounds", labels, parts, wholes),
            )
        )
    else:
        panels.append(nothing("Rounds without a sender: none. In every round somebody sent."))
    return Section("Latency", "", panels)


def _schedules(groups: Sequence[Group]) -> Section:
    if not any(np.isfinite(run.gap()).any() for group in groups for run in group.runs):
        return Section("Schedules", "", [nothing("Gap to the bound: no policy here recorded a proven bound.")])
    text = "How far the schedule's objective (problem P2) lies above its proven bound. 0 % is proven optimal."
    panels = [
        range_panel(
            "gap",
            "Gap to the bound",
            "Mark: mean; thick: middle half; thin: all but the outer tenth.",
            "gap (%)",
            groups,
            RunNumbers.gap,
        ),
        line_panel(
            "gap-rounds",
            "Gap over the rounds",
            f"Mean over the seeds.{_bins(groups, MAX_GAP_POINTS)}",
            (ROUND, "gap (%)"),
            groups,
            [against_rounds(group, RunNumbers.gap, max_points=MAX_GAP_POINTS) for group in groups],
        ),
    ]
    return Section("Schedules", text, panels)


def _real(groups: Sequence[Group]) -> Section | None:
    """What the runs took outside the simulated cell, where that was recorded."""
    panels = [] if (real := _wall_time(groups)) is None else [real]
    failed = [group for group in groups if any(run.faults for run in group.runs)]
    for place, group in enumerate(failed[:MAX_FAULT_PANELS]):
        panels.append(_faults(group, "faults" if place == 0 else f"faults-{place + 1}"))
    if failed:
        silent = len(failed) - MAX_FAULT_PANELS
        panels += [nothing(f"Faults of {silent} more groups are in their records.")] if silent > 0 else []
    return Section("Real time and faults" if failed else "Real time", _band(groups), panels) if panels else None


def _wall_time(groups: Sequence[Group]) -> Panel | None:
    """What a round took on the computers; one curve where all runs went in lockstep, since they share their time."""
    curves = [against_rounds(group, lambda run: run.of_round["wall_s"]) for group in groups]
    if not any(len(curve.x) for curve in curves):
        return None
    title, axes = "Real time of a round", (ROUND, "wall time (s)")
    clock = "asking and tests included, which are not in the clock" if _all_real(groups) else "not the simulated clock"
    about = f"What the computers took, {clock}.{_bins(groups)}"
    if not _in_lockstep([run.of_round["wall_s"] for group in groups for run in group.runs]):
        return line_panel("wall-time", title, f"{about} Runs that go in lockstep share it.", axes, groups, curves)
    longest = max(curves, key=lambda curve: len(curve.x))
    about += " All runs here went in lockstep: it is the time of all of them together."
    alt = f"One curve, which ends at: {longest.mean[-1]:.3g}."
    return Panel("wall-time", title, about, alt, lambda: draw.lines(*axes, [longest], draw.looks(1)))


def _all_real(groups: Sequence[Group]) -> bool:
    return all(run.real_clock for run in runs_of(groups))


def _in_lockstep(times_s: Sequence[Floats]) -> bool:
    """Whether several runs have the same times, as far as each goes."""
    longest = max(times_s, key=len)
    return len(times_s) > 1 and all(np.array_equal(each, longest[: len(each)], equal_nan=True) for each in times_s)


def _faults(group: Group, name: str) -> Panel:
    """The faults of the nodes of a group over the rounds, the most frequent kinds by name."""
    happened: dict[str, list[Indices]] = {}
    for run in group.runs:
        for kind, rounds in run.faults.items():
            happened.setdefault(kind, []).append(rounds)
    by_kind = {kind: np.concatenate(parts) for kind, parts in happened.items()}
    often = sorted(by_kind, key=lambda kind: (kind == OTHER_FAULTS, -len(by_kind[kind])))
    shown = {kind: by_kind[kind] for kind in often[:MAX_FAULT_KINDS]}
    if len(often) > MAX_FAULT_KINDS:
        rest = [by_kind[kind] for kind in often[MAX_FAULT_KINDS:]]
        shown[OTHER_FAULTS] = np.concatenate([*([shown.pop(OTHER_FAULTS)] if OTHER_FAULTS in shown else []), *rest])
    alt = "; ".join(f"{kind} {len(rounds)} times" for kind, rounds in shown.items())
    longest = max(run.num_rounds for run in group.runs)
    return Panel(
        name,
        f"Faults of {group.label}",
        f"Answers that nodes did not give, or that were refused, in all runs of the group; # is any number. "
        f"At most {draw.MAX_BARS} bars.",
        f"{alt}.",
        lambda: draw.counts_by_kind("faults", longest, shown),
    )
