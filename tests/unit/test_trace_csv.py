"""The wide forms of a CSV trace, a column a device, and channel coefficients as text; the long form: test_trace.py."""

import re
from functools import partial

import numpy as np
import pytest

from flare.wireless import trace_csv
from flare.wireless.trace import read_trace
from tests.trace_files import write_csv

WIDE = "gain_db_0,gain_db_1,gain_db_2\n-90,-91,-92\n-80,-81,-82\n"


@pytest.fixture
def csv_file(tmp_path):
    return partial(write_csv, tmp_path)


def gains(path):
    return read_trace(path).values["gain_db"].tolist()


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (WIDE, "trace.csv"),
        ("gain_db_2,gain_db_0,gain_db_1\n-92,-90,-91\n-82,-80,-81\n", "trace.csv"),
        ("round,gain_db_0,gain_db_1,gain_db_2\n1,-80,-81,-82\n0,-90,-91,-92\n", "trace.csv"),
        ("gain_db_00, gain_db_01 ,gain_db_02\n\n-90,-91,-92\n-80,-81,-82\n", "trace.csv"),
        ("-90,-91,-92\n-80,-81,-82\n", "gain_db.csv"),
        ("-9e1,-91.0,-92\n\n-80, -81 ,-82\n", "campus_gain_db.csv"),
        ("-90,-91,-92\r\n-80,-81,-82\r\n", "campus-Gain_dB.CSV"),
    ],
    ids=["wide", "columns in any order", "rounds in any order", "zeros and spaces", "matrix", "matrix 2", "matrix 3"],
)
def test_wide_forms(csv_file, text, name):
    assert gains(csv_file(text, name)) == [[-90, -91, -92], [-80, -81, -82]]


def test_several_quantities_beside_each_other(csv_file):
    trace = read_trace(csv_file("tau_0,gain_db_0,cpu_hz_1,gain_db_1,tau_1,cpu_hz_0\n3,-90,2e9,-91,4,1e9\n"))
    assert {name: each.tolist() for name, each in trace.values.items()} == {
        "gain_db": [[-90.0, -91.0]],
        "cpu_hz": [[1e9, 2e9]],
        "tau": [[3.0, 4.0]],
    }


@pytest.mark.parametrize(
    ("cell", "power"),
    [
        ("3e-5+4e-5i", 25e-10),
        ("3e-5-4e-5j", 25e-10),
        ("3E-05 + 4E-05i", 25e-10),
        ("(3e-5+4e-5j)", 25e-10),
        (" (3.0e-05+-4.0e-05j)", 25e-10),  # how numpy.savetxt writes a negative imaginary part
        ("-5e-5i", 25e-10),
        ("-5e-5", 25e-10),
        ("i", 1.0),
        ("0-i", 1.0),
    ],
)
def test_a_coefficient_as_people_write_it(csv_file, cell, power):
    for path in (
        csv_file(f"round,device,h\n0,0,{cell}\n"),
        csv_file(f"H_0,tau_0\n{cell},3\n"),
        csv_file(f"{cell}\n", "h.csv"),
    ):
        assert gains(path) == [[pytest.approx(10 * np.log10(power), rel=1e-14)]]


def test_numpy_writes_a_matrix_that_is_read(tmp_path):
    h = np.array([[1e-5 + 2e-5j, -3e-6 - 4e-7j], [5e-5j, 2e-5 + 0j]])
    np.savetxt(tmp_path / "run_h.csv", h, delimiter=",")
    assert np.array_equal(read_trace(tmp_path / "run_h.csv").values["gain_db"], 10 * np.log10(h.real**2 + h.imag**2))


@pytest.mark.parametrize(
    ("text", "name", "says"),
    [
        (
            WIDE.replace("-81", "nan"),
            "a.csv",
            ", line 3, column gain_db_1 (round 1, device 1): nan is not a power gain",
        ),
        (WIDE.replace("-81", "weak"), "a.csv", ", line 3, column gain_db_1: 'weak' is not a power gain in dB"),
        (WIDE.replace("-81", ""), "a.csv", ", line 3, column gain_db_1: an empty cell is not a power gain in dB"),
        (WIDE.replace("-81", "1+2i"), "a.csv", ", line 3, column gain_db_1: '1+2i' is not a power gain in dB"),
        (WIDE.replace(",-82", ""), "a.csv", ", line 3: has 2 cells, the first line has 3; give one for each column"),
        (
            WIDE.replace("_2", "_3"),
            "a.csv",
            ", line 1: column gain_db_2 is missing; devices are counted from 0, and the",
        ),
        (
            "gain_db_1,gain_db_2\n-90,-91\n",
            "a.csv",
            ", line 1: column gain_db_0 is missing; devices are counted from 0",
        ),
        ("h_0,h_1,tau_0\n1,1,1\n", "a.csv", ", line 1: column tau_1 is missing"),
        ("tau_0,tau_999999999\n1,1\n", "a.csv", ", line 1: column tau_1 is missing"),
        ("h_0,h_00\n1,1\n", "a.csv", ", line 1: column h_0 is there twice"),
        ("h_0,H_0\n1,1\n", "a.csv", ", line 1: column h_0 is there twice"),
        (
            "h_0,time\n1,1\n",
            "a.csv",
            ", line 1: unknown column 'time'; beside h_0 there may be a column for each device",
        ),
        ("h_0,device\n1,1\n", "a.csv", ", line 1: unknown column 'h_0'; the columns are round, device, gain_db"),
        ("h_0,gain_db_0\n1,1\n", "a.csv", ": holds both gain_db and h, which say the same thing; give one of them"),
        ("h_0\n", "a.csv", ": has a header and no rows"),
        (
            "h_0\n0\n",
            "a.csv",
            ", line 2, column h_0 (round 0, device 0): |h|^2 of 0+0j is 0, which is not a power gain",
        ),
        ("h_0\n1-i\n", "a.csv", "|h|^2 of 1-1j is 2, which is not a power gain between 1e-100 and 1: a channel loses"),
        ("h_0\n1+2k\n", "a.csv", ", line 2, column h_0: '1+2k' is not a coefficient such as 1e-5+2e-6i"),
        ("round,h_0\n0,1\n0,1\n", "a.csv", ", line 3, column round: 0 stands where round 1 should; give each of the"),
        ("round,h_0\n1,1\n2,1\n", "a.csv", ", line 2, column round: 1 stands where round 0 should"),
        ("round,h_0\n0.5,1\n", "a.csv", ", line 2, column round: 0.5 is not a whole number, counted from 0"),
        (
            "-90,-91\n",
            "a.csv",
            ", line 1: has numbers where the columns should be named; write gain_db_0,gain_db_1,...",
        ),
        ("-90,-91\n", "a.csv", "or end the file's name in what they are, such as a_gain_db.csv or a_h.csv"),
        ("-90,-91\n", "match.csv", "has numbers where the columns should be named"),
        ("0,1,2\n-90,-91,-92\n", "gain_db.csv", ", line 1: reads 0, 1, 2, ..., which seem to be names of columns"),
        ("-90,-91\n-90,inf\n", "gain_db.csv", ", line 2, column 2 (round 1, device 1): inf is not a power gain in dB"),
        ("-90,-91\n-90\n", "gain_db.csv", ", line 2: has 1 cells, the first line has 2"),
        ("1e-5,2e-3i\n1e-5,0i\n", "h.csv", ", line 2, column 2 (round 1, device 1): |h|^2 of 0+0j is 0, which is not"),
    ],
)
def test_what_is_wrong_is_said_with_line_and_column(csv_file, text, name, says):
    path = csv_file(text, name)
    with pytest.raises(ValueError, match=re.escape(says)) as raised:
        read_trace(path)
    assert str(raised.value).startswith(str(path))


def test_a_line_without_end_is_not_read(csv_file, monkeypatch):
    monkeypatch.setattr(trace_csv, "MAX_LINE", 100)
    assert gains(csv_file(WIDE)) == [[-90, -91, -92], [-80, -81, -82]]
    with pytest.raises(ValueError, match=r"trace\.csv, line 2: has more than 100 characters; store it as NPZ"):
        read_trace(csv_file("h_0\n" + "1" * 101 + "\n"))
