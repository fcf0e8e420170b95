"""What `flare run` and `flare compare` do, apart from their options: imported when they run, because torch takes its
time to import."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from flare.atomic import write_whole
from flare.cli.data import watched
from flare.cli.guard import INTERRUPTED
from flare.cli.progress import interruptible, showing, tensorboard
from flare.config import Config, DataConfig, Options
from flare.data.catalogue import CATALOGUE
from flare.data.fetch import cache_state, fetch
from flare.learning.methods import make_method
from flare.reading import read_small
from flare.records import RunFolder
from flare.scheduling import get_policy
from flare.scheduling.nobody import why_nobody
from flare.simulation import Member, RoundRecord, RunStatus, Simulation, drive, resume
from flare.text import one_line

if TYPE_CHECKING:
    from flare.report.curves import Estimate


def combinations(whole: Config, entries: Sequence[str], methods: str, policies: str, seeds: int) -> list[Config]:
    """One configuration for each pair of method and policy and each seed.

    A policy gets those of the options that it has; ValueError for an option that none of the policies has.
    """
    pairs = [_pair(entry) for entry in entries]
    if methods or policies or not pairs:
        pairs += [
            (method, policy)
            for method in _words(methods) or [whole.learning.method]
            for policy in _words(policies) or [whole.scheduling.policy]
        ]
    if len(set(pairs)) < len(pairs):
        raise ValueError("a pair of method and policy is given twice; each is run once")
    options = _options_of([policy for _, policy in pairs], whole.scheduling.options)
    return [
        replace(
            whole,
            seed=whole.seed + seed,
            learning=replace(whole.learning, method=method),
            scheduling=replace(whole.scheduling, policy=policy, options=options[policy]),
        )
        for method, policy in pairs
        for seed in range(seeds)
    ]


def _options_of(policies: Sequence[str], given: Options) -> dict[str, Options]:
    """The options of each policy of a comparison."""
    known = {name: get_policy(name).options for name in policies}
    unknown = next((option for option in given if not any(option in names for names in known.values())), None)
    if unknown is not None:
        listed = "; ".join(f"{name}: {', '.join(names) or 'none'}" for name, names in known.items())
        raise ValueError(f"none of the policies has an option '{unknown}' (their options: {listed})")
    return {name: given.only(names) for name, names in known.items()}


def _pair(entry: str) -> tuple[str, str]:
    method, colon, policy = entry.partition(":")
    if not colon or not method or not policy:
        raise ValueError(f"--entry: '{entry}' is not of the form METHOD:POLICY, such as flare:greedy")
    return method, policy


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


_LIST = "comparison.json"
_MAX_LIST_BYTES = 1 << 24


def created(
    folders: Sequence[Path], configs: Sequence[Config], force: bool, *, listing: Path | None = None
) -> list[Member]:
    """New runs. Everything that can be wrong with their settings is found before a folder is touched.

    The runs of a comparison are first listed in the folder `listing`.
    """
    for one in configs:
        get_policy(one.scheduling.policy).check_options(one.scheduling.options)
        make_method(one.learning)
        fetch_if_needed(one.data)
    simulations = [Simulation(one) for one in configs]
    for simulation in simulations:
        if simulation.config.scheduling.options:
            simulation.plan(simulation.start())  # what an option may be, only its policy knows
    for folder in folders:
        RunFolder.refuse_occupied(folder, force=force)
    if listing is not None:
        listing.mkdir(parents=True, exist_ok=True)
        write_whole(listing / _LIST, json.dumps([folder.name for folder in folders]).encode())
    return [
        Member(
            simulation,
            RunFolder.create(folder, simulation.config, force=force, identity=simulation.identity),
            key=str(folder),
        )
        for simulation, folder in zip(simulations, folders, strict=True)
    ]


def listed(base: Path) -> list[Path]:
    """The runs of a comparison, to resume; ValueError where the folder holds none, or not all that it should."""
    try:
        names = json.loads(read_small(base / _LIST, _MAX_LIST_BYTES))
        if not isinstance(names, list) or not all(isinstance(name, str) and Path(name).name == name for name in names):
            raise ValueError("not a list of the names of folders in this one")
        folders = [base / name for name in names]
    except (ValueError, RecursionError):
        raise ValueError(f"{base}: is no folder of a comparison; give the --out of flare compare") from None
    missing = [folder.name for folder in folders if not (folder / "manifest.json").exists()]
    if missing:
        raise ValueError(f"{base}: the run {missing[0]} was never begun; start the comparison again with --force")
    return folders


def fetch_if_needed(data: DataConfig) -> None:
    """Bring a data set that is not there yet into the cache, with a progress bar."""
    if data.name in CATALOGUE and not data.folder and cache_state(data.name) != "cached":
        with watched() as progress:
            fetch(data.name, folder="", progress=progress)


def resumed(folder: Path) -> Member:
    """The run in a folder, where its newest sound checkpoint left it."""
    opened = RunFolder.open(folder)
    member = Member(Simulation(opened.config), opened, key=str(folder))
    resume(member)
    return member


def run_name(whole: Config) -> str:
    """What a run is called."""
    return f"{whole.learning.method}-{whole.scheduling.policy}-seed{whole.seed}"


def new_folder(base: Path, name: str) -> Path:
    """The first of name, name-2, name-3, ... that is not there yet."""
    number = 1
    while (folder := base / (name if number == 1 else f"{name}-{number}")).exists():
        number += 1
    return folder


def go(
    members: Sequence[Member],
    folders: Sequence[Path],
    labels: Sequence[str],
    *,
    again: str,
    quiet: bool,
    with_tensorboard: bool,
) -> list[dict[str, Any]]:
    """Drive the runs to their end, or to the first Ctrl-C; how each of them ended. `again` is the command that
    continues them."""
    with (
        interruptible() as stopping,
        tensorboard(folders, members, wanted=with_tensorboard) as log,
        showing(members, labels, quiet=quiet) as show,
    ):

        def callback(member: Member, record: RoundRecord) -> None:
            log(member, record)
            show(member, record)

        try:
            drive(members, callback=callback, stopping=stopping)
        except OSError as error:
            raise OSError(f"{error} Continue with: {again}") from None
    return [_outcome(member, folder) for member, folder in zip(members, folders, strict=True)]


def end(outcomes: Sequence[dict[str, Any]], again: str) -> None:
    """Leave with the exit code of an interruption where a run was interrupted."""
    if any(one["status"] == "interrupted" for one in outcomes):
        print(one_line(f"interrupted; continue with: {again}"), file=sys.stderr)
        raise typer.Exit(INTERRUPTED)


def _outcome(member: Member, folder: Path) -> dict[str, Any]:
    assert member.folder is not None
    tested, sent = [], member.state.rounds_done == 0
    for record in member.folder.iter_records():
        sent = sent or bool(record["selected"])
        if record["test_accuracy"] is not None:
            tested.append(record)
    return {
        "folder": str(folder),
        "method": member.simulation.config.learning.method,
        "policy": member.simulation.config.scheduling.policy,
        "seed": member.simulation.config.seed,
        "status": "interrupted" if member.state.status is RunStatus.RUNNING else member.state.status.value,
        "rounds": member.state.rounds_done,
        "clock_s": member.state.clock_s,
        "test_accuracy": tested[-1]["test_accuracy"] if tested else None,
        "best_accuracy": max((record["test_accuracy"] for record in tested), default=None),
        "test_loss": tested[-1]["test_loss"] if tested else None,
        "why_nobody_sent": None if sent else _why_nobody_sent(member.simulation),
    }


def _why_nobody_sent(simulation: Simulation) -> str:
    """Why a run had no update in any round, told of its first."""
    return why_nobody(simulation.plan(simulation.start()).problem, simulation.config.scheduling.policy)


def print_outcome(one: dict[str, Any]) -> None:
    """Say how a run ended."""
    tested = "" if one["test_accuracy"] is None else f", test accuracy {100 * one['test_accuracy']:.2f} %"
    rounds = f"{one['rounds']} round{'' if one['rounds'] == 1 else 's'}"
    print(f"{one['status']} after {rounds} and {one['clock_s']:.1f} simulated seconds{tested}.")
    print_nobody(one)
    folder = one_line(one["folder"])
    print(f"The run is in {folder}; draw it with: flare report {folder}")


def print_nobody(one: dict[str, Any]) -> None:
    """Say of a run in which nobody ever sent that it was so, and why."""
    if one["why_nobody_sent"] is not None:
        name = f"{one['method']}-{one['policy']}-seed{one['seed']}"
        print(f"Nobody sent in any round of {name}, so nothing was learned: {one['why_nobody_sent']}.")


def report_on(folders: Sequence[Path], page: Path, *, quietly: bool) -> None:
    """Write the report and, unless `quietly`, print what became of the runs, those of different seeds in one line."""
    from flare.report.curves import common_time_s, summarise  # here, because matplotlib takes its time to import
    from flare.report.run_groups import group_runs, read_run
    from flare.report.run_report import write_report

    write_report(folders, page)
    if quietly:
        return
    groups, _ = group_runs([read_run(folder) for folder in folders])
    common_s = common_time_s(groups)
    lines = [(group.label, summarise(group, common_s)) for group in groups]
    lines.sort(key=lambda line: -line[1].final.mean if line[1].final.count else 1.0)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    common = "–" if math.isnan(common_s) else f"after {common_s:.0f} s"
    for heading in ("", "accuracy", "best", common, "time", "devices", "mean tau", "gap", "status"):
        table.add_column(heading, justify="left" if heading in ("", "status") else "right", no_wrap=True)
    for label, line in lines:
        table.add_row(
            label,
            *(_percent(one) for one in (line.final, line.best, line.at_common)),
            f"{line.clock_s.mean:.0f} s",
            f"{line.devices:.1f}",
            "–" if math.isnan(line.tau) else f"{line.tau:.2f}",
            "–" if math.isnan(line.gap) else f"{100.0 * line.gap:.0f} %",
            line.status,
        )
    Console(highlight=False, width=None if sys.stdout.isatty() else 140).print(table)
    print("Accuracy on the test samples at the end, at best and at a common simulated time; ± is a 95 % interval.")
    print(one_line(f"The report is in {page}."))


def _percent(value: Estimate) -> str:
    if not value.count:
        return "–"
    return f"{100.0 * value.mean:.1f}" + ("" if math.isnan(value.half) else f" ± {100.0 * value.half:.1f}") + " %"
