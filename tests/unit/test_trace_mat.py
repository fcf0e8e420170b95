"""MATLAB files: SciPy's reader and writer are the oracle for sound files; hostile ones are made by hand."""

import re
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import scipy.sparse

from flare.wireless import mat
from flare.wireless.mat import read_mat
from flare.wireless.trace import read_trace
from tests.trace_files import refused

MADE_BY_MATLAB = Path(scipy.io.__file__).parent / "matlab" / "tests" / "data"
VALUES = np.array([[1e-5, -2e-5, 0.35], [4e-5, 1e-3, -0.625]])
HOW = {"v4": {"format": "4"}, "v6": {"format": "5"}, "v7": {"format": "5", "do_compression": True}}


@pytest.fixture
def mat_file(tmp_path):
    def written(how="v7", /, **variables):
        path = tmp_path / "trace.mat"
        scipy.io.savemat(path, variables, **HOW[how])
        return path

    return written


# --- sound files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(
    "kind", ["f8", "f4", "i4", "i2", "u2", "u1", "i1", "u4", "i8", "u8", "c16", "c8", ">f8", ">c16"]
)
def test_every_type_of_numbers_is_read_as_scipy_reads_it(mat_file, how, kind):
    values = (np.arange(1, 7).reshape(2, 3) * (1 + 2j if "c" in kind else 1)).astype(kind)
    path = mat_file(how, h=values)
    assert np.array_equal(read_mat(path).values["h"], scipy.io.loadmat(path)["h"])
    assert np.array_equal(read_mat(path).values["h"], values)


@pytest.mark.skipif(not MADE_BY_MATLAB.is_dir(), reason="this SciPy comes without the files of its tests")
def test_files_that_matlab_wrote_are_read_as_scipy_reads_them_or_refused(monkeypatch):
    monkeypatch.setattr(mat, "known_name", lambda name: name)
    monkeypatch.setattr(mat, "check_shape", lambda *args, **how: None)
    read, refused_ones = [], []
    for path in sorted(MADE_BY_MATLAB.glob("*.mat")):
        try:
            values = read_mat(path).values
        except ValueError as error:
            numeric = re.match(r"test(double|matrix|minus|multi|complex|3dmatrix)_", path.name)
            refused_ones.append((str(error).startswith(str(path)), numeric is None))
            continue
        if path.name != "bad_miutf8_array_name.mat":  # whose name is no text; SciPy refuses it
            expected = {name: each for name, each in scipy.io.loadmat(path).items() if not name.startswith("__")}
            assert set(values) == set(expected), path
            assert all(np.array_equal(values[name], expected[name]) for name in expected), path
            read.append(path.name)
    assert set(refused_ones) == {(True, True)}
    assert len(read) >= 25


@pytest.mark.parametrize("how", HOW)
def test_gains_speeds_and_steps(mat_file, how):
    path = mat_file(how, gain_db=[[-90.0, -95.5]], cpu_hz=[[2e9, 3e9]], tau=[[3, 1]])
    trace = read_trace(path)
    assert {name: each.tolist() for name, each in trace.values.items()} == {
        "gain_db": [[-90.0, -95.5]],
        "cpu_hz": [[2e9, 3e9]],
        "tau": [[3.0, 1.0]],
    }


def test_capital_h_is_h_and_the_antennas_add_up(mat_file):
    h = np.array([[[3e-5 + 4e-5j, 1e-5], [2e-6j, -1e-6]]])  # (1 round, 2 devices, 2 antennas)
    trace = read_trace(mat_file(H=h))
    power = [25e-10 + 1e-10, 4e-12 + 1e-12]  # |3 + 4i|^2 = 25
    assert (trace.num_rounds, trace.num_devices) == (1, 2)
    assert trace.values["gain_db"] == pytest.approx(10 * np.log10([power]), rel=1e-14)


# --- files that are wrong ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({}, ": holds no variable; give at least one of gain_db, cpu_hz, tau, h"),
        (
            {"channel": VALUES},
            ": unknown variable 'channel'; the variables are gain_db, cpu_hz, tau, h (save('trace.mat'",
        ),
        ({"h": [1.0, 2.0], "gain_db": [[-90.0, -91.0]]}, ": holds both gain_db and h, which say the same thing"),
        (
            {"h": np.ones((2, 2, 2, 2))},
            ", variable h: has shape (2, 2, 2, 2); it must be (rounds, devices) or (rounds, d",
        ),
        ({"gain_db": np.ones((2, 2, 2))}, ", variable gain_db: has shape (2, 2, 2); it must be (rounds, devices), at"),
        ({"h": np.ones((0, 3))}, ", variable h: has shape (0, 3)"),
        ({"gain_db": VALUES + 1j}, ", variable gain_db: holds complex numbers; it must be real (complex channel coef"),
        ({"tau": np.ones((2, 3)), "h": np.ones((2, 4, 5))}, ", variable h: has shape (2, 4, 5), variable tau (2, 3)"),
        ({"h": "text"}, ", variable h: holds text, not numbers; make it a full numeric array, then write it in MATLAB"),
        ({"h": np.array([[1, "a"]], dtype=object)}, ", variable h: holds a cell array, not numbers"),
        ({"h": {"a": 1}}, ", variable h: holds a structure, not numbers"),
        ({"h": np.array([[True, False]])}, ", variable h: holds true and false, not numbers"),
        (
            {"h": scipy.sparse.csc_array(VALUES)},
            ", variable h: holds a sparse matrix, not numbers; make it a full numeric ",
        ),
        (
            {"h": scipy.sparse.csc_array(VALUES)},
            "array: h = full(h), then write it in MATLAB with save('trace.mat', 'h', ",
        ),
        (
            {"gain_db": [[-90.0, -91.0], [-92.0, np.nan]]},
            ", variable gain_db, round 1, device 1 (gain_db(2,2) in MATLAB): nan is not a power gain in dB",
        ),
        (
            {"h": [[1e-5, 0.0]]},
            ", variable h, round 0, device 1 (h(1,2) in MATLAB): |h|^2 of 0 is 0, which is not a power",
        ),
        ({"h": [[1e-5, 0.0]]}, "where a device is out of reach, give a small coefficient such as 1e-20"),
        (
            {"h": [[complex(1e-5, np.inf), 1.0]]},
            ", round 0, device 0 (h(1,1) in MATLAB): |h|^2 of 1e-05+infj is inf, which",
        ),
        (
            {"h": [[1e200, 1.0]]},
            "|h|^2 of 1e+200 is inf, which is not a power gain between 1e-100 and 1: a channel loses",
        ),
        ({"h": [[[0.8, 0.8]]]}, "|h|^2 is 1.28, which is not a power gain between 1e-100 and 1"),
        ({"h": [[[1.0, np.nan]]]}, ", round 0, device 0 (h(1,1) in MATLAB): |h|^2 is nan, which is not a power gain"),
        ({"tau": [[1.5]]}, ", variable tau, round 0, device 0 (tau(1,1) in MATLAB): 1.5 is not a whole number"),
    ],
)
def test_what_is_wrong_is_said_with_file_variable_round_and_device(mat_file, variables, says):
    refused(mat_file(**variables), re.escape(says))


def test_a_file_of_version_7_3_says_how_to_save_it(tmp_path):
    for name, content in {
        "matlab": b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(512) + b"\x89HDF\r\n\x1a\n" + bytes(100),
        "plain": b"\x89HDF\r\n\x1a\n" + bytes(1000),
        "block": b"something else".ljust(512) + b"\x89HDF\r\n\x1a\n" + bytes(100),
    }.items():
        path = tmp_path / f"{name}.mat"
        path.write_bytes(content)
        refused(
            path, rf"version 7\.3 \(HDF5\), which is not read; write it in MATLAB with save\('{name}.mat', 'h', '-v7'"
        )


@pytest.mark.parametrize("content", [b"", b"x", b"round,device,tau\n0,0,1\n" * 20, bytes(range(1, 256)), b"\0" * 500])
def test_a_file_that_matlab_did_not_write(tmp_path, content):
    (tmp_path / "trace.mat").write_bytes(content)
    refused(tmp_path / "trace.mat", "is not a MATLAB file|is a damaged MATLAB file")


# --- files that somebody made to do harm ------------------------------------------------------------------------------


def element(kind, data, claimed=None):
    """An element with its tag; `claimed` bytes instead of those that it has."""
    return struct.pack("<II", kind, len(data) if claimed is None else claimed) + data + bytes(-len(data) % 8)


def matrix(shape=(1, 1), data=None, *, kind=6, name=b"h", claimed=None, whole=None, stored=9):
    """A variable; `claimed` bytes of numbers, `whole` bytes in all."""
    data = struct.pack("<d", 3.0) if data is None else data
    parts = element(6, struct.pack("<II", kind, 0)) + element(5, struct.pack(f"<{len(shape)}i", *shape))
    parts += element(1, name) + element(stored, data, claimed)
    return element(14, parts, whole)


def packed(content):
    data = zlib.compress(content)
    return struct.pack("<II", 15, len(data)) + data


def file_of(tmp_path, *elements):
    path = tmp_path / "trace.mat"
    path.write_bytes(b"MATLAB 5.0 MAT-file".ljust(124) + b"\x00\x01IM" + b"".join(elements))
    return path


def test_the_files_made_by_hand_are_sound(tmp_path):
    for content in (matrix(), packed(matrix())):
        path = file_of(tmp_path, content)
        assert read_mat(path).values["h"] == scipy.io.loadmat(path)["h"] == 3.0


HOSTILE = {
    "shape without end": (matrix((2**31 - 1, 2**31 - 1)), r"has shape \(2147483647, 2147483647\), 4.61e\+18 values"),
    "shape below zero": (matrix((-1, -5)), r"has shape \(-1, -5\); it must be"),
    "no dimension": (matrix(()), r"has shape \(\); it must be"),
    "a hundred dimensions": (matrix((1,) * 100), "a part of 400 bytes stands where at most 128 can"),
    "fewer numbers than its shape": (matrix((10_000, 9_000)), "90000000 numbers of type float64 do not take 8 bytes"),
    "numbers claimed that are not there": (
        matrix((10_000, 9_000), claimed=720_000_000),
        "a part of a variable is longer than the variable",
    ),
    "a variable longer than the file": (matrix(whole=2**32 - 8), "it ends early|cannot unpack"),
    "more numbers than its shape": (matrix((1, 1), bytes(80)), "1 numbers of type float64 do not take 80 bytes"),
    "a name without end": (matrix(name=b"h" * 5000), "a part of 5000 bytes stands where at most 256 can"),
    "a type that there is not": (matrix(stored=99), "numbers are stored as type 99"),
    "text for numbers": (matrix(stored=16), "numbers are stored as type 16"),
    "a class that there is not": (matrix(kind=77), "variable h: holds a value of class 77, not numbers"),
    "an object": (matrix(kind=17), "holds an object, not numbers"),
    "a name that acts on a terminal": (matrix(name=b"\x1b[31m"), "unknown variable"),
    "an element that is no variable": (element(9, bytes(8)), "an element of type 9, which is no variable"),
    "twice": (matrix() + matrix(), "holds variable h twice"),
    "cells in cells": (element(14, b"".join([struct.pack("<II", 14, 10**6)] * 10_000)), "is a damaged MATLAB file"),
}


@pytest.mark.parametrize(("content", "says"), HOSTILE.values(), ids=list(HOSTILE))
def test_claims_that_are_not_true(tmp_path, content, says):
    refused(file_of(tmp_path, content), says)
    if says != "holds variable h twice":
        refused(file_of(tmp_path, packed(content)), says)


def test_a_packed_variable_that_swells_a_thousandfold(tmp_path):
    numbers = 9_000_000
    head = matrix((3000, 3000), b"", claimed=8 * numbers, whole=8 * numbers + 56)
    squeezed = zlib.compressobj(9)
    data = squeezed.compress(head) + b"".join(squeezed.compress(bytes(8 * numbers // 100)) for _ in range(100))
    data += squeezed.flush()
    path = file_of(tmp_path, struct.pack("<II", 15, len(data)) + data)
    assert path.stat().st_size < 1 << 20
    refused(path, r"variable h: is \d+ bytes that unpack to 72000000, more than 300 times as many; save it with -v6")


def test_a_packed_variable_that_claims_what_zlib_cannot_hold(tmp_path):
    content = matrix((2000, 2000), b"", claimed=32_000_000, whole=32_000_056)
    refused(file_of(tmp_path, packed(content)), r"\d+ bytes cannot unpack to 32000056")


def test_a_packed_variable_with_more_behind_it_or_a_wrong_checksum(tmp_path):
    refused(file_of(tmp_path, packed(matrix() + bytes(100))), "a packed variable is longer than it says")
    broken = packed(matrix())[:-1] + b"\0"
    refused(file_of(tmp_path, broken), "is a damaged MATLAB file")


def v4(code=0, rows=1, columns=1, is_complex=0, name=b"h\0", name_bytes=None):
    head = (code, rows, columns, is_complex, len(name) if name_bytes is None else name_bytes)
    return struct.pack("<5i", *head) + name + struct.pack("<d", 3.0)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (v4(rows=30_000, columns=3_000), "it ends early"),
        (v4(rows=2**31 - 1, columns=2**31 - 1), r"4.61e\+18 values"),
        (v4(rows=-1), r"has shape \(-1, 1\)"),
        (v4(is_complex=1), "it ends early"),
        (v4(is_complex=7), "is not a MATLAB file"),
        (v4(code=60), "is not a MATLAB file"),
        (v4(code=2000), "is not a MATLAB file"),
        (v4(code=1), "variable h: holds text, not numbers"),
        (v4(code=2), "variable h: holds a sparse matrix, not numbers"),
        (v4(name_bytes=2**31 - 1), "a name has 2147483647 bytes"),
        (v4(name_bytes=-1), "a name has -1 bytes"),
        (v4() + v4(), "holds variable h twice"),
        (v4() + b"\0", "it ends early"),
    ],
)
def test_old_files_whose_heads_lie(tmp_path, content, says):
    (tmp_path / "trace.mat").write_bytes(v4())
    assert read_mat(tmp_path / "trace.mat").values["h"] == 3.0
    (tmp_path / "trace.mat").write_bytes(content)
    refused(tmp_path / "trace.mat", says)


@pytest.mark.parametrize("how", HOW)
def test_with_any_byte_changed_or_cut_off_it_is_read_or_refused(mat_file, how):
    path = mat_file(how, h=VALUES)
    content, sound = path.read_bytes(), read_trace(path).values["gain_db"]
    start = 0 if how == "v4" else 120  # what lies before is a text
    outcomes = []
    for at in range(start, len(content)):
        for value in (0xFF, content[at] ^ 0x10):
            path.write_bytes(content[:at] + bytes([value]) + content[at + 1 :])
            try:
                outcomes.append(np.array_equal(read_trace(path).values["gain_db"], sound))
            except ValueError as error:
                outcomes.append(None if str(error).startswith(str(path)) else error)
    assert None in outcomes
    assert set(outcomes) <= {True, False, None}
    if how == "v7":  # packed numbers have a checksum
        assert False not in outcomes
    for length in range(start, len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(ValueError, match=re.escape(str(path))):
            read_trace(path)
