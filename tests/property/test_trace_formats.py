"""Recorded channels are the same cell in whatever form they are written."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.io import savemat

from flare.config import WirelessConfig
from flare.wireless.cell import Cell, CellRound

DRAWN = ("gain_db", "cpu_hz", "tau", "compute_s", "snr_hz", "compute_energy_j")
SHAPES = st.tuples(st.integers(1, 4), st.integers(1, 4))
PARTS = st.floats(-1e-3, 1e-3).filter(lambda part: abs(part) > 1e-12)


def text(value: np.generic) -> str:
    """A number in full, a complex one as MATLAB writes it."""
    whole = complex(value)
    return repr(whole.real) + (
        f"{'-' if whole.imag < 0 else '+'}{abs(whole.imag)!r}i" if np.iscomplexobj(value) else ""
    )


def write_long(path: Path, name: str, values: np.ndarray) -> None:
    rows = [f"{index},{device},{text(value)}" for (index, device), value in np.ndenumerate(values)]
    path.write_text("\n".join([f"round,device,{name}", *reversed(rows)]))


def write_wide(path: Path, name: str, values: np.ndarray) -> None:
    header = ",".join(f"{name}_{device}" for device in range(values.shape[1]))
    path.write_text("\n".join([header, *(",".join(map(text, row)) for row in values)]))


def write_matrix(path: Path, name: str, values: np.ndarray) -> None:
    path.write_text("\n".join(",".join(map(text, row)) for row in values))


FORMS: dict[str, Callable[[Path, str, np.ndarray], object]] = {
    "long.csv": write_long,
    "wide.csv": write_wide,
    "matrix_NAME.csv": write_matrix,
    "plain.npz": lambda path, name, values: np.savez(path, **{name: values}),
    "packed.npz": lambda path, name, values: np.savez_compressed(path, **{name: np.asfortranarray(values)}),
    "v4.mat": lambda path, name, values: savemat(path, {name: values}, format="4"),
    "v6.mat": lambda path, name, values: savemat(path, {name: values}),
    "v7.mat": lambda path, name, values: savemat(path, {name: values}, do_compression=True),
}


def drawn(folder: Path, form: str, name: str, values: np.ndarray) -> list[CellRound]:
    """Every round of a cell with such a trace; what it does not hold comes of the laws."""
    path = folder / form.replace("NAME", name)
    FORMS[form](path, name, values)
    cell = Cell(WirelessConfig(num_devices=values.shape[1], trace=str(path), fading="rayleigh"), seed=3)
    assert cell.trace is not None
    assert cell.trace.num_rounds == len(values)
    return [cell.draw(index) for index in range(len(values))]


def assert_same_in_every_form(name: str, values: np.ndarray, forms: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        first, *others = [drawn(Path(folder), form, name, values) for form in forms]
    for other in others:
        for one, another in zip(first, other, strict=True):
            for each in DRAWN:
                assert np.array_equal(getattr(one, each), getattr(another, each)), each


@settings(max_examples=20)
@given(st.data())
def test_real_quantities_are_the_same_in_every_form(data: st.DataObject) -> None:
    name, elements = data.draw(
        st.sampled_from(
            [
                ("gain_db", st.floats(-150.0, -40.5)),
                ("cpu_hz", st.floats(1e8, 1e10)),
                ("tau", st.integers(1, 300).map(float)),
                ("h", PARTS),
            ]
        )
    )
    values = data.draw(arrays(np.float64, data.draw(SHAPES), elements=elements))
    assert_same_in_every_form(name, values, list(FORMS))


@settings(max_examples=20)
@given(parts=SHAPES.flatmap(lambda shape: st.tuples(*[arrays(np.float64, shape, elements=PARTS)] * 2)))
def test_coefficients_are_the_same_in_every_form_and_the_same_as_their_gains(
    parts: tuple[np.ndarray, np.ndarray],
) -> None:
    h = parts[0] + 1j * parts[1]
    assert_same_in_every_form("h", h, list(FORMS))
    with tempfile.TemporaryDirectory() as folder:
        gains = drawn(Path(folder), "plain.npz", "gain_db", 20.0 * np.log10(np.abs(h)))
        coefficients = drawn(Path(folder), "v7.mat", "h", h)
    for one, another in zip(coefficients, gains, strict=True):
        assert np.array_equal(one.tau, another.tau)
        np.testing.assert_allclose(one.snr_hz, another.snr_hz, rtol=1e-12)


@settings(max_examples=10)
@given(
    st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(2, 4)).flatmap(
        lambda shape: st.tuples(*[arrays(np.float64, shape, elements=PARTS)] * 2)
    )
)
def test_antennas_are_the_same_in_every_form_and_add_up(parts: tuple[np.ndarray, np.ndarray]) -> None:
    h = parts[0] + 1j * parts[1]
    forms = ["plain.npz", "packed.npz", "v6.mat", "v7.mat"]
    assert_same_in_every_form("h", h, forms)
    with tempfile.TemporaryDirectory() as folder:
        together = drawn(Path(folder), "v7.mat", "h", h)
        alone = [drawn(Path(folder), "v7.mat", "h", h[:, :, antenna]) for antenna in range(h.shape[2])]
    for index, one in enumerate(together):
        np.testing.assert_allclose(one.snr_hz, sum(each[index].snr_hz for each in alone), rtol=1e-12)
