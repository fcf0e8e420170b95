"""Flower looks for announced answers in even pauses."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest
from flwr.app import Message
from flwr.supercore.inflatable import inflatable_utils
from flwr.supercore.inflatable.inflatable_utils import ObjectUnavailableError, pull_objects

from flare.flower import FlareStrategy, trained_arrays
from flare.flower.backoff import MIN_PAUSE_S, look_every
from tests.fleet_runs import module, node, settings
from tests.fleets import FakeGrid


@pytest.fixture(autouse=True)
def flowers_own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Afterwards Flower waits as before."""
    kept = dict(pull_objects.__kwdefaults__)
    pull_objects.__kwdefaults__.update(initial_backoff=1, backoff_cap=10, max_tries_per_object=500)
    yield
    pull_objects.__kwdefaults__.update(kept)


def pauses(monkeypatch: pytest.MonkeyPatch, tries: int) -> list[float]:
    """How long Flower waits between looks for an object that is there after so many of them."""
    waited: list[float] = []
    monkeypatch.setattr(threading.Event, "wait", lambda _, timeout=None: waited.append(timeout))
    left = iter(range(tries))

    def pull(object_id: str) -> bytes:
        if next(left, None) is not None:
            raise ObjectUnavailableError(object_id)
        return b"there"

    assert pull_objects(["a"], pull) == {"a": b"there"}
    monkeypatch.undo()
    return [each for each in waited if each is not None]


def test_as_it_is_flower_waits_longer_and_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = pauses(monkeypatch, 6)
    assert round(waited[0]) == 1
    assert waited[-1] > 7.0


def test_pauses_are_even(monkeypatch: pytest.MonkeyPatch) -> None:
    with look_every(2.0):
        waited = pauses(monkeypatch, 600)  # more looks than Flower would take
    assert len(waited) == 600
    assert 1.6 <= min(waited) <= max(waited) <= 2.4  # Flower adds up to a fifth, by chance


def test_the_superlink_is_not_asked_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with look_every(0.001):
        assert min(pauses(monkeypatch, 20)) >= 0.8 * MIN_PAUSE_S


def test_afterwards_flower_looks_as_before() -> None:
    before = dict(pull_objects.__kwdefaults__)
    with pytest.raises(OSError, match="at work"), look_every(2.0):
        raise OSError("at work")
    assert pull_objects.__kwdefaults__ == before


def test_a_run_looks_so_only_for_as_long_as_it_lasts() -> None:
    before, during = dict(pull_objects.__kwdefaults__), []

    def query(message: Message) -> list[Message]:
        during.append(pull_objects.__kwdefaults__["backoff_cap"])
        return []

    strategy = FlareStrategy(settings("run.rounds=1"), poll_s=0.7, query_timeout_s=0.02)
    strategy.start(FakeGrid({1: node(query=query)}), trained_arrays(module()))
    assert during == [0.7]
    assert pull_objects.__kwdefaults__ == before


def test_another_flower_is_left_as_it_is_and_a_warning_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(inflatable_utils, "pull_objects", lambda ids: {})
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    with look_every(1.0):
        pass
    assert "this version of Flower cannot be told" in caplog.text
