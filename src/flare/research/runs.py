"""Several runs as users hold them: a sequence with names, as tables, as curves with bands over the seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, final, overload

import numpy as np

from flare.report.curves import Summary, summarise
from flare.report.paired import By, Ranking, rank
from flare.report.run_groups import Group, group_runs
from flare.research.drawing import draw_groups
from flare.research.run import Run, frame_of
from flare.research.tables import Columns, stacked, texts, warn_untold, with_constants
from flare.text import did_you_mean, html_table, plural

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_SHOWN = 10  # runs that are listed where a sequence of them is shown


@final
class Runs(Sequence[Run]):
    """Runs in their order: `runs[0]`, `runs["flare-greedy-seed0"]`, `runs[:3]`, `for run in runs`.

    Runs that differ in nothing but their seed are one group: one curve, one line of the summary.
    """

    def __init__(self, runs: Iterable[Run]) -> None:
        self._runs = tuple(runs)
        if not self._runs:
            raise ValueError("there is no run; give one at least")

    @property
    def names(self) -> list[str]:
        """The names of the runs."""
        return [run.name for run in self]

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs)

    @overload
    def __getitem__(self, which: int | str) -> Run: ...
    @overload
    def __getitem__(self, which: slice) -> Runs: ...
    def __getitem__(self, which: int | str | slice) -> Run | Runs:
        if isinstance(which, slice):
            return Runs(self._runs[which])
        if not isinstance(which, str):
            return self._runs[which]
        for run in self:
            if run.name == which:
                return run
        of_group = [run.name for own, run in self._named() if own["label"] == which]
        if of_group:
            raise KeyError(
                f"{which!r:.80} is a group of runs, one for each seed; take one: {', '.join(of_group[:_SHOWN])}"
            )
        hint = did_you_mean(which, self.names)
        raise KeyError(f"there is no run {which!r:.80}{hint} Runs: {', '.join(self.names[:_SHOWN])}")

    def frame(self) -> pd.DataFrame:
        """A pandas frame with one row for each run and round: `Run.frame` with the columns run, label, method, policy
        and seed before."""
        return frame_of(self.round_columns())

    def devices(self) -> pd.DataFrame:
        """A pandas frame with one row for each run, round and device: `Run.devices` with the columns run, label,
        method, policy and seed before."""
        return frame_of(self.device_columns())

    def plot(
        self,
        quantity: str = "accuracy",
        *,
        x: str = "rounds",
        ax: Axes | None = None,
        band: bool = True,
        legend: bool = True,
        **style: Any,
    ) -> Axes:
        """Draw a quantity of each group, the mean over its seeds with the band of a 95 % t-interval, as far as half
        of its seeds go, and return the matplotlib axes. Against anything but rounds, where each seed begins and ends
        elsewhere, a curve goes from where all have begun to where the first of those with the most rounds ends.

        quantity   as for `Run.plot`
        x          "rounds", "time" (seconds, simulated or real), "energy" (joule so far) or "bits" (sent so far; over
                   the air nothing is)
        ax         axes to draw on; None: new ones, in the style that matplotlib is set to
        band       False: means alone; a band ends at 0, since no quantity is negative
        legend     False: none, for one of your own; without, there is one where the axes have more than one curve
        style      what matplotlib's `plot` takes, for every curve
        """
        return draw_groups(self.groups, quantity, x, ax, band, style, legend=legend)

    def summary(self) -> pd.DataFrame:
        """A pandas frame with one row a group, named by its label: what became of it, as means over its seeds.

        `accuracy` is that of the last test, `best_accuracy` the best of any; `..._half` is half the width of the 95 %
        t-interval over the seeds, nan with fewer than three. Groups are compared where all runs have a test, after
        `equal_rounds` rounds and after `equal_time_s` simulated seconds: `accuracy_equal_rounds` there, and seed by
        seed `difference_equal_rounds` to the best group and `won_equal_rounds`, the seeds in which it is above the
        best; nan for the best itself. Where runs end at a test accuracy, `target_accuracy`, `time_to_target_s` is the
        mean over the `num_reached` seeds that reach it. `fairness` is Jain's index of how often devices sent, 1 where
        all did equally often.
        """
        columns = self.summary_columns()
        return frame_of({name: column for name, column in columns.items() if name != "label"}).set_axis(
            columns["label"].tolist(), axis="index"
        )

    @property
    def groups(self) -> list[Group]:
        """Runs that differ only in their seed, with a label; where one run is there twice, the longer record."""
        groups, _ = group_runs([run.numbers for run in self])
        return groups

    def round_columns(self) -> Columns:
        """The tables of rounds one below the other, as arrays by name."""
        return stacked([with_constants(own, run.round_columns()) for own, run in self._named()])

    def device_columns(self) -> Columns:
        """The tables of rounds and devices one below the other, as arrays by name. A warning tells what is not known
        of them."""
        tables, untold = [], {}
        for own, run in self._named():
            columns, untold[run.name] = run.device_table()
            tables.append(with_constants(own, columns))
        warn_untold(untold)
        return stacked(tables)

    def _named(self) -> Iterator[tuple[dict[str, str | int], Run]]:
        """Each run, with what tells it apart in a table of several."""
        label_of = {id(numbers): group.label for group in self.groups for numbers in group.runs}
        for run in self:
            label = label_of.get(id(run.numbers), "")  # none where the run is there twice
            yield {"run": run.name, "label": label, "method": run.method, "policy": run.policy, "seed": run.seed}, run

    def summary_columns(self) -> Columns:
        """The summary as arrays by name."""
        groups = self.groups
        rankings = [rank(groups, by) for by in By]
        rows = [_row(group, summarise(group), rankings) for group in groups]
        columns: Columns = {}
        for name, first in rows[0].items():
            values = [row[name] for row in rows]
            columns[name] = texts(values) if isinstance(first, str) else np.array(values)
        return columns

    def __repr__(self) -> str:
        lines = [f"<Runs: {self._in_words}"]
        lines += [f"  {run!r}" for run in self._runs[:_SHOWN]]
        more = [f"  ... and {len(self) - _SHOWN} more"] if len(self) > _SHOWN else []
        return "\n".join([*lines, *more]) + ">"

    def _repr_html_(self) -> str:
        columns = self.summary_columns()
        names = ["label", "seeds", "accuracy", "accuracy_half", "rounds", "clock_s", "status"]
        rows = zip(*(map(_shown, columns[name].tolist()) for name in names), strict=True)
        return html_table(self._in_words, names, rows)

    @property
    def _in_words(self) -> str:
        """How many runs, of how many groups and seeds."""
        groups, seeds = len(self.groups), len({run.seed for run in self})
        return f"{plural(len(self), 'run')} of {plural(groups, 'group')}, {plural(seeds, 'seed')}"


def _row(group: Group, line: Summary, rankings: Sequence[Ranking]) -> dict[str, Any]:
    return {
        "label": group.label,
        "method": group.config.learning.method,
        "policy": group.config.scheduling.policy,
        "seeds": len(group.runs),
        "accuracy": line.final.mean,
        "accuracy_half": line.final.half,
        "best_accuracy": line.best.mean,
        "best_accuracy_half": line.best.half,
        **{name: value for ranking in rankings for name, value in _compared(group, ranking).items()},
        "rounds": line.rounds[1],
        "clock_s": line.clock_s.mean,
        "devices": line.devices,
        "fairness": line.fairness,
        "mean_tau": line.tau,
        "gap": line.gap,
        "energy_j": line.energy_j,
        "payload_bits": line.sent_bits,  # the public name of the column; in a record it means updates alone
        "rounds_without_sender": line.without_sender,
        "status": line.status,
        "target_accuracy": line.target or math.nan,
        "time_to_target_s": line.to_target_s.mean,
        "time_to_target_half": line.to_target_s.half,
        "num_reached": line.num_reached,
    }


def _compared(group: Group, ranking: Ranking) -> dict[str, float]:
    """A group after equally many rounds, or as much simulated time: its accuracy, and how far it is from the best over
    the seeds that both have, with the half-width of the 95 % interval and the seeds in which it is above; the best
    itself has nan."""
    at = "equal_rounds" if ranking.by is By.ROUNDS else "equal_time"
    mine = next((standing for standing in ranking.standings if standing.group is group), None)
    apart = mine.difference if mine is not None else None
    return {
        f"{at}{'' if ranking.by is By.ROUNDS else '_s'}": ranking.at,
        f"accuracy_{at}": math.nan if mine is None else mine.accuracy.mean,
        f"difference_{at}": math.nan if apart is None else apart.mean.mean,
        f"difference_{at}_half": math.nan if apart is None else apart.mean.half,
        f"won_{at}": math.nan if apart is None else float(apart.won),
    }


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return "–" if math.isnan(value) else f"{value:.4g}"
    return str(value)
