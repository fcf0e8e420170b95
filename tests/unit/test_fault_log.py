"""What is logged of a node's faults: each kind once, however its message is worded this time."""

from __future__ import annotations

import io
import logging
import uuid
from hashlib import sha256

import numpy as np
import pytest

pytest.importorskip("flwr")

from flare.flower.faults import Faults


def told(caplog: pytest.LogCaptureFixture, *reasons: str) -> list[str]:
    """The lines of the log when a node fails for these reasons, one after the other; all of them are kept."""
    faults = Faults()
    with caplog.at_level(logging.WARNING, logger="flwr"):
        for reason in reasons:
            faults.note(3, "train", reason)
    assert [each["why"] for each in faults.take()] == list(reasons)
    return [each.getMessage() for each in caplog.records]


def header_error() -> ValueError:
    """What NumPy says of an array whose header is code: it names an object by its address in memory."""
    head = b"{'descr': evil, 'fortran_order': False, 'shape': (3,)}\n"
    with pytest.raises(ValueError, match="0x") as caught:
        np.lib.format.read_array_header_1_0(io.BytesIO(len(head).to_bytes(2, "little") + head))
    return caught.value


@pytest.mark.parametrize(
    ("one", "same"),
    [
        ("tau is 3.5", "tau is 1e+30"),
        ("<ast.Name object at 0x7f9f491b45e0>", "<ast.Name object at 0x7FEEF978F390>"),
        ("<ast.Name object at 0xdeadbeef>", "<ast.Name object at 0x10>"),
        *[
            (f"object {sha256(b'1').hexdigest()} is gone", f"object {sha256(each).hexdigest()} is gone")
            for each in (b"2", b"3")
        ],
        *[(f"message {uuid.UUID(int=5**50)} is lost", f"message {uuid.UUID(int=n**40)} is lost") for n in (7, 8)],
    ],
)
def test_a_fault_told_with_other_numbers_or_addresses_is_logged_once(
    one: str, same: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert told(caplog, one, same) == [f"node 3, train: {one}"]


def test_a_header_that_is_code_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    errors = [header_error() for _ in range(5)]  # each holds its object, so that the next one lies elsewhere
    reasons = [str(each) for each in errors]
    assert len(set(reasons)) == 5
    assert told(caplog, *reasons) == [f"node 3, train: {reasons[0]}"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("no answer within 10 s", "its answer cannot be read"),
        ("'b' has shape (3, 1)", "'w' has shape (3, 1)"),
        ("'weight1' is float64", "'bias1' is float64"),
        ("<ast.Name object at 0x7f9f491b45e0>", "<ast.Lambda object at 0x7f9f491b45e0>"),
    ],
)
def test_another_fault_is_news(one: str, other: str, caplog: pytest.LogCaptureFixture) -> None:
    assert told(caplog, one, other) == [f"node 3, train: {one}", f"node 3, train: {other}"]
