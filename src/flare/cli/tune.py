"""`flare tune`: the settings that reach a test accuracy in the least simulated time.

What is imported inside the functions brings torch and matplotlib along, which take their time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Table

from flare.cli.console import add_row, console, say, say_json
from flare.cli.guard import INTERRUPTED
from flare.cli.place import On, Processes, RayAddress, place_of
from flare.cli.plugins import Plugins
from flare.cli.run import ConfigFile, Json, PartOptions, Quiet, Settings, settings_of_command
from flare.config import MAX_SEEDS
from flare.units import parse

if TYPE_CHECKING:
    from flare.sweeps import Place
    from flare.tuning import Trial, Tuned
    from flare.tuning.study import Tuning

Target = Annotated[float | None, typer.Option(help="Test accuracy to reach. (default: that of run.target_accuracy)")]
GoalName = Annotated[str, typer.Option(help="time, energy: least to the target; accuracy: best within the time.")]
Within = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Simulated time that a run has, such as 20s. (default: run.seconds, or that of run.rounds rounds)",
    ),
]
FreshSeeds = Annotated[
    int, typer.Option("--fresh-seeds", min=1, max=MAX_SEEDS, help="Other seeds, to judge the winner with.")
]
Search = Annotated[
    list[str] | None,
    typer.Option(
        "--search",
        metavar="NAME[=RANGE]",
        help="A setting to search, such as learning.local_lr=0.01..0.3:log or learning.method=flare,fedavg; may be "
        "given again.",
    ),
]
NoSearch = Annotated[
    list[str] | None,
    typer.Option(
        "--no-search",
        metavar="NAME",
        help="A setting not to search; all: none but those of --search; may be given again.",
    ),
]
_MANY_TRIALS = 50
"""From so many on it is no mere guess what mattered."""


def tune(
    out: Annotated[Path, typer.Option(help="Folder of the trials, of the winner's settings and of the report.")],
    config_file: ConfigFile = None,
    target: Target = None,
    goal: GoalName = "time",
    within: Within = None,
    trials: Annotated[int, typer.Option(min=1, max=100_000, help="How many settings are tried.")] = 200,
    search: Search = None,
    no_search: NoSearch = None,
    seeds: Annotated[int, typer.Option(min=1, max=MAX_SEEDS, help="Seeds of every trial.")] = 3,
    fresh_seeds: FreshSeeds = 5,
    batch: Annotated[int, typer.Option(min=1, max=100_000, help="Trials that are chosen, and go on, together.")] = 8,
    no_prune: Annotated[bool, typer.Option("--no-prune", help="Stop no trial before its end.")] = False,
    settings: Settings = None,
    option: PartOptions = None,
    plugin: Plugins = None,
    processes: Processes = None,
    on: On = "local",
    ray_address: RayAddress = None,
    quiet: Quiet = False,
    json_: Json = False,
) -> None:
    """Find the settings that reach a test accuracy in the least simulated time, and judge them with fresh seeds.
    Started again, it goes on where it was."""
    from flare.cli.run_setup import fetch_if_needed
    from flare.sweeps.parts import with_options
    from flare.tuning import make_tuning, read_search
    from flare.tuning.sampler import require_optuna
    from flare.tuning.study import begin_tuning, seal_of
    from flare.tuning.trial import read_trials

    require_optuna()
    place = place_of(processes, on, ray_address)
    start = with_options(settings_of_command(config_file, settings or [], plugin), option or [])
    fetch_if_needed(start.data)
    tuning = make_tuning(
        start,
        goal=goal,
        target=target,
        within_s=None if within is None else _seconds(within),
        trials=trials,
        search=read_search(search or []),
        no_search=no_search or [],
        seeds=seeds,
        fresh_seeds=fresh_seeds,
        batch=batch,
        prune=not no_prune,
    )
    there = begin_tuning(tuning, out)
    done = read_trials(out, seal_of(tuning))
    if not (quiet or json_):
        _print_plan(tuning, len(done), out, there=there)
    tuned = _carry_out(tuning, place, out, quiet=quiet or json_)
    if tuned is None:
        say("interrupted; the same command goes on where it was", stderr=True)
        raise typer.Exit(INTERRUPTED)
    _tell(tuned, as_json=json_)


def _seconds(text: str) -> float:
    try:
        return parse(text, "time")
    except ValueError as error:
        raise ValueError(f"--within: {error}") from None


def _print_plan(tuning: Tuning, done: int, out: Path, *, there: bool) -> None:
    """Say what is searched, and how far it is."""
    from flare.text import plural

    if there:
        say(f"{out} holds this tuning, {plural(done, 'trial')} of it done; what is missing is done.")
    say(f"Searched for: {tuning.aim.words()}.")
    for each in tuning.space.searched:
        say(f"  {each.name}: {each.words()}")
    start = "" if tuning.space.start_params() is not None else " The start is outside of what is searched."
    say(
        f"{plural(tuning.trials, 'trial')} with {plural(len(tuning.seeds), 'seed')} each, {tuning.batch} at a time; "
        f"the winner is judged with {plural(len(tuning.fresh), 'fresh seed')}.{start}"
    )


def _carry_out(tuning: Tuning, place: Place, out: Path, *, quiet: bool) -> Tuned | None:
    """Carry out the tuning while somebody looks on; None where it was stopped."""
    from flare.cli.progress import interruptible, showing_total
    from flare.rounds import RoundRecord, RunStatus
    from flare.sweeps import Task, expected_rounds
    from flare.tuning import carry_out
    from flare.tuning.batch import Carrying
    from flare.tuning.study import run_key

    usual = expected_rounds(tuning.run_config(tuning.space.start, tuning.seeds[0]))
    keys = [run_key(number, seed) for number in range(tuning.trials) for seed in tuning.seeds]
    rounds_of = dict.fromkeys(keys, usual)
    ended: set[str] = set()
    with interruptible() as stopping, showing_total(rounds_of, quiet=quiet) as show:

        def over(names: Iterable[str]) -> None:
            for key in names:
                if key not in ended:
                    ended.add(key)
                    show(key, 0, True)

        def callback(task: Task, record: RoundRecord, status: RunStatus) -> None:
            rounds_of.setdefault(task.key, usual)
            if status is RunStatus.RUNNING:
                show(task.key, record.round + 1, False)
            else:
                over([task.key])

        def told(trials: Sequence[Trial]) -> None:
            over(run_key(trial.number, seed) for trial in trials for seed in tuning.seeds)

        return carry_out(tuning, Carrying(out, place, callback, stopping), told)


def _tell(tuned: Tuned, *, as_json: bool) -> None:
    """Say what came out."""
    from flare.tuning import results, sections

    if as_json:
        say_json(results.as_json(tuned.tuning, tuned.trials, tuned.judged, tuned.importance))
        return
    say(sections.search_in_words(tuned.trials, tuned.tuning.aim))
    _print_table(sections.SETTINGS_HEADER, sections.settings_rows(tuned.tuning.space, tuned.judged), left=4)
    _print_table(sections.JUDGED_HEADER, sections.judged_rows(tuned.judged), left=1)
    say(sections.verdict(tuned.judged))
    if tuned.importance:
        most = list(tuned.importance.items())[:3]
        told = ", ".join(f"{name} ({100.0 * share:.0f} %)" for name, share in most)
        rough = "" if len(tuned.trials) >= _MANY_TRIALS else f" (a guess, from {len(tuned.trials)} trials)"
        say(f"What mattered most{rough}: {told}.")
    say(f"Run the winner with: flare run {tuned.out / results.BEST}")
    say(f"One row a trial: {tuned.out / 'results.csv'}. The report is in {tuned.out / 'report.html'}.")


def _print_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, left: int) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for place, heading in enumerate(header):
        table.add_column(heading, justify="left" if place < left else "right", overflow="fold")
    for row in rows:
        add_row(table, *row)
    console().print(table)
