"""`flare reproduce`: the figures and claims of the paper, and what goes beyond them.

What is imported inside the functions brings torch and matplotlib along, which take their time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Table

from flare.atomic import write_whole
from flare.cli.console import add_row, console, say, say_json
from flare.cli.guard import INTERRUPTED
from flare.cli.place import On, Processes, RayAddress, expected_place, place_of
from flare.cli.plugins import Plugins, load_named
from flare.pools import end, get_ready, new_pool
from flare.reading import read_small

if TYPE_CHECKING:
    from flare.experiments.claims import Claim
    from flare.experiments.experiment import Scale
    from flare.experiments.reproduce import Reproduced
    from flare.experiments.trial import Trial
    from flare.sweeps import Hire, Place

_MAX_PAGE_BYTES = 1 << 24
NAMES = frozenset((
    "fig3", "fig4", "fig5", "fig6", "fig7", "fig8", "all",
    "rates", "gap", "rivals", "sensitivity", "bounds", "safe", "uplink", "systems-mnist", "systems-cifar10", "systems",
    "beyond",
))  # fmt: skip
"""Of all experiments and lots, for who cannot wait until these are imported."""


def reproduce(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME...",
            help="fig3 to fig8, or all for these; rates, gap, rivals, sensitivity, bounds, safe, uplink, "
            "systems-mnist, systems-cifar10, or systems for both, or beyond for all that is not in the paper.",
        ),
    ],
    seeds: Annotated[
        int | None, typer.Option(min=1, max=1000, help="How many seeds. (default: 5, with --quick 2)")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Small settings on embedded data: checks that everything runs, no more.")
    ] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto: a GPU if there is one.")] = "auto",
    processes: Processes = None,
    on: On = "local",
    ray_address: RayAddress = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the results. (default: results, with --quick results-quick)")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print the claims as JSON.")] = False,
    plugin: Plugins = None,
) -> None:
    """Reproduce figures of the paper and put its claims to the test. Started again, it does what is missing."""
    load_named(plugin)
    with ExitStack() as workers:
        where, number = expected_place(processes, on, device)
        known = NAMES.issuperset(names) and not out_of(out, quick).exists()
        pool = _started(workers, where, number) if known and number > 1 else None
        place = place_of(processes, on, ray_address, device=device)
        if pool is not None and place.num_processes != number:
            end(pool, wait=False)
            pool = None
        hire = _hired(workers, place, pool)
        wanted, scale = chosen(names), scale_of(seeds, quick)
        _go(wanted, scale, out_of(out, quick), place, hire, workers.close, quiet=quiet, as_json=json_)


def _started(workers: ExitStack, device: str, number: int) -> ProcessPoolExecutor:
    """Processes that import what runs need, while this one does; they end when the stack is closed."""
    pool = new_pool(number)
    workers.callback(end, pool, wait=False)
    get_ready(pool, number, "flare.sweeps.on_processes", "prepare", device)
    return pool


def _hired(workers: ExitStack, place: Place, pool: ProcessPoolExecutor | None) -> Hire:
    """Workers until the stack is closed, the processes of a pool where one was started."""
    from flare.sweeps import staying

    return workers.enter_context(staying(place, pool=pool))


def chosen(names: Sequence[str]) -> list[str]:
    """The experiments that are asked for, each once, in our order."""
    from flare.experiments import EXPERIMENTS, LOTS

    wanted: set[str] = set()
    for name in names:
        if name not in EXPERIMENTS and name not in LOTS:
            raise ValueError(
                f"there is no experiment '{name}'; there are {', '.join(EXPERIMENTS)}, and several together as "
                f"{', '.join(LOTS)}"
            )
        wanted.update(LOTS.get(name, [name]))
    return [name for name in EXPERIMENTS if name in wanted]


def scale_of(seeds: int | None, quick: bool) -> Scale:
    """Seeds 0, 1, ..., by default five, two with `--quick`."""
    from flare.experiments.experiment import Scale

    return Scale(tuple(range(seeds or (2 if quick else 5))), quick)


def out_of(out: Path | None, quick: bool) -> Path:
    """The folder of the results; those of small settings are never mixed with the paper's."""
    return out or Path("results-quick" if quick else "results")


def _go(
    names: Sequence[str],
    scale: Scale,
    out: Path,
    place: Place,
    hire: Hire,
    dismiss: Callable[[], None],
    *,
    quiet: bool,
    as_json: bool,
) -> None:
    """Carry out the experiments, or what is missing of them, and say what the claims came to. Who is hired is dismissed
    when all runs are done."""
    from flare.experiments import EXPERIMENTS
    from flare.experiments.page import page
    from flare.experiments.reproduce import claim_as_json

    if len(names) == len(EXPERIMENTS):
        _refuse_other_page(_page_of(out))
    made, stopped = _made(names, scale, out, place, hire, dismiss, quiet=quiet or as_json)
    if len(made) == len(EXPERIMENTS):
        write_whole(_page_of(out), page(made, out.resolve().name).encode())
        if not as_json:
            say(f"The page of results is {_page_of(out)}.")
    if as_json:
        say_json([claim_as_json(claim) for one in made for claim in one.claims])
    else:
        _print(made, out, quick=scale.quick)
    if stopped:
        say("interrupted; the same command continues with what is missing", stderr=True)
        raise typer.Exit(INTERRUPTED)


def _made(
    names: Sequence[str],
    scale: Scale,
    out: Path,
    place: Place,
    hire: Hire,
    dismiss: Callable[[], None],
    *,
    quiet: bool,
) -> tuple[list[Reproduced], bool]:
    """The experiments that are complete, and whether the rest was stopped."""
    from flare.cli.progress import interruptible, showing_total
    from flare.cli.run_setup import fetch_if_needed
    from flare.experiments import EXPERIMENTS
    from flare.experiments.reproduce import reproduce, to_be_run
    from flare.sweeps import expected_rounds

    trials = {trial.key: trial for name in names for trial in EXPERIMENTS[name].trials(scale)}
    needed = {trial.config.data for trial in to_be_run(names, scale, out)}
    for data in sorted(needed, key=lambda data: data.name):
        fetch_if_needed(data)
    rounds_of = {key: expected_rounds(trial.config) for key, trial in trials.items()}

    def show_trial(trial: Trial, rounds: int, over: bool) -> None:
        rounds_of.setdefault(trial.key, expected_rounds(trial.config))  # one of those that others decided
        show(trial.key, rounds, over)

    with interruptible() as stopping, showing_total(rounds_of, quiet=quiet) as show:
        made = reproduce(
            names,
            scale,
            place,
            out,
            callback=show_trial,
            stopping=stopping,
            hire=hire,
            dismiss=dismiss,
        )
        return made, stopping()


def _page_of(out: Path) -> Path:
    """The page of results lies beside their folder."""
    folder = out.resolve()
    return folder.with_name(f"{folder.name}.md")


def _refuse_other_page(path: Path) -> None:
    """Write over no file that is not a page of results."""
    from flare.experiments.page import TITLE

    if path.exists() and not read_small(path, _MAX_PAGE_BYTES).startswith(TITLE.encode()):
        raise ValueError(f"{path}: is in the way of the page of results; move it, or give another --out")


def _print(made: Sequence[Reproduced], out: Path, *, quick: bool) -> None:
    claims = [claim for one in made for claim in one.claims]
    if claims:
        console().print(claims_table(claims))
        counts = Counter(claim.verdict.value for claim in claims)
        say("; ".join(f"{number} {verdict}" for verdict, number in counts.items()) + ".")
    if quick:
        say("Small settings stand in for the paper's: the verdicts say that everything runs, nothing of the paper.")
    if made:
        say(f"Numbers and figures are in {out}.")


def claims_table(claims: Sequence[Claim]) -> Table:
    """A line for each claim."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("claim", "verdict", "effect, 95 % interval", "tests that hold", "measure"):
        table.add_column(heading, overflow="fold")
    for one in claims:
        held = sum(test.verdict.value == "holds" for test in one.tests)
        add_row(table, one.name, one.verdict.value, str(one.effect), f"{held} of {len(one.tests)}", one.measure)
    return table
