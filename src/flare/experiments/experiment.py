"""What an experiment is: a grid of runs, the claims it decides and the figure it draws. One file an experiment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from flare.experiments.claims import Claim
from flare.experiments.outcome import Outcome
from flare.experiments.trial import Trial


@dataclass(frozen=True)
class Scale:
    """How large: the seeds, and whether small settings are to stand in for the paper's (`--quick`)."""

    seeds: tuple[int, ...]
    quick: bool = False


Measure = Callable[[Outcome], float]


class Results:
    """The finished runs of an experiment by panel and curve, in the order of the grid and of the seeds."""

    def __init__(self, trials: Sequence[Trial], outcomes: dict[str, Outcome], scale: Scale) -> None:
        self.scale = scale
        self.trials = tuple(trials)
        self._runs: dict[str, dict[str, list[Outcome]]] = {}
        self._data: dict[str, set[str]] = {}
        for trial in trials:
            self._data.setdefault(trial.panel, set()).add(trial.config.data.name)
            self._runs.setdefault(trial.panel, {}).setdefault(trial.curve, []).append(outcomes[trial.key])

    @property
    def panels(self) -> list[str]:
        """The panels, in order."""
        return list(self._runs)

    def data_of(self, panel: str) -> set[str]:
        """The data sets that the devices of a panel hold."""
        return self._data[panel]

    def curves(self, panel: str) -> list[str]:
        """The curves of a panel, in order."""
        return list(self._runs[panel])

    def runs(self, panel: str, curve: str) -> list[Outcome]:
        """The runs of a curve, one a seed, in the order of the seeds."""
        return self._runs[panel][curve]

    def values(self, panel: str, curve: str, measure: Measure) -> list[float]:
        """A number of each run of a curve."""
        return [measure(run) for run in self.runs(panel, curve)]


@dataclass(frozen=True)
class Experiment:
    """A figure of the paper, or a question beyond it.

    Where something is to be chosen first, such as a rate, `trials` are those that it is chosen by, and `then` makes of
    their results the trials that count; claims and figures see these alone.
    """

    name: str
    title: str
    trials: Callable[[Scale], list[Trial]]
    claims: Callable[[Results], list[Claim]]
    draw: Callable[[Results], dict[str, Figure]]  # figures by file name without suffix
    then: Callable[[Results], list[Trial]] | None = None
