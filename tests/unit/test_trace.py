import os
import re
import zipfile
from functools import partial

import numpy as np
import pytest

from flare.scheduling.table import Surroundings, read_table
from flare.wireless.trace import read_trace
from tests.trace_files import refused, write_csv

HEADER = "round,device,gain_db,cpu_hz,tau\n"
FULL = HEADER + "0,0,-90,2e9,3\n0,1,-95.5,3e9,1\n1,0,-91,2.5e9,7\n1,1,-99,4e9,2\n"


@pytest.fixture
def csv_file(tmp_path):
    return partial(write_csv, tmp_path)


@pytest.fixture
def npz_file(tmp_path):
    def written(**arrays):
        path = tmp_path / "trace.npz"
        np.savez(path, **arrays)
        return path

    return written


def assert_full(trace):
    assert (trace.num_rounds, trace.num_devices) == (2, 2)
    assert np.array_equal(trace.values["gain_db"], [[-90, -95.5], [-91, -99]])
    assert np.array_equal(trace.values["cpu_hz"], [[2e9, 3e9], [2.5e9, 4e9]])
    assert np.array_equal(trace.values["tau"], [[3, 1], [7, 2]])


def test_csv(csv_file):
    assert_full(read_trace(csv_file(FULL)))


@pytest.mark.parametrize(
    "text",
    [
        HEADER + "".join(reversed(FULL.removeprefix(HEADER).splitlines(keepends=True))),
        FULL.replace("\n", "\r\n"),
        FULL.replace(",", " , "),
        "\n" + FULL.replace("\n1,0", "\n\n1,0") + "\n\n",
        "tau,device,cpu_hz,round,gain_db\n2,1,4e9,1,-99\n3,0,2e9,0,-90\n1,1,3e9,0,-95.5\n7,0,2.5e9,1,-91\n",
        FULL.replace("-95.5", '"-95.5"'),
    ],
    ids=["rows reversed", "windows line ends", "spaces", "blank lines", "columns and rows permuted", "quotes"],
)
def test_csv_in_any_order_and_dress(csv_file, text):
    assert_full(read_trace(csv_file(text)))


def test_csv_with_a_byte_order_mark(csv_file):
    assert_full(read_trace(csv_file(FULL, encoding="utf-8-sig")))


def test_csv_and_npz_say_the_same(csv_file, npz_file):
    assert_full(read_trace(npz_file(**read_trace(csv_file(FULL)).values)))


def test_whole_numbers_in_npz_are_read(npz_file):
    assert np.array_equal(read_trace(npz_file(tau=np.array([[3, 1]], dtype=np.uint8))).values["tau"], [[3.0, 1.0]])


@pytest.mark.parametrize(("name", "values"), [("gain_db", [-5, -6, 0]), ("cpu_hz", [5, 6, 7]), ("tau", [5, 6, 7])])
def test_any_one_quantity_is_enough(csv_file, npz_file, name, values):
    rows = "".join(f"0,{device},{value}\n" for device, value in enumerate(values))
    from_csv = read_trace(csv_file(f"round,device,{name}\n{rows}"))
    from_npz = read_trace(npz_file(**{name: np.array([values], dtype=float)}))
    for trace in (from_csv, from_npz):
        assert list(trace.values) == [name]
        assert np.array_equal(trace.values[name], [values])


def test_a_gain_above_one_is_refused_in_a_trace_as_in_a_table(csv_file, npz_file, tmp_path):
    words = re.escape(
        "is not a power gain in dB, between -1000 and 0: a channel loses power (is the minus sign missing?)"
    )
    with pytest.raises(ValueError, match="line 2, column gain_db.*: 95 " + words):
        read_trace(csv_file("round,device,gain_db\n0,0,95\n"))
    with pytest.raises(ValueError, match="array gain_db, round 0, device 1: 0.1 " + words):
        read_trace(npz_file(gain_db=np.array([[-90.0, 0.1]])))
    table = tmp_path / "devices.csv"
    table.write_text("tau,compute_s,power_dbm,gain_db\n3,0.1,20,0.1\n")
    with pytest.raises(ValueError, match=words.replace(re.escape("is not"), "must be", 1)):
        read_table(table, Surroundings(1, -114.0, 1e-28, lambda distance_m: distance_m))


def test_rounds_and_repeating(csv_file):
    path = csv_file(FULL)
    trace = read_trace(path)
    assert np.array_equal(trace.round(1, repeat=False)["tau"], [7, 2])
    assert np.array_equal(trace.round(4, repeat=True)["tau"], [3, 1])
    with pytest.raises(
        ValueError, match=r"round 2 is not in the trace, which has rounds 0 to 1.*trace_repeat"
    ) as raised:
        trace.round(2, repeat=False)
    assert str(raised.value).startswith(f"{path}: ")


def test_what_a_trace_hands_out_cannot_be_written(csv_file):
    with pytest.raises(ValueError, match="read-only"):
        read_trace(csv_file(FULL)).round(0, repeat=False)["tau"][0] = 5.0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", ": is empty; its first line must name the columns: round, device, gain_db, cpu_hz, tau"),
        ("\n\n", ": is empty"),
        (HEADER, ": has a header and no rows"),
        ("device,tau\n0,1\n", ", line 1: column round is missing"),
        ("round,tau\n0,1\n", ", line 1: column device is missing"),
        ("round,device\n0,0\n", ", line 1: no column to read; give at least one of gain_db, cpu_hz, tau"),
        ("round,device,gain\n0,0,1\n", ", line 1: unknown column 'gain'; the columns are round, device, gain_db"),
        ("\nround,device,Tau\n0,0,1\n", ", line 2: unknown column 'Tau'"),
        ("round,device,tau,tau\n0,0,1,1\n", ", line 1: column tau is there twice"),
        (FULL.replace("2.5e9", "fast"), ", line 4, column cpu_hz: 'fast' is not a speed in Hz"),
        (FULL.replace("2.5e9", ""), ", line 4, column cpu_hz: an empty cell is not a speed in Hz"),
        (FULL.replace("-91", "nan"), ", line 4, column gain_db: nan is not a power gain in dB"),
        (FULL.replace("-91", "-inf"), ", line 4, column gain_db: -inf is not a power gain in dB"),
        (FULL.replace(",7\n", ",0\n"), ", line 4, column tau: 0 is not a whole number of local steps"),
        (FULL.replace(",7\n", ",2.5\n"), ", line 4, column tau: 2.5 is not a whole number of local steps"),
        (FULL.replace(",7\n", ",inf\n"), ", line 4, column tau: inf is not a whole number of local steps"),
        (FULL.replace("2.5e9", "0"), ", line 4, column cpu_hz: 0 is not a speed in Hz"),
        (FULL.replace("2.5e9", "-2e9"), ", line 4, column cpu_hz: -2e+09 is not a speed in Hz"),
        (FULL.replace("1,0,-91", "1.5,0,-91"), ", line 4, column round: 1.5 is not a whole number, counted from 0"),
        (FULL.replace("1,0,-91", "1,-1,-91"), ", line 4, column device: -1 is not a whole number, counted from 0"),
        (FULL.replace("1,0,-91", "1,nan,-91"), ", line 4, column device: nan is not a whole number"),
        (FULL.replace("1,0,-91", "one,0,-91"), ", line 4, column round: 'one' is not a whole number"),
        (FULL.replace("\n1,0", "\n\n\n1,0").replace(",7\n", ",x\n"), ", line 6, column tau: 'x' is not"),
        (FULL.replace("1,0,-91", "0,1,-91"), ", line 4, columns round, device: round 0, device 1 is on line 3 already"),
        (FULL.replace(",7\n", "\n"), ", line 4: has 4 cells, the first line has 5"),
        (FULL.replace(",7\n", ",7,8\n"), ", line 4: has 6 cells, the first line has 5"),
        (FULL.replace("1,0,-91,2.5e9,7\n", ""), ", line 4 is the last, and there is none for round 1, device 0"),
        (FULL.replace("1,1,-99,4e9,2\n", ""), ", line 4 is the last, and there is none for round 1, device 1"),
        (FULL.replace("1,1,-99", "9,1,-99"), "none for round 1, device 1; columns round, device must hold each pair"),
        ("round,device,tau\n1,1,3\n", "none for round 0, device 0"),  # counted from 1
        ("round,device,tau\n0,0,3\n0,9e15,3\n", "none for round 0, device 1"),
    ],
)
def test_bad_csv_names_file_line_and_column(csv_file, text, says):
    path = csv_file(text)
    with pytest.raises(ValueError, match=re.escape(says)) as raised:
        read_trace(path)
    assert str(raised.value).startswith(str(path))


def test_csv_that_is_no_text(csv_file):
    with pytest.raises(ValueError, match=r"trace\.csv: is not UTF-8 text"):
        read_trace(csv_file(FULL + "# ä", encoding="latin-1"))


def test_csv_with_a_cell_beyond_reason(csv_file):
    with pytest.raises(ValueError, match=r"trace\.csv, line 2: is not valid CSV"):
        read_trace(csv_file(HEADER + "0" * 200_000))


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({}, ": holds no array; give at least one of gain_db, cpu_hz, tau"),
        ({"gain": np.ones((1, 1))}, ": unknown array 'gain'; the arrays are gain_db, cpu_hz, tau"),
        ({"tau": np.ones(3)}, ", array tau: has shape (3,); it must be (rounds, devices)"),
        ({"tau": np.ones((0, 3))}, ", array tau: has shape (0, 3)"),
        ({"tau": np.ones((2, 3)), "cpu_hz": np.ones((2, 4))}, ", array cpu_hz: has shape (2, 4), array tau (2, 3)"),
        ({"tau": np.array([["3"]])}, ", array tau: holds <U1, not numbers"),
        ({"tau": np.array([[True]])}, ", array tau: holds bool, not numbers"),
        ({"tau": np.array([[3, None]])}, ", array tau: holds object, not numbers"),  # a pickle
        ({"tau": np.array([[1.0, 1.0], [0.5, 1.0]])}, ", array tau, round 1, device 0: 0.5 is not a whole number"),
        ({"cpu_hz": np.array([[1e9, 0.0]])}, ", array cpu_hz, round 0, device 1: 0 is not a speed in Hz"),
        ({"gain_db": np.array([[-90.0, np.nan]])}, ", array gain_db, round 0, device 1: nan is not a power gain in dB"),
    ],
)
def test_bad_npz_names_file_array_and_index(npz_file, arrays, says):
    path = npz_file(**arrays)
    with pytest.raises(ValueError, match=re.escape(says)) as raised:
        read_trace(path)
    assert str(raised.value).startswith(str(path))


@pytest.mark.parametrize("content", [b"", b"round,device,tau\n0,0,1\n", b"\x93NUMPY"])
def test_npz_that_is_no_zip(tmp_path, content):
    path = tmp_path / "trace.npz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is not an NPZ file") as raised:
        read_trace(path)
    assert str(raised.value).startswith(str(path))


def test_npz_with_a_damaged_array(npz_file):
    path = npz_file(tau=np.ones((20, 30)))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"trace\.npz, array tau: cannot be read \(Bad CRC"):
        read_trace(path)


def test_npz_with_a_member_that_is_no_array(tmp_path):
    path = tmp_path / "trace.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tau", b"1,2,3")
    with pytest.raises(ValueError, match=r"trace\.npz, array tau: holds bytes, not numbers"):
        read_trace(path)


@pytest.mark.parametrize("name", ["none.csv", "none.npz"])
def test_a_file_that_is_not_there(tmp_path, name):
    with pytest.raises(ValueError, match=rf"{name}: cannot be read \(No such file or directory\)"):
        read_trace(tmp_path / name)


def test_a_name_that_says_no_kind(tmp_path):
    with pytest.raises(ValueError, match=r"trace\.txt: a trace is a CSV, NPZ or MATLAB file; its name must end in"):
        read_trace(tmp_path / "trace.txt")


# --- NPZ files that somebody made to do harm ----------------------------------------------------------------------


def header(shape, dtype="<f8", version=(1, 0)):
    """The head of a .npy file that claims such an array."""
    text = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY" + bytes(version) + len(text).to_bytes(2 if version == (1, 0) else 4, "little") + text


def npz_of(path, content, name="tau.npy", method=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr(name, content)
    return path


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (
            header((10**9, 10**9)),
            r"array tau: has shape \(1000000000, 1000000000\), 1e\+18 values; there may be at most",
        ),
        (header((10**4, 10**4)), r"array tau: has shape \(10000, 10000\) by its header, but \d+ bytes; it is damaged"),
        (header((2, 2)) + b"\0" * 8, "array tau: has shape .* by its header, but"),
        (header((-1, -5)) + b"\0" * 40, r"has shape \(-1, -5\); it must be \(rounds, devices\)"),
        (header((1, 1), "|O") + b"cos\nsystem\n(S'boom'\ntR.", "array tau: holds object, not numbers"),
        (header((1, 1), "|V8") + b"\0" * 8, "array tau: holds .*V8.*, not numbers"),
        (header((1, 1), version=(2, 0)) + b"\0" * 8, "array tau: is written in an odd version"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + b" " * 1000, "array tau: is written in an odd version"),
        (b"\x93NUMPY\x01\x00\x00\x10" + b"(" * 4096, "array tau: cannot be read"),
        (b"\x93NUMPY\x01\x00\x05\x00{'a':", "array tau: cannot be read"),
        (b"\x93NUMPY\x01", "array tau: is written in an odd version|array tau: cannot be read"),
        (b"", "array tau: holds bytes, not numbers"),
    ],
)
def test_npz_whose_header_lies(tmp_path, content, says):
    refused(npz_of(tmp_path / "trace.npz", content), says)


def test_npz_that_swells_a_thousandfold(tmp_path):
    path = tmp_path / "trace.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("tau.npy", "w") as member:
        member.write(header((3000, 3000)))
        for _ in range(3000):
            member.write(b"\0" * 8 * 3000)
    assert path.stat().st_size < 1 << 20
    refused(path, r"array tau: is \d+ bytes that unpack to \d+, more than 300 times as many")


def test_npz_of_few_values_may_be_packed_well(tmp_path):
    np.savez_compressed(tmp_path / "trace.npz", tau=np.ones((1000, 1000)))
    assert read_trace(tmp_path / "trace.npz").values["tau"].sum() == 1e6


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_npz_packed_by_a_method_that_numpy_does_not_write(tmp_path, method):
    content = header((1, 1)) + np.float64(3).tobytes()
    refused(npz_of(tmp_path / "trace.npz", content, method=method), f"packed by method {method} of zip")


def test_npz_with_an_unknown_method_encryption_or_a_name_twice(tmp_path):
    sound = npz_of(tmp_path / "sound.npz", header((1, 1)) + np.float64(3).tobytes(), method=zipfile.ZIP_STORED)
    assert read_trace(sound).values["tau"] == 3.0
    content = sound.read_bytes()
    directory = content.index(b"PK\x01\x02")
    for name, at, value, says in (
        ("method", 10, b"\x63\x00", "packed by method 99"),
        ("locked", 8, b"\x01\x00", "array tau: cannot be read .*(encrypted|password)"),
        ("version", 6, b"\xff\x00", "is a damaged NPZ file|cannot be read"),
        ("offset", 42, b"\xff\xff\xff\x7f", "damaged|cannot be read"),
        ("length", 24, b"\xff\xff\xff\x7f", "has shape .* by its header, but"),
    ):
        path = tmp_path / f"{name}.npz"
        path.write_bytes(content[: directory + at] + value + content[directory + at + len(value) :])
        refused(path, says)
    with zipfile.ZipFile(tmp_path / "twice.npz", "w") as archive:
        for name in ("tau.npy", "tau"):
            archive.writestr(name, header((1, 1)) + np.float64(3).tobytes())
    refused(tmp_path / "twice.npz", "holds an array twice")


def test_npz_with_any_byte_changed_is_sound_or_refused(tmp_path):
    path = tmp_path / "trace.npz"
    np.savez_compressed(path, tau=np.arange(1.0, 7.0).reshape(2, 3))
    content = path.read_bytes()
    outcomes = []
    for at in range(len(content)):
        for value in (0x00, 0xFF, content[at] ^ 0x10):
            path.write_bytes(content[:at] + bytes([value]) + content[at + 1 :])
            try:
                outcomes.append(read_trace(path).values["tau"].tolist())
            except ValueError as error:
                outcomes.append(str(error).startswith(str(path)))
    assert all(outcome in (True, [[1, 2, 3], [4, 5, 6]]) for outcome in outcomes)
    assert outcomes.count(True) > len(outcomes) // 2
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(ValueError, match=re.escape(str(path))):
            read_trace(path)


def test_npz_in_fortran_order_and_other_types_is_read(npz_file):
    values = np.array([[3, 1, 4], [1, 5, 9]])
    for stored in (np.asfortranarray(values, dtype=np.float64), values.astype(">i4"), values.astype(np.float16)):
        assert np.array_equal(read_trace(npz_file(tau=stored)).values["tau"], values)


@pytest.mark.parametrize("ending", ["csv", "npz"])
def test_a_trace_that_is_no_regular_file(tmp_path, ending):
    os.mkfifo(tmp_path / f"pipe.{ending}")
    (tmp_path / f"zero.{ending}").symlink_to("/dev/zero")
    (tmp_path / f"folder.{ending}").mkdir()
    with (tmp_path / f"huge.{ending}").open("wb") as file:
        file.truncate(10 << 30)
    for name, says in (("pipe", "a named pipe"), ("zero", "a device"), ("folder", "a folder"), ("huge", "at most")):
        refused(tmp_path / f"{name}.{ending}", says)
