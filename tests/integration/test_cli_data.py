"""`flare data` as a user runs it, offline, with small made-up files in the place of the real ones."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flare.cli.data import data_app
from tests import made_up_data

BAD_INPUT = 2


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    return made_up_data.use(monkeypatch, tmp_path)


def data(*arguments: str, expect: int = 0) -> str:
    """Standard output of a call, or its one error line."""
    done = CliRunner().invoke(data_app, list(arguments))
    assert done.exit_code == expect, done.output
    if expect == 0:
        assert done.stderr == ""
        return done.stdout
    assert done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    return lines[0]


def test_the_list_says_what_is_cached(cache: Path) -> None:
    made_up_data.write(cache / "mnist", "mnist")
    made_up_data.write(cache / "cifar10", "cifar10")
    (cache / "cifar10" / "test_batch.bin").write_bytes(b"damaged")
    lines = {line.split()[0]: line for line in data("list").splitlines() if line.strip()}
    assert "needs no files" in lines["digits"]
    assert "needs no files" in lines["synthetic"]
    assert lines["mnist"].split()[-1] == "cached"
    assert lines["fashion-mnist"].rstrip().endswith("not cached")
    assert lines["cifar10"].split()[-1] == "damaged"
    assert str(cache) in data("list")


def test_fetch_takes_the_files_of_a_folder(cache: Path, tmp_path: Path) -> None:
    made_up_data.write(tmp_path / "own", "cifar10", zipped=True)
    said = data("fetch", "cifar10", "--data-dir", str(tmp_path / "own"))
    assert "6 files, each checked" in said
    assert (cache / "cifar10" / "test_batch.bin").read_bytes() == made_up_data.FILES["cifar10"]["test_batch.bin"]
    assert "20 samples are for the test" in data("show", "--name", "cifar10", "--devices", "4")
    assert "nothing to fetch" in data("fetch", "digits")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("fetch", "mnist"), "Put the files train-images-idx3-ubyte"),
        (("show", "--name", "mnist"), "--data-dir"),
        (("fetch", "mnits"), "did you mean 'mnist'"),
        (("fetch", "mnist", "--data-dir", "no/such/folder"), "which is no folder"),
        (("show", "--name", "digit"), "did you mean 'digits'"),
        (("show", "--devices", "1438"), "1438 devices cannot share the 1437 training samples"),
        (("show", "--partition", "shards", "--devices", "1000"), "need 2000 shards"),
        (("show", "--partition", "natural"), "does not come divided"),
        (("show", "--alpha", "0"), "data.dirichlet_alpha is 0"),
        (("show", "--plot", "who.gif"), "must end in .png"),
    ],
)
def test_bad_input_is_one_clear_error(cache: Path, arguments: tuple[str, ...], says: str) -> None:
    assert says in data(*arguments, expect=BAD_INPUT)


def test_a_damaged_file_in_the_data_folder_is_named_and_left_alone(cache: Path, tmp_path: Path) -> None:
    own = made_up_data.write(tmp_path / "own", "mnist")
    damaged = own / "t10k-images-idx3-ubyte"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"!")
    for command in (("fetch", "mnist"), ("show", "--name", "mnist")):
        assert str(damaged) in data(*command, "--data-dir", str(own), expect=BAD_INPUT)
    assert damaged.read_bytes().endswith(b"!")
    assert not cache.exists()


@pytest.mark.parametrize("partition", ["iid", "shards", "dirichlet", "quantity"])
def test_who_holds_what_adds_up(cache: Path, partition: str) -> None:
    rows = list(csv.reader(io.StringIO(data("show", "--partition", partition, "--devices", "7", "--csv"))))
    assert rows[0] == ["device", "samples", *(f"label_{label}" for label in range(10))]
    numbers = [[int(value) for value in row] for row in rows[1:]]
    assert [row[0] for row in numbers] == list(range(7))
    assert all(row[1] == sum(row[2:]) > 0 for row in numbers)
    assert sum(row[1] for row in numbers) == 1437


def test_the_table_shows_every_device_and_the_sums(cache: Path, tmp_path: Path) -> None:
    picture = tmp_path / "who.png"
    out = data("show", "--name", "synthetic", "--partition", "natural", "--devices", "3", "--plot", str(picture))
    assert "3 devices hold" in out
    assert f"The picture is in {picture}." in out
    assert picture.stat().st_size > 1000
    first = [line.split()[0] for line in out.splitlines() if line.strip()]
    assert {"0", "1", "2", "all"} <= set(first)


def test_a_long_table_is_cut_and_says_so(cache: Path) -> None:
    assert "and 40 devices more; --csv has every one" in data("show", "--devices", "100")


def test_the_seed_makes_the_division(cache: Path) -> None:
    asked = ("show", "--partition", "dirichlet", "--csv", "--devices", "5")
    assert data(*asked, "--seed", "3") == data(*asked, "--seed", "3")
    assert data(*asked, "--seed", "3") != data(*asked, "--seed", "4")
