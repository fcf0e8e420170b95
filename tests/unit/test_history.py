from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from flare.scheduling import History


def test_an_empty_history_knows_nothing_but_what_it_is_told() -> None:
    history = History.empty(3, num_samples=[10, 20, 30], label_counts=[[1, 9], [20, 0], [15, 15]])
    assert history.num_devices == 3
    assert history.times_sent.tolist() == history.energy_j.tolist() == [0.0] * 3
    assert history.rounds_since_sent.tolist() == [np.inf] * 3
    for name in ("last_loss", "mean_squared_loss", "update_norm", "compute_s", "upload_s"):
        assert np.isnan(getattr(history, name)).all()
    assert history.num_samples.tolist() == [10.0, 20.0, 30.0]
    assert history.label_counts is not None
    assert history.label_counts.dtype == np.float64
    assert np.isnan(History.empty(2).num_samples).all()
    assert History.empty(2).label_counts is None


def test_rows_of_some_devices_in_their_order() -> None:
    history = dataclasses.replace(
        History.empty(4, label_counts=np.arange(8).reshape(4, 2)), times_sent=np.array([5.0, 6.0, 7.0, 8.0])
    )
    some = history.of(np.array([3, 1]))
    assert some.times_sent.tolist() == [8.0, 6.0]
    assert some.label_counts is not None
    assert some.label_counts.tolist() == [[6.0, 7.0], [2.0, 3.0]]
    assert history.of(np.zeros(0, dtype=int)).num_devices == 0


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"last_loss": np.zeros(3)}, "last_loss has 3 devices, times_sent has 2"),
        ({"times_sent": np.zeros((2, 1))}, r"times_sent has shape \(2, 1\); a history has one number for each device"),
        ({"energy_j": 0.0}, r"energy_j has shape \(\)"),
        ({"upload_s": ["a", "b"]}, "upload_s of a history must be numbers"),
        ({"label_counts": np.zeros(2)}, r"label_counts has shape \(2,\); it must be \(2, classes\)"),
        ({"num_samples": [1.0, -1.0]}, "num_samples of device 1 is -1; a number of samples is from 0 to"),
        ({"num_samples": [math.inf, 1.0]}, "num_samples of device 0 is inf"),
        ({"label_counts": [[1.0, 2.0], [math.nan, 1.0]]}, "label_counts of device 1 is nan"),
        ({"label_counts": np.zeros((3, 2))}, r"label_counts has shape \(3, 2\); it must be \(2, classes\)"),
    ],
)
def test_a_history_of_another_shape_is_refused(change: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        dataclasses.replace(History.empty(2), **change)  # type: ignore[arg-type]
