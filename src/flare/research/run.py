"""One run as users hold it: its rounds as tables and as curves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from flare.config import Config
from flare.extras import imported
from flare.records import RunFolder
from flare.records.run import RunNumbers, read_rounds, run_of, time_in_words
from flare.research.drawing import draw_run
from flare.research.tables import Columns, device_columns, round_columns, warn_untold
from flare.rounds import RoundRecord
from flare.sweeps.entries import name_of
from flare.text import html_table
from flare.units import human

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


@final
class Run:
    """A run that `flare.simulate` made or `flare.load` read.

    name       what it is called: the name of its folder, or method, policy and seed
    config     its settings
    folder     where it lies on disk; None: in memory alone
    numbers    what was written down of its rounds as arrays, the quantities of a round by name
    """

    def __init__(
        self,
        records: Iterable[RoundRecord],
        config: Config,
        manifest: Mapping[str, Any],
        folder: Path | None = None,
        name: str = "",
    ) -> None:
        self._records = tuple(records) if folder is None else ()
        self.numbers: RunNumbers = run_of(self._records if folder is None else records, config, manifest, folder)
        self.config = config
        self.folder = folder
        self.name = name or (folder.absolute().name if folder is not None else name_of(config))

    @classmethod
    def read(cls, folder: Path, name: str = "") -> Run:
        """The run in a folder; ValueError where there is none, or where a file in it is damaged."""
        opened = RunFolder.open(folder)
        return cls(read_rounds(opened), opened.config, opened.manifest, folder, name)

    @property
    def records(self) -> tuple[RoundRecord, ...]:
        """Its rounds, one `RoundRecord` each: all that was written down. Those of a run on disk are read every time,
        since they take far more memory than `numbers`; ValueError where they are no longer there."""
        return tuple(self._iter_records())

    def _iter_records(self) -> Iterator[RoundRecord]:
        if self.folder is None:
            yield from self._records
            return
        left = self.num_rounds  # it may have gone on since it was read
        for record in islice(read_rounds(RunFolder.open(self.folder)), left):
            left -= 1
            yield record
        if left:
            raise ValueError(
                f"{self.folder}: the run there has {self.num_rounds - left} rounds, and had {self.num_rounds} when it "
                "was read; load it again"
            )

    @property
    def method(self) -> str:
        """The name of its learning method."""
        return self.config.learning.method

    @property
    def policy(self) -> str:
        """The name of its scheduling policy."""
        return self.config.scheduling.policy

    @property
    def seed(self) -> int:
        """The seed of all that was drawn."""
        return self.config.seed

    @property
    def status(self) -> str:
        """How it ended: "finished", "reached" (its target accuracy), "diverged"; "running" or "interrupted" before."""
        return self.numbers.status

    @property
    def num_rounds(self) -> int:
        """Rounds recorded."""
        return self.numbers.num_rounds

    @property
    def accuracy(self) -> float:
        """Test accuracy at the last test, from 0 to 1; nan where there was none."""
        return self.numbers.accuracy

    @property
    def clock_s(self) -> float:
        """Simulated time when the last round was over; real time where `numbers.real_clock`."""
        return self.numbers.clock_s

    def frame(self) -> pd.DataFrame:
        """A pandas frame with one row a round.

        `round` is counted from 0. Beside what the record of a round holds as a number there are `num_selected`,
        `num_sent`, `mean_tau` (of the selected devices), `energy_j` and `payload_bits` (of all devices in the round;
        `control_bits` is the part of it that is no update: answers to the policy, its trials),
        `gap` (of the objective to its proven bound, as a share of it), `num_faults` and `why_nobody` (was selected).
        """
        return frame_of(self.round_columns())

    def devices(self) -> pd.DataFrame:
        """A pandas frame with one row for each round and device, those that were not selected too.

        `why_left_out` says why a device was not selected; "" where it was, "not known" where the round cannot be drawn
        again (real nodes, a run of an older flare, a trace or a method that is not at hand), of which a warning tells;
        of a selected device whose update is `lost` it says that. `clipped`: its update was too long, and shortened
        (`learning.clip`). `late`: of this node nothing was there when the deadline was over in real time.
        `update_weight` and `error_rate` are nan where the policy sets none. `energy_j` has what the device spent on
        computing, sending and answering the policy (`probe_energy_j`), and an even part of the policy's own trials
        (`pilot_energy_j`).
        `objective_change` is what P2's objective would have changed by had it sent, too (> 0 is worse). `tau` and
        `compute_s` are what the device can do in the round, selected or not; `upload_s` and `finish_s` are there only
        of the selected, and so is `broadcast_s`, the time before the device computes in which it receives the model:
        the other times, and the deadline, begin after it. `measured_compute_s`, `measured_upload_s`, `samples_per_s`
        and `speed_spread` are of real nodes, nan in a simulation.
        """
        columns, untold = self.device_table()
        warn_untold({self.name: untold})
        return frame_of(columns)

    def plot(
        self,
        quantity: str = "accuracy",
        *,
        x: str = "rounds",
        ax: Axes | None = None,
        legend: bool = True,
        **style: Any,
    ) -> Axes:
        """Draw a quantity of the run and return the matplotlib axes.

        quantity   a name in `flare.research.quantities.QUANTITIES`: accuracy, test_loss, train_loss, num_selected,
                   num_sent, mean_tau, mean_age, tau_bar, latency_s, broadcast_s, clock_s, energy_j, total_energy_j,
                   payload_bits, total_payload_bits, control_bits, downlink_bits, noise_std, objective, gap, num_faults
        x          "rounds", "time" (seconds, simulated or real), "energy" (joule so far) or "bits" (sent so far; over
                   the air nothing is)
        ax         axes to draw on; None: new ones, in the style that matplotlib is set to
        legend     False: none; without, there is one where the axes have more than one curve
        style      what matplotlib's `plot` takes: color, linestyle, marker, label, ...
        """
        return draw_run(self.numbers, quantity, x, ax, self.name, style, legend=legend)

    def round_columns(self) -> Columns:
        """The table of rounds as arrays by name."""
        return round_columns(self.numbers)

    def device_table(self) -> tuple[Columns, str]:
        """The table of rounds and devices as arrays by name; and what of it is not known, empty where all is."""
        return device_columns(self._iter_records(), self.numbers)

    def __repr__(self) -> str:
        tested = "" if math.isnan(self.accuracy) else f", test accuracy {100.0 * self.accuracy:.2f} %"
        return f"<Run {self.name}: {self._progress}{tested}; {self._place}>"

    def _repr_html_(self) -> str:
        return html_table(self.name, (), self._facts().items())

    @property
    def _progress(self) -> str:
        rounds = f"{self.num_rounds} round{'' if self.num_rounds == 1 else 's'}"
        return f"{self.status} after {rounds} and {human(self.clock_s, 's')} of {time_in_words([self.numbers])}"

    @property
    def _place(self) -> str:
        return "in memory" if self.folder is None else f"in {self.folder}"

    def _facts(self) -> dict[str, str]:
        return {
            "method": self.method,
            "policy": self.policy,
            "seed": str(self.seed),
            "data": self.numbers.data,
            "model": self.numbers.model,
            "devices": str(self.numbers.num_devices),
            "status": self._progress,
            "test accuracy": "not tested" if math.isnan(self.accuracy) else f"{100.0 * self.accuracy:.2f} %",
            "where": self._place,
        }


def frame_of(columns: Columns) -> pd.DataFrame:
    """A pandas frame of a table."""
    return imported("pandas", "a frame").DataFrame(columns, copy=True)
