"""`flare run`, `flare compare` and `flare config`: train over the scheduled cell."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from flare.cli.console import say, say_json
from flare.cli.place import On, Processes, RayAddress, as_options, place_of
from flare.cli.plugins import Plugins, with_plugins
from flare.config import MAX_SEEDS, Config, load, override, to_toml
from flare.extras import how_to_install
from flare.text import plural

ConfigFile = Annotated[
    Path | None, typer.Argument(metavar="[CONFIG.toml]", help="Settings; what it leaves out keeps its default.")
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="A setting, such as wireless.deadline_s=0.4; may be given again.")
]
PartOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        "-o",
        help="An option of policy, method, model, data set, codec or air scheme, such as num_selected=5; may be given "
        "again.",
    ),
]
Out = Annotated[Path | None, typer.Option(help="Folder of the run. (default: a new one under runs/)")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]
Json = Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")]
Force = Annotated[bool, typer.Option("--force", help="Write over a run that is already there.")]
TensorBoard = Annotated[bool, typer.Option("--tensorboard", help="Also write scalars for TensorBoard.")]


_NAMES = (
    "learning.method", "learning.model", "scheduling.policy", "data.name", "uplink.codec", "uplink.air_scheme",
)  # fmt: skip
"""Settings that are the name of something, in which there is no comma."""
_MOVED = " --plugin then says where a plugin of it is now."
AllowChanged = Annotated[
    bool,
    typer.Option("--allow-changed-plugin", help="With --resume: go on also where a plugin was changed since."),
]


def config(
    config_file: ConfigFile = None,
    settings: Settings = None,
    plugin: Plugins = None,
) -> None:
    """Print the complete configuration, with a comment for each key and for each option of what there is: the default,
    or that of a file, with the settings of --set."""
    from flare.sweeps.parts import notes  # here, because torch takes its time to import

    print(to_toml(settings_of_command(config_file, settings or [], plugin), notes()), end="")


def run(
    config_file: ConfigFile = None,
    settings: Settings = None,
    option: PartOptions = None,
    plugin: Plugins = None,
    out: Out = None,
    resume_: Annotated[Path | None, typer.Option("--resume", help=f"Continue the run in this folder.{_MOVED}")] = None,
    allow_changed: AllowChanged = False,
    force: Force = False,
    on: On = "local",
    ray_address: RayAddress = None,
    quiet: Quiet = False,
    json_: Json = False,
    tensorboard_: TensorBoard = False,
) -> None:
    """Train one model over one cell: by default FLARE with proven optimal scheduling, on embedded data."""
    from flare.cli import run_results, run_setup  # here, because torch takes its time to import
    from flare.cli.progress import carry_out
    from flare.records.run import read_run
    from flare.sweeps import begun, has_ended
    from flare.sweeps.entries import name_of, new_folder
    from flare.sweeps.parts import with_options

    require_tensorboard(tensorboard_)
    place = place_of(None, on, ray_address)
    if resume_ is not None:
        _refuse_changes(config_file, [*(settings or []), *(option or [])], out, force)
        folder, tasks = resume_, [begun(resume_, allow_changed_plugins=allow_changed, moved=plugin or ())]
        if not json_ and has_ended(tasks[0]):
            longer = f"flare run {folder / 'config.toml'} --set run.rounds=N --out DIR"
            say(f"The run had ended, so nothing was left to do; a longer one is a new run: {longer}")
    else:
        _refuse_allowing(allow_changed)
        whole = with_options(settings_of_command(config_file, settings or [], plugin), option or [])
        folder = out or new_folder(Path("runs"), name_of(whole))
        tasks = run_setup.created([folder], [whole], force)
    again = f"flare run --resume {folder}{as_options(place)}"
    label = name_of(tasks[0].config)
    carry_out(tasks, [label], place, again=again, quiet=quiet or json_, with_tensorboard=tensorboard_)
    made = read_run(folder)
    if json_:
        say_json(run_results.outcome(made))
    else:
        run_results.print_outcome(run_results.outcome(made))
    run_results.end([made], again)


def compare(
    config_file: Annotated[
        Path | None, typer.Argument(metavar="[CONFIG.toml]", help="Settings that all runs share.")
    ] = None,
    entry: Annotated[
        list[str] | None,
        typer.Option(
            "--entry",
            help="METHOD:POLICY, such as flare:greedy (the paper's SPF), with settings of its own after commas: "
            "flare:greedy,learning.local_lr=0.1; label=WORDS among them names it in reports; may be given again.",
        ),
    ] = None,
    methods: Annotated[str, typer.Option(help="Methods, with commas; each with every policy.")] = "",
    policies: Annotated[str, typer.Option(help="Policies, with commas; each with every method.")] = "",
    seeds: Annotated[
        int | None, typer.Option(min=1, max=MAX_SEEDS, help="How many seeds, from the configuration's on. (default: 1)")
    ] = None,
    settings: Settings = None,
    option: PartOptions = None,
    plugin: Plugins = None,
    out: Out = None,
    resume_: Annotated[
        Path | None, typer.Option("--resume", help=f"Continue the comparison in this folder.{_MOVED}")
    ] = None,
    allow_changed: AllowChanged = False,
    force: Force = False,
    processes: Processes = None,
    on: On = "local",
    ray_address: RayAddress = None,
    quiet: Quiet = False,
    json_: Json = False,
    tensorboard_: TensorBoard = False,
) -> None:
    """Train several methods and policies with several seeds, in lockstep, and write the report."""
    from flare.cli import run_results, run_setup  # here, because torch and matplotlib take their time to import
    from flare.cli.progress import carry_out
    from flare.records.run import read_run
    from flare.report.run_report import write_page
    from flare.sweeps import begun, listed
    from flare.sweeps.entries import new_folder

    require_tensorboard(tensorboard_)
    place = place_of(processes, on, ray_address)
    if resume_ is not None:
        changes = [*(settings or []), *(option or []), *(entry or []), methods, policies, str(seeds or "")]
        _refuse_changes(config_file, changes, out, force)
        base, tasks = (
            resume_,
            [begun(folder, allow_changed_plugins=allow_changed, moved=plugin or ()) for folder in listed(resume_)],
        )
    else:
        _refuse_allowing(allow_changed)
        whole = settings_of_command(config_file, settings or [], plugin)
        named = run_setup.combinations(whole, entry or [], methods, policies, seeds or 1, option or [])
        base = out or new_folder(Path("runs"), "compare")
        folders = [base / name for name, *_ in named]
        configs, called = [one for _, one, _ in named], [label for *_, label in named]
        tasks = run_setup.created(folders, configs, force, listing=base, labels=called)
        _tell_others(base, folders)
    again, page = f"flare compare --resume {base}{as_options(place)}", base / "report.html"
    labels = [Path(task.key).name for task in tasks]
    carry_out(tasks, labels, place, again=again, quiet=quiet or json_, with_tensorboard=tensorboard_)
    runs = [read_run(Path(task.key)) for task in tasks]
    write_page(runs, page)
    if json_:
        say_json(run_results.comparison_as_json(runs))
    else:
        run_results.print_table(runs, page)
        for one in runs:
            run_results.print_nobody(run_results.outcome(one))
    run_results.end(runs, again)


def _tell_others(base: Path, folders: Sequence[Path]) -> None:
    """Say which other runs stay in the folder of a comparison."""
    from flare.research.loading import run_folders_in

    others = [each for each in run_folders_in(base) if each not in folders]
    if others:
        say(
            f"{base} holds {plural(len(others), 'run')} of before, such as {others[0]}, which stay there and are in "
            "what flare report and flare.load make of the folder; give another --out, or remove them.",
            stderr=True,
        )


def settings_of_command(config_file: Path | None, settings: Sequence[str], plugins: Sequence[Path] | None) -> Config:
    """The settings of a file, or the default, with those of `--set` changed; all plugins are executed."""
    whole = load(config_file) if config_file else Config()
    try:
        changed = override(whole, settings)
    except ValueError as error:
        raise ValueError(f"{error}{_how_to_sweep(settings)}") from None
    named = [text for text in settings if text.partition("=")[0].strip() in _NAMES]
    if how := _how_to_sweep(named):
        raise ValueError(f"--set {named[0]}: one run has one of them{how}")
    return with_plugins(changed, plugins)


def _how_to_sweep(settings: Sequence[str]) -> str:
    """What to do for a setting that is given several values, where one is."""
    for text in settings:
        name, _, value = text.partition("=")
        values = [each.strip() for each in value.strip().strip("[]").split(",")]
        if len(values) > 1:
            listed = ", ".join(
                each if _is_number(each) or each.startswith(('"', "'")) else f'"{each}"' for each in values
            )
            return (
                f"; several values of {name.strip()} are a sweep: write them below [product] in a file, "
                f'"{name.strip()}" = [{listed}], and give it to flare sweep (docs/sweeps.md)'
            )
    return ""


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def require_tensorboard(wanted: bool) -> None:
    """Refuse --tensorboard where it is not installed, before anything is written."""
    if wanted and importlib.util.find_spec("tensorboard") is None:
        raise ValueError(f"--tensorboard needs the extra: {how_to_install('tensorboard')}")


def _refuse_allowing(allow_changed: bool) -> None:
    if allow_changed:
        raise ValueError("--allow-changed-plugin is about a run that is continued: give it with --resume DIR")


def _refuse_changes(config_file: Path | None, settings: Sequence[str], out: Path | None, force: bool) -> None:
    if config_file is not None or any(map(str, settings)) or out is not None or force:
        raise ValueError(
            "a resumed run keeps its configuration and its folder: give --resume DIR alone (or with --plugin FILE.py, "
            "where one of its plugins was moved)"
        )
