import numpy as np
import pytest

from flare.learning.tau_bar import TAU_BARS

TAU = np.array([9.0, 2.0, 5.0, 1.0])
FIRST = np.array([1.0, 8.0, 3.0, 9.0])
SELECTED = np.array([1, 2])


@pytest.mark.parametrize(
    ("name", "expected"),
    [("mas", 5.0), ("mes", 3.5), ("fmas", 8.0), ("fmes", 5.5)],  # of 2 and 5 now, of 8 and 3 in the first round
)
def test_the_four_strategies_look_at_the_selected_alone(name, expected):
    assert TAU_BARS[name](TAU, FIRST, SELECTED) == expected


def test_fixed_strategies_ignore_this_round_and_plain_ones_the_first():
    for name, ignored in (("mas", 1), ("mes", 1), ("fmas", 0), ("fmes", 0)):
        arguments = [TAU, FIRST]
        before = TAU_BARS[name](*arguments, SELECTED)
        arguments[ignored] = arguments[ignored] * 7.0
        assert TAU_BARS[name](*arguments, SELECTED) == before


@pytest.mark.parametrize("name", list(TAU_BARS))
@pytest.mark.parametrize("number", [1, 3, 7, 10])
def test_equal_steps_have_themselves_as_reference_exactly(name, number):
    equal = np.full(10, 3.0)
    assert TAU_BARS[name](equal, equal, np.arange(number)) == 3.0


@pytest.mark.parametrize("name", list(TAU_BARS))
def test_nothing_is_written_to(name):
    arrays = [TAU.copy(), FIRST.copy(), SELECTED.copy()]
    TAU_BARS[name](*arrays)
    assert all(np.array_equal(used, given) for used, given in zip(arrays, (TAU, FIRST, SELECTED), strict=True))
