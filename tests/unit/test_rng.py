import numpy as np
import pytest

from flare.rng import stream, streams


def test_same_path_same_numbers_whatever_was_drawn_before():
    first = stream(3, "fading", 7).random(5)
    stream(3, "fading", 6).random(1000)
    assert np.array_equal(stream(3, "fading", 7).random(5), first)


def test_every_part_of_the_path_and_the_seed_tell_streams_apart():
    paths = [(3, "fading", 7), (4, "fading", 7), (3, "cpu", 7), (3, "fading", 8), (3, "fading"), (3,), (3, 7, "fading")]
    paths += [(3, "fading", 7, 0), (3, "fading", 0, 7), (3, "fading", 2**32 + 7)]
    draws = {tuple(stream(*path).integers(0, 2**62, 2)) for path in paths}
    assert len(draws) == len(paths)


@pytest.mark.parametrize("seed", [0, 7, 2**32 + 1, 2**96, 2**200 + 3])
@pytest.mark.parametrize("path", [("batch",), ("batch", 5), ("batch", 2**40 + 1, "x")])
@pytest.mark.parametrize("then", [(), (3,), ("part", 0)])
def test_streams_made_together_are_those_made_one_by_one(seed, path, then):
    numbers = [0, 1, 39, 2**31, 2**32 - 1]
    together = [each.integers(0, 2**62, 3).tolist() for each in streams(seed, *path, numbers=numbers, then=then)]
    assert together == [stream(seed, *path, number, *then).integers(0, 2**62, 3).tolist() for number in numbers]


def test_streams_made_together_are_of_numbers_of_one_word_and_a_path():
    assert streams(0, "batch", numbers=[]) == []
    assert streams(np.int64(3), "batch", numbers=[np.int64(1)])[0].random() == stream(3, "batch", 1).random()
    for numbers, then in (([2**32], ()), ([3, -1], ()), ([1], (2**32,))):
        with pytest.raises(ValueError, match=r"numbers of streams are from 0 to 2\^32 - 1"):
            streams(0, "batch", numbers=numbers, then=then)
    with pytest.raises(TypeError):
        streams(0, "batch", numbers=[1.5])
    with pytest.raises(ValueError, match="streams need a path before their numbers"):
        streams(0, numbers=[1])


def test_neighbouring_rounds_are_uncorrelated():
    # Over n independent pairs the correlation is normal with deviation 1/sqrt(n) = 0.01: four deviations.
    draws = np.array([stream(0, "tau", round).random() for round in range(10_001)])
    assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 0.04
    assert draws.mean() == pytest.approx(0.5, abs=4 * np.sqrt(1 / 12 / len(draws)))


def test_the_global_state_of_numpy_is_neither_read_nor_changed():
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    stream(1, "cpu").random(10)
    assert np.array_equal(np.random.get_state()[1], before)  # noqa: NPY002


def test_numpy_integers_name_the_same_stream():
    assert stream(np.int64(3), "cpu", np.int32(2)).random() == stream(3, "cpu", 2).random()


def test_negative_seed_is_refused():
    with pytest.raises(ValueError, match="seed must not be negative, got -1"):
        stream(-1, "cpu")


@pytest.mark.parametrize("seed", [1.5, "1", None])
def test_seed_must_be_an_integer(seed):
    with pytest.raises(TypeError):
        stream(seed, "cpu")
