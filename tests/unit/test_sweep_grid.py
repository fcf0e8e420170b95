"""The file of a sweep, the runs that come of it, and what every bad grid is answered with."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flare.config import Config, override, settings_of
from flare.plugins import load_plugins
from flare.research.sweep_results import read_sweep_runs
from flare.sweeps import Place, Task, run_tasks
from flare.sweeps.estimate import estimate_time
from flare.sweeps.grid import Grid, begin_sweep, check_grid, factors_in, grid_of, level_text, levels_of
from flare.sweeps.sweep_file import read_sweep
from tests.plugin_files import policy_file, registries_as_they_were
from tests.small_runs import SETTINGS

PRODUCT = '[product]\n"wireless.deadline_s" = [0.4, 0.6]\n'


def grid(tmp_path: Path, text: str, **settings: Any) -> Grid:
    (tmp_path / "sweep.toml").write_text(text)
    return grid_of(read_sweep(tmp_path / "sweep.toml", settings))


def swept(made: Grid, *keys: str) -> list[tuple[Any, ...]]:
    return [tuple(settings_of(run.config)[key] for key in keys) for run in made.runs]


def test_the_grid_of_the_guide(tmp_path: Path) -> None:
    guide = (Path(__file__).resolve().parents[2] / "docs" / "sweeps.md").read_text()
    (tmp_path / "config.toml").write_text('seed = 7\n[learning]\nmodel = "logistic"\n')
    made = grid(tmp_path, guide.partition("```toml\n")[2].partition("```")[0])
    assert len(made.runs) == 3 * 5 * 2 * 5
    assert {run.config.learning.model for run in made.runs} == {"logistic"}
    assert {run.config.run.rounds for run in made.runs} == {100}
    assert made.seeds == (7, 8, 9, 10, 11)
    pairs = set(swept(made, "scheduling.policy", "learning.method"))
    assert pairs == {("exact", "flare"), ("greedy", "fedavg")}
    rates = [level[0] for level in made.factors[1].levels]
    assert (rates[0], rates[-1]) == (0.01, 0.1)
    assert [round(b / a, 6) for a, b in pairwise(rates)] == [round(10**0.25, 6)] * 4
    assert len({run.name for run in made.runs}) == len({run.config for run in made.runs}) == 150
    assert made.runs[5].name == "02-deadline_s=0.4-local_lr=0.01-policy=greedy-method=fedavg-seed7"


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ('[product]\n"wireless.deadline_s" = ["400ms", 1]', [0.4, 1.0]),
        ("[product]\nwireless.deadline_s = [0.4, 0.5]", [0.4, 0.5]),
        ("[product.wireless]\ndeadline_s = [0.4, 0.5]", [0.4, 0.5]),
        ('[product]\n"wireless.deadline_s" = { from = 0.1, to = 0.5, steps = 5 }', [0.1, 0.2, 0.3, 0.4, 0.5]),
        ('[product]\n"run.rounds" = { from = 10, to = 50, steps = 3 }', [10, 30, 50]),
        ('[product]\n"run.rounds" = { from = 100, to = 1, steps = 3, scale = "log" }', [100, 10, 1]),
        ('[product]\n"scheduling.options.max_devices" = [3, 4]', [3, 4]),
        ('[product]\n"wireless.cpu_every_round" = [true, false]', [True, False]),
    ],
)
def test_values_may_be_written_in_several_ways(text: str, values: list[Any], tmp_path: Path) -> None:
    (factor,) = grid(tmp_path, text).factors
    assert [level[0] for level in factor.levels] == values
    assert [type(level[0]) for level in factor.levels] == [type(value) for value in values]


def test_settings_of_all_runs_and_of_the_command_line(tmp_path: Path) -> None:
    made = grid(tmp_path, 'seeds = [3, 1]\n[set]\n"run.rounds" = 9\n' + PRODUCT, **{"run.rounds": 4})
    assert swept(made, "seed", "wireless.deadline_s", "run.rounds") == [
        (3, 0.4, 4),
        (1, 0.4, 4),
        (3, 0.6, 4),
        (1, 0.6, 4),
    ]


OWN_OPTIONS = """seeds = 1
[zip]
"scheduling.policy" = ["random", "random", "exact"]
"scheduling.options" = [{ num_selected = 2 }, { num_selected = 4 }, {}]
"""


def test_policies_go_with_options_of_their_own(tmp_path: Path) -> None:
    made = grid(tmp_path, OWN_OPTIONS)
    assert [dict(run.config.scheduling.options) for run in made.runs] == [{"num_selected": 2}, {"num_selected": 4}, {}]
    assert [level_text(made.factors[0], level) for level in range(3)] == [
        "random, num_selected=2",
        "random, num_selected=4",
        "exact, no options",
    ]
    assert made.runs[2].name == "3-policy=exact-options=no_options-seed0"
    assert not begin_sweep(made, tmp_path / "out")
    assert begin_sweep(grid(tmp_path, OWN_OPTIONS), tmp_path / "out")
    (factor,) = factors_in(tmp_path / "out")
    assert [levels_of([factor], run.config) for run in made.runs] == [(0,), (1,), (2,)]


def test_where_not_all_policies_have_an_option_it_is_said_how_to_sweep_it(tmp_path: Path) -> None:
    text = '[product]\n"scheduling.policy" = ["random", "exact"]\n"scheduling.options.num_selected" = [2, 4]'
    with pytest.raises(ValueError, match=r"has no option 'num_selected'.*below \[zip\].*\"scheduling.options\" = "):
        grid(tmp_path, text)


def test_paths_are_seen_from_the_file(tmp_path: Path) -> None:
    made = grid(tmp_path, '[set]\n"data.folder" = "here"\n[product]\n"wireless.trace" = ["a.csv", "b.csv"]')
    assert swept(made, "data.folder", "wireless.trace") == [
        (str(tmp_path / "here"), str(tmp_path / name)) for name in ("a.csv", "b.csv")
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "nothing is swept; name a setting with a list of values below [product]"),
        ("sedes = 3\n" + PRODUCT, "unknown key 'sedes'"),
        ('[product]\n"wireless.deadlin_s" = [1]', "wireless.deadlin_s; the nearest known key is wireless.deadline_s"),
        ('[set]\n"lr" = 1\n' + PRODUCT, "the nearest known key is learning.local_lr or learning.global_lr"),
        ('[product]\n"wireless.deadline_s" = [0.4, "soon"]', "wireless.deadline_s: 'soon'"),
        ('[product]\n"run.rounds" = [1.5]', "run.rounds is 1.5; it must be a whole number"),
        ('[product]\n"run.rounds" = { from = 4, to = 9, steps = 3 }', "run.rounds is 6.5; it must be a whole number"),
        ('[product]\n"scheduling.policy" = ["exact", "greedly"]', "greedly"),
        ('[product]\n"learning.options.tau_bat" = [1]', "tau_bat"),
        ('[zip]\n"run.rounds" = [1, 2]\n"seed.x" = [1]', "run.rounds has 2, seed.x has 1 values"),
        ('[set]\n"run.rounds" = 3\n[product]\n"run.rounds" = [3]', "run.rounds is in [set] and in [product]"),
        ('[product]\n"run.rounds" = [3]\nrun.rounds = [4]', "[product] has run.rounds twice"),
        (
            OWN_OPTIONS + '[set]\n"scheduling.options.max_devices" = 1',
            "in [zip] as a whole, and scheduling.options.max",
        ),
        (OWN_OPTIONS + '[product]\n"scheduling.options.max_devices" = [1]', "give max_devices in each table of sched"),
        ('[product]\n"learning.options" = [{}]\n"learning.options.inner" = ["flare"]', "in [product] as a whole, and"),
        ('[product]\n"run.rounds" = [3]\n"run.rounds" = [4]', "is not valid TOML"),
        ('[product]\n"run.rounds" = []', "run.rounds has no values, so that there are no runs"),
        ('[product]\n"run.rounds" = 5', "run.rounds is 5; give a list of values, or put it below [set]"),
        ('[product]\n"wireless.deadline_s" = [0.4, "400ms"]', "are the same, wireless.deadline_s = 0.4"),
        ('[product]\n"seed" = [1, 2]', "[product] has seed; give seeds = 5"),
        ("seeds = 0\n" + PRODUCT, "seeds is 0; it must be from 1 to 1000"),
        ("seeds = [1, 1]\n" + PRODUCT, "seeds has 1; seeds must be how many, or a list of whole numbers"),
        ("seeds = true\n" + PRODUCT, "seeds is true"),
        ("base = 3\n" + PRODUCT, "base is 3; it must be the path of a file"),
        ('base = "nowhere.toml"\n' + PRODUCT, "nowhere.toml"),
        ("product = 3", "product is 3; it must be a table"),
        ('[product]\n"run.rounds" = { from = 1, to = 9 }', "it lacks one of them"),
        ('[product]\n"run.rounds" = { from = 1, to = 9, step = 3 }', "it has 'step'"),
        ('[product]\n"run.rounds" = { from = 1, to = "9", steps = 3 }', 'to is the text "9"'),
        (
            '[product]\n"run.rounds" = { from = 1, to = 1' + 400 * "0" + ", steps = 3 }",
            "must be a number of at most 1e+300",
        ),
        ('[product]\n"run.rounds" = { from = 1, to = nan, steps = 3 }', "to is nan, and must be a number of at most"),
        ('[product]\n"run.rounds" = { from = 1, to = 9, steps = 1 }', "steps is 1, and must be a whole number from 2"),
        ('[product]\n"learning.local_lr" = { from = 0, to = 1, steps = 3, scale = "log" }', "above 0 on the scale log"),
        ('[product]\n"learning.local_lr" = { from = 0.1, to = 1, steps = 3, scale = "lin" }', "scale is linear"),
        ('seeds = 1000\n[product]\n"learning.local_lr" = { from = 0.1, to = 1, steps = 101 }', "101,000 runs; a"),
        ('[product]\n"wireless.min_distance_m" = [10, 600]', "min_distance_m is 600, more than"),
    ],
)
def test_a_bad_grid_is_one_error(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"sweep\.toml: ") as raised:
        grid(tmp_path, text)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_setting_that_is_swept_is_not_set_by_the_command_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"wireless.deadline_s is in \[product\] and in --set; give it once"):
        grid(tmp_path, PRODUCT, **{"wireless.deadline_s": 1.0})
    with pytest.raises(ValueError, match=r"scheduling.options.max_devices in --set, which it would replace"):
        grid(tmp_path, OWN_OPTIONS, **{"scheduling.options.max_devices": 1})


def test_how_to_sweep_options_is_said_where_one_is_unknown_alone(tmp_path: Path) -> None:
    text = '[zip]\n"scheduling.policy" = ["random", "random"]\n"scheduling.options.num_selected" = [2, 2]'
    with pytest.raises(ValueError, match=r"give each value once$"):
        grid(tmp_path, text)


def test_a_range_may_be_of_large_whole_numbers(tmp_path: Path) -> None:
    text = '[product]\n"wireless.bits_per_sample" = { from = 1, to = 100000000000000000000, steps = 3, scale = "log" }'
    (tmp_path / "sweep.toml").write_text(text)
    (factor,) = read_sweep(tmp_path / "sweep.toml").factors
    assert [value for (value,) in factor.levels] == [1, 10**10, 10**20]


def test_what_shows_in_a_round_only_is_found_before_anything_runs(tmp_path: Path) -> None:
    text = PRODUCT + '"data.name" = ["digits", "mnist"]\n[set]\n"data.folder" = "no"\n'
    made = grid(tmp_path, text)
    with pytest.raises((ValueError, OSError), match=r"the data folder is .* which is no folder"):
        check_grid(made)
    with pytest.raises((ValueError, OSError), match=r"the data folder is .* which is no folder"):
        begin_sweep(made, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_holds_one_sweep(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert not begin_sweep(grid(tmp_path, PRODUCT), out)
    assert begin_sweep(grid(tmp_path, PRODUCT), out)
    before = (out / "sweep.json").read_bytes()
    assert set(json.loads(before)) == {"format", "seeds", "settings", "swept"}  # nothing of files that there are not
    others = {
        PRODUCT.replace("0.6", "0.7"): "its swept settings are others, or their values",
        "seeds = 2\n" + PRODUCT: r"its seeds are \[0\], here \[0, 1\]",
        '[set]\n"run.rounds" = 7\n' + PRODUCT: "its run.rounds is the default, here 7",
    }
    for text, said in others.items():
        with pytest.raises(ValueError, match=f"holds another sweep .{said}"):
            begin_sweep(grid(tmp_path, text), out)
    assert begin_sweep(grid(tmp_path, '[set]\n"learning.device" = "cpu"\n' + PRODUCT), out)  # wherever it is computed
    assert (out / "sweep.json").read_bytes() == before
    (out / "sweep.json").write_text("{}")
    with pytest.raises(ValueError, match="is not what flare sweep writes"):
        begin_sweep(grid(tmp_path, PRODUCT), out)


def test_a_sweep_goes_on_with_the_plugins_and_traces_that_it_was_begun_with(tmp_path: Path) -> None:
    def begun_with(gain_db: float, number: int) -> bool:
        np.savez(tmp_path / "cell.npz", gain_db=np.full((2, 40), gain_db))
        policy_file(tmp_path / "mine.py", order=f"np.arange(problem.num_devices)[{number}:]")
        text = f'[set]\nplugins = ["{tmp_path / "mine.py"}"]\n"wireless.trace" = "{tmp_path / "cell.npz"}"\n' + PRODUCT
        return begin_sweep(grid(tmp_path, text), tmp_path / "out")

    with registries_as_they_were():
        assert not begun_with(-90.0, 0)
        assert begun_with(-90.0, 0)
        with pytest.raises(ValueError, match=r"holds another sweep .its trace \S+cell.npz was changed"):
            begun_with(-91.0, 0)
        with pytest.raises(ValueError, match=r"holds another sweep .its plugin \S+mine.py was changed"):
            begun_with(-90.0, 1)


def test_runs_of_other_code_are_no_seeds_of_one_setting(tmp_path: Path) -> None:
    """As where a module that a plugin uses has changed while a sweep was stopped."""
    tasks: list[Task] = []
    with registries_as_they_were():
        for seed, order in enumerate(("np.arange(problem.num_devices)", "problem.reachable")):
            load_plugins([str(policy_file(tmp_path / "mine.py", order=order))])
            folder = tmp_path / f"seed{seed}"
            config = override(Config(), [*SETTINGS, "run.rounds=1", "scheduling.policy=mine", f"seed={seed}"])
            tasks.append(Task(folder.name, config, folder))
            run_tasks(tasks[-1:], Place("cpu"), callback=lambda task, record, status: None)
        assert len(read_sweep_runs(tasks[:1])) == 1
        with pytest.raises(ValueError, match=r"seed0 and \S+seed1 were made with other code of policy 'mine'"):
            read_sweep_runs(tasks)


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "results.csv").write_text("years of work")
    with pytest.raises(ValueError, match="is not empty and holds no sweep"):
        begin_sweep(grid(tmp_path, PRODUCT), tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["results.csv"]


def test_the_estimate_counts_rounds_and_shares_them_out(tmp_path: Path) -> None:
    """What a round takes is measured, and differs from time to time; what is derived of it does not."""
    settings = {"learning.model": "logistic", "wireless.num_devices": 5}
    runs = [run.config for run in grid(tmp_path, '[product]\n"run.rounds" = [20, 60]', **settings).runs]
    tasks = [Task(str(number), config, None) for number, config in enumerate(runs)]
    told = estimate_time(tasks, Place("cpu"))
    a_round_s = told.trial_s / told.rounds / told.runs
    assert told.seconds == pytest.approx(80 * a_round_s)
    shared = estimate_time(tasks, Place("cpu", 2))
    assert shared.seconds == pytest.approx(40 * shared.trial_s / shared.rounds / shared.runs)
    assert Config() not in runs
