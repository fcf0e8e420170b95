"""`flare schedule`: a device table in, a schedule out."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from flare.cli import quantities, schedule_output
from flare.cli.console import say
from flare.cli.plugins import Plugins, with_plugins
from flare.cli.run import Settings
from flare.cli.schedule_downlink import Downlink, broadcast_of
from flare.cli.schedule_limits import limited, one_limit
from flare.config import Config, Options, SchedulingConfig, WirelessConfig, checked_guard, load, override
from flare.config.declared import changed, of_each, read, split_options
from flare.config.guard import Guard
from flare.report import FIGURE_FORMATS
from flare.scheduling import POLICIES, Schedule
from flare.scheduling.explain import explain
from flare.scheduling.known_round import NO_HARDWARE, KnownRound, known_from_cell, known_from_table, with_bound
from flare.scheduling.table import Surroundings, read_table
from flare.wireless.cell import CELLS, Cell
from flare.wireless.channel import path_gain


class PathLoss(StrEnum):
    """How a distance becomes a gain."""

    EXPONENT = "exponent"
    UMA = "3gpp-uma"


PolicyOptions = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", help="An option of the policy, such as num_selected=5; may be given again."),
]
Table = Annotated[
    Path | None,
    typer.Argument(help="CSV file of devices, one a row; - reads it from standard input.", show_default=False),
]
CellName = Annotated[
    str | None, typer.Option(help=f"Draw a cell instead of reading a table: {', '.join(CELLS)}, or a TOML file.")
]
BatchSize = Annotated[
    int | None, typer.Option(help="Table: samples a local step, for cycles_per_sample. (default: 40)")
]
Noise = Annotated[
    str | None, typer.Option(help="Table: noise density such as -174dBm/Hz, for power_dbm. (default: -114dBm/MHz)")
]
PathLossLaw = Annotated[PathLoss | None, typer.Option(help="Table: how distance_m becomes a gain. (default: exponent)")]
PathLossExponent = Annotated[float | None, typer.Option(help="Table: exponent of the path loss. (default: 3.76)")]
Must = Annotated[list[str] | None, typer.Option(help="Devices that have to send, by name or number, such as 3,7.")]
Never = Annotated[list[str] | None, typer.Option(help="Devices that must not send, such as 4.")]
MaxDevices = Annotated[int | None, typer.Option(help="How many devices may send at most.")]
Block = Annotated[
    str | None, typer.Option(help="Width of a resource block, such as 180kHz: bandwidths are whole blocks. 0: any.")
]
GuardTold = Annotated[
    str | None,
    typer.Option(
        help="What to leave free of the deadline: a share such as 0.05, or a time such as 300ms.", show_default=False
    ),
]
DownlinkPower = Annotated[
    str | None, typer.Option(help="Transmit power of the base station, such as 10W. (default: 40dBm)")
]
DownlinkPayload = Annotated[str | None, typer.Option(help="Size of the broadcast. (default: that of an update)")]
TimeLimit = Annotated[
    float | None, typer.Option(help="Seconds after which the search for a proof of the optimum ends. (default: 10)")
]


def schedule(
    table: Table = None,
    bandwidth: Annotated[str | None, typer.Option(help="The band to divide, such as 10MHz.")] = None,
    deadline: Annotated[str | None, typer.Option(help="When the round must be over, such as 400ms.")] = None,
    guard: GuardTold = None,
    payload: Annotated[str | None, typer.Option(help="Size of an update, such as 10Mbit or 1.25MB.")] = None,
    block: Block = None,
    downlink: Annotated[Downlink | None, typer.Option(help="Whether the broadcast of the model counts.")] = None,
    downlink_power: DownlinkPower = None,
    downlink_payload: DownlinkPayload = None,
    must: Must = None,
    never: Never = None,
    max_devices: MaxDevices = None,
    gamma: Annotated[float | None, typer.Option(help="Weight of participation in the objective. (default: 10)")] = None,
    policy: Annotated[str | None, typer.Option(help=f"Who chooses: {', '.join(POLICIES)}. (default: exact)")] = None,
    option: PolicyOptions = None,
    set_: Settings = None,
    plugin: Plugins = None,
    cell: CellName = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of everything drawn. (default: 0)")] = None,
    round_: Annotated[int, typer.Option("--round", min=0, help="Which round of the cell to draw.")] = 0,
    batch_size: BatchSize = None,
    noise: Noise = None,
    path_loss: PathLossLaw = None,
    path_loss_exponent: PathLossExponent = None,
    time_limit: TimeLimit = None,
    compare: Annotated[bool, typer.Option("--compare", help="Put all policies side by side.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    csv_: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw the schedule into a png, svg or pdf file.")] = None,
) -> None:
    """Say who sends this round, on how much bandwidth, when the round ends, and how far that is from the best possible.

    Columns of the table: [bold]tau[/], then [bold]compute_s[/] or [bold]cpu_hz[/] and [bold]cycles_per_sample[/], then
    [bold]snr_hz[/] or [bold]power_dbm[/] with [bold]gain_db[/] or [bold]distance_m[/]. A [bold]name[/] is kept. If you
    like, [bold]weight[/] in the objective, [bold]payload_bits[/] and [bold]deadline_s[/] of each device.
    """
    _check_forms(table, cell, plot, as_json=json_, as_csv=csv_)
    whole = with_plugins(override(Config() if cell is None else _named_cell(cell), set_ or []), plugin)
    policy = whole.scheduling.policy if policy is None else policy
    seed = whole.seed if seed is None else seed
    gamma = _known_gamma(whole.scheduling.gamma) if gamma is None else gamma
    options = _options(whole.scheduling, policy, option or [], time_limit, compare=compare)
    texts = {"--bandwidth": bandwidth, "--deadline": deadline, "--payload": payload, "--block": block}
    settings = quantities.settings_of(texts)
    if guard is not None:
        settings["guard"] = checked_guard(guard, "--guard", as_text=True)
    radio = _radio(batch_size, path_loss, path_loss_exponent) | quantities.settings_of({"--noise": noise})
    if table is not None:
        this = _from_table(table, replace(whole.wireless, **radio), settings, gamma)
    else:
        this = _from_cell(whole.wireless, radio, settings, seed, round_, gamma)
    down = {"--downlink-power": downlink_power, "--downlink-payload": downlink_payload}
    broadcast = broadcast_of(whole.wireless, downlink, quantities.settings_of(down), this.problem, this.power_w)
    limit = one_limit(max_devices, options)
    this = replace(this, problem=limited(this.problem, this.names, must=must, never=never, max_devices=limit))
    options = _of_known_hardware(options, this) if compare else options
    answers = _answers(this, options, seed, round_, broadcast, timed=compare)
    _answer(this, answers, policy, options, compare=compare, as_json=json_, as_csv=csv_, plot=plot)
    if whole.uplink != Config().uplink:
        say("warning: [uplink] is of runs, and plays no part here: give --payload what an update takes", stderr=True)
    quantities.warn_of_doubts(texts | down | {"--noise": noise})  # last, where it is seen; an error is one line alone


def _check_forms(table: Path | None, cell: str | None, plot: Path | None, *, as_json: bool, as_csv: bool) -> None:
    """ValueError where it is not clear what to read, or in which form to answer."""
    if as_json and as_csv:
        raise ValueError("--json and --csv are two forms of one answer; give one of them")
    if (table is None) == (cell is None):
        raise ValueError(
            "give either a table of devices (a CSV file, or - for standard input) or --cell, such as --cell paper"
        )
    if plot is not None and plot.suffix.lower() not in FIGURE_FORMATS:
        raise ValueError(f"--plot: '{plot}' must end in {', '.join(FIGURE_FORMATS)}")


def _answer(
    this: KnownRound,
    answers: dict[str, tuple[Schedule, float]],
    policy: str,
    options: dict[str, dict[str, Any]],
    *,
    compare: bool,
    as_json: bool,
    as_csv: bool,
    plot: Path | None,
) -> None:
    """Draw and print what the policies chose."""
    answer, bound = answers[policy][0], answers["exact"][0].lower_bound
    if plot is not None:
        from flare.report.schedule_plot import draw_schedule  # here, because matplotlib takes its time to import

        place = {"distance_m": this.distance_m, "angle_rad": this.angle_rad}
        draw_schedule(plot, answer, names=this.names, **place)
    if compare:
        found = list(answers.values())
        schedule_output.comparison(this, found, bound, options, as_json=as_json, as_csv=as_csv)
    else:
        answer = with_bound(answer, bound, this.problem)
        schedule_output.schedule(this, answer, explain(answer), as_json=as_json, as_csv=as_csv)
    if plot is not None and not (as_json or as_csv):
        say(f"The picture is in {plot}.")


def _options(
    scheduling: SchedulingConfig, policy: str, texts: Sequence[str], time_limit_s: float | None, *, compare: bool
) -> dict[str, dict[str, Any]]:
    """The policies to ask, and the options of each.

    Options of a file are for its own policy, those of `-o` for the one that is asked; `--time-limit` is for `exact`,
    which is asked for its bound. A comparison asks all policies that one round alone tells enough, and each gets those
    of the options that it has.
    """
    named = split_options(texts)
    if compare:
        asked = [name for name, one in POLICIES.items() if "labels" not in one.needed({}) and not one.probes({})]
        options = {name: dict(own) for name, own in of_each(POLICIES, asked, scheduling.options, named).items()}
    else:
        own = scheduling.options if policy == scheduling.policy else Options()
        options = {policy: dict(changed(own, read(POLICIES.find(policy), named)))}
        options.setdefault("exact", dict(scheduling.options) if scheduling.policy == "exact" else {})
    if not ((compare or policy == "exact") and "time_limit_s" in named):
        options["exact"] |= _given(time_limit_s=time_limit_s)
    return options


def _radio(batch_size: int | None, path_loss: PathLoss | None, exponent: float | None) -> dict[str, Any]:
    """The settings of a table's physical columns that are given."""
    law = None if path_loss is None else path_loss.value
    return _given(batch_size=batch_size, path_loss=law, path_loss_exponent=exponent)


def _given(**values: Any) -> dict[str, Any]:
    """Those that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def _known_gamma(gamma: float | str) -> float:
    if isinstance(gamma, str):
        raise ValueError(
            f'scheduling.gamma is "{gamma}", which is estimated from a model and its data, and a schedule alone has '
            "none; give --gamma a number"
        )
    return gamma


def _from_table(path: Path, wireless: WirelessConfig, settings: dict[str, Any], gamma: float) -> KnownRound:
    _need(settings, "total_bandwidth_hz", "--bandwidth", "10MHz")
    law, exponent = wireless.path_loss, wireless.path_loss_exponent
    surroundings = Surroundings(
        batch_size=wireless.batch_size,
        noise_dbm_per_mhz=wireless.noise_dbm_per_mhz,
        capacitance=wireless.capacitance,
        path_gain=lambda distance_m: path_gain(distance_m, law, exponent),
    )
    if str(path) == "-" and sys.stdin is None:
        raise ValueError("standard input is closed; send a table of devices to it, or name a CSV file")
    table = read_table(sys.stdin.buffer if str(path) == "-" else path, surroundings)
    for remark in table.remarks(settings.get("deadline_s")):
        say(f"warning: {remark}", stderr=True)
    if "payload_bits" in settings and table.payload_bits is not None:
        raise ValueError("--payload and the column 'payload_bits' say the same twice; leave one of them out")
    if table.due_s is None:
        _need(settings, "deadline_s", "--deadline", "400ms", "deadline_s")
    if table.payload_bits is None:
        _need(settings, "payload_bits", "--payload", "10Mbit", "payload_bits")
    block_hz = settings.get("block_hz", wireless.block_hz) or None
    guard = Guard.of(settings.get("guard", wireless.guard))
    problem = table.problem(
        total_bandwidth_hz=settings["total_bandwidth_hz"],
        gamma=gamma,
        payload_bits=settings.get("payload_bits"),
        deadline_s=settings.get("deadline_s"),
        guard=guard,
    )
    return known_from_table(table, replace(problem, block_hz=block_hz), wireless.capacitance, guard)


def _need(settings: dict[str, Any], name: str, option: str, example: str, column: str | None = None) -> None:
    """ValueError where a setting is missing that a table of devices, as it is, does not say."""
    if name not in settings:
        other = f", or a column '{column}'" if column else ""
        raise ValueError(f"{option} is missing; a table of devices does not say it: add {option} {example}{other}")


def _named_cell(name: str) -> Config:
    if name in CELLS:
        return Config(wireless=CELLS[name])
    if Path(name).suffix == ".toml":
        return load(Path(name))
    raise ValueError(f"--cell: there is no cell '{name}'; give one of {', '.join(CELLS)}, or a .toml file")


def _from_cell(
    wireless: WirelessConfig, radio: dict[str, Any], settings: dict[str, Any], seed: int, round_: int, gamma: float
) -> KnownRound:
    if radio:
        raise ValueError(f"{next(iter(radio))} belongs to a table of devices; a cell has its own (a .toml file)")
    wireless = replace(wireless, **settings)
    return known_from_cell(Cell(wireless, seed).draw(round_), gamma)


def _of_known_hardware(options: dict[str, dict[str, Any]], this: KnownRound) -> dict[str, dict[str, Any]]:
    """The options of the policies that can be asked: without the hardware, some cannot, which is said."""
    cannot = [name for name in options if POLICIES[name].needs_hardware and not this.knows_hardware]
    for name in cannot:
        say(f"warning: policy '{name}' is left out: it {NO_HARDWARE}", stderr=True)
    return {name: own for name, own in options.items() if name not in cannot}


def _answers(
    this: KnownRound,
    options: dict[str, dict[str, Any]],
    seed: int,
    round_: int,
    broadcast: Callable[[Schedule], Schedule],
    *,
    timed: bool,
) -> dict[str, tuple[Schedule, float]]:
    """The schedule of each policy, with its broadcast, and the time it took."""
    asked = {name: _asked(this, name, seed, round_, own, timed=timed) for name, own in options.items()}
    return {name: (broadcast(answer), took_s) for name, (answer, took_s) in asked.items()}


def _asked(
    this: KnownRound, policy: str, seed: int, round_: int, options: dict[str, Any], *, timed: bool
) -> tuple[Schedule, float]:
    """A schedule and the time it took: where that is asked for and short, the better of two, the first one warming up.

    Without `timed` policies share what they have computed of the problem.
    """
    best_s = math.inf
    while True:
        own = replace(this, problem=replace(this.problem)) if timed else this
        start = time.perf_counter()
        answer = own.ask(policy, options, seed=seed, index=round_)
        took_s = time.perf_counter() - start
        if not timed or best_s < math.inf or took_s > 1.0:
            return answer, min(took_s, best_s)
        best_s = took_s
