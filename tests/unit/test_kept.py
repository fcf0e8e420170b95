"""What follows from a tensor is made once, and forgotten with it."""

from __future__ import annotations

import gc
import weakref

import torch
from torch import Tensor

from flare.learning.kept import KeptWith

CPU = torch.device("cpu")


def test_what_follows_from_a_tensor_is_made_once_and_goes_with_it() -> None:
    asked: list[float] = []

    def doubled(tensor: Tensor, where: torch.device) -> Tensor:
        asked.append(float(tensor[0]))
        return (2.0 * tensor).to(where)

    kept = KeptWith(doubled)
    one, same_numbers = torch.ones(3), torch.ones(3)
    assert kept(one, CPU) is kept(one, CPU)
    assert kept(one, CPU) is not kept(same_numbers, CPU)
    assert kept(one, CPU).tolist() == [2.0] * 3
    assert kept(one, torch.device("meta")).is_meta  # one for each place
    assert len(asked) == 3
    made = weakref.ref(kept(one, CPU))
    del one
    gc.collect()
    assert made() is None
    assert kept(same_numbers, CPU).tolist() == [2.0] * 3
