"""`flare testbed`: real Flower nodes behind shaped links, and predicted against measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from flare.cli.console import add_row, console, say
from flare.cli.plugins import Plugins, load_named
from flare.units import parse

if TYPE_CHECKING:
    from flare.testbed.summary import Summary


def bed(
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="A new folder for what is measured. (default: testbed)")
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option("--policy", "-p", help="May be given again. (default: exact, greedy, cp, dm and cm)"),
    ] = None,
    rounds: Annotated[int, typer.Option("--rounds", "-r", help="Rounds of each policy.")] = 10,
    devices: Annotated[int, typer.Option("--devices", "-n", help="Devices: SuperNodes, each in a namespace.")] = 8,
    update: Annotated[str, typer.Option("--update", help="Size of an update, such as 4Mbit.")] = "4Mbit",
    calibration: Annotated[
        int,
        typer.Option("--calibration", help="Rounds without a guard, from which wireless.guard is derived; 0: none."),
    ] = 4,
    tls: Annotated[bool, typer.Option("--tls/--no-tls", help="Whether nodes and server speak TLS.")] = True,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="A setting, such as wireless.deadline_s=8; may be given again.")
    ] = None,
    read: Annotated[
        Path | None, typer.Option("--read", help="Measure nothing: read the folder of an earlier testbed again.")
    ] = None,
    clean: Annotated[
        bool, typer.Option("--clean", help="Take down what a killed testbed left, and do nothing else.")
    ] = False,
    plugin: Plugins = None,
) -> None:
    """Compare policies on real Flower nodes whose links are shaped to what each schedule grants.

    Every device is a SuperNode in a network namespace of its own; computing takes as long as the modelled processor
    would. What the model predicts of each upload, device and round is compared with what was measured on the link.
    Needs Linux and the rights of root. All namespaces and programs are gone at the end, also after Ctrl-C; after a
    kill, --clean takes them down.
    """
    from flare.testbed import network, run  # here, because figures and schedules take their time to import
    from flare.testbed.page import write_results
    from flare.testbed.settings import POLICIES_COMPARED, Settings

    load_named(plugin)
    if clean:
        with network.alone():
            gone = network.clean()
        say(f"{len(gone.namespaces)} namespaces and {gone.processes} programs of a testbed were taken down.")
        for name in gone.left:
            say(f"{name} is left as it is: no testbed is known to have made it (ip netns delete {name} removes it).")
        return
    if read is not None:
        folder, told = read, run.read_testbed(read)
    else:
        settings = Settings(
            policies=tuple(policy or POLICIES_COMPARED),
            rounds=rounds,
            devices=devices,
            update_bits=parse(update, "data size"),
            calibration_rounds=calibration,
            tls=tls,
            changed=tuple(set_ or ()),
            plugins=tuple(str(each.resolve()) for each in plugin or ()),
        )
        folder = out or Path("testbed")
        told = run.run_testbed(settings, folder, lambda words: say(words, stderr=True))
    _show(write_results(told.delivered, told.compared, folder))
    say(f"All deliveries, tables and the figure are in {folder}: measurements.csv, summary.md, scatter.svg.")


def _show(summary: Summary) -> None:
    table = Table("policy", "devices a round", "in time", "predicted", "measured", "less overhead", "missed", box=None)
    for each in summary.policies:
        add_row(
            table,
            each.policy,
            f"{each.scheduled:.2f}",
            f"{each.in_time:.2f}",
            f"{each.predicted_s:.2f} s",
            f"{each.measured_s:.2f} s",
            f"{each.net_s:.2f} s",
            f"{each.missed} of {each.updates}",
        )
    console().print(table)
    for words in summary.incomplete:
        say(f"{words}.")
    for goal in summary.goals:
        remark = {None: "  (not tested)", False: "  (not met)"}.get(goal.met, "")
        say(f"{goal.what}: {goal.reached}{remark}")
