"""Pipes, sockets, devices, links and huge or deeply nested files in a run folder: refused in words, at once."""

import json
import os
import resource
import signal
import socket
from pathlib import Path

import pytest

from flare.records import RunFolder
from flare.records.run import read_run
from tests.hostile import flare
from tests.made_up_runs import settings, write_run
from tests.record_writer import CONFIG
from tests.run_folders import assert_restored, checkpoint_names, written

ROOT = Path(__file__).resolve().parents[2]
FILES = ("manifest.json", "config.toml", "rounds.jsonl")
TERABYTE = 1 << 40


@pytest.fixture
def path(tmp_path):
    return written(tmp_path / "run", 8)


@pytest.fixture(autouse=True)
def at_once():
    """Nothing may wait, and nothing may fill the memory."""

    def too_long(*_):
        raise TimeoutError("it hangs")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def little_memory():
    """No more than half a gigabyte beside what is there already."""
    now = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + (512 << 20), hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def make_socket(at):
    here = os.getcwd()
    os.chdir(at.parent)  # the name of a socket has to be short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(at.name)
    finally:
        os.chdir(here)


def make_link(at):
    target = at.parent.parent / "target"
    at.rename(target) if at.exists() else target.write_bytes(b"mine")
    at.symlink_to(target)


KINDS = {
    "a named pipe": os.mkfifo,
    "a socket": make_socket,
    "a link": make_link,
    "a folder": os.mkdir,
}


def put(kind, at):
    if kind != "a link":
        at.unlink(missing_ok=True)
    KINDS[kind](at)


def contents(folder):
    return {each: each.read_bytes() for each in folder.rglob("*") if each.is_file() and not each.is_symlink()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FILES)
def test_what_is_no_regular_file_is_refused_and_nothing_changed(path, name, kind):
    put(kind, path / name)
    before = contents(path.parent)
    for call in (
        lambda: RunFolder.open(path).restore(),
        lambda: RunFolder.open(path).records(),
        lambda: read_run(path),
    ):
        with pytest.raises(ValueError, match=f"{name} is {kind}; a run folder holds regular files only"):
            call()
    assert contents(path.parent) == before


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "a folder"])
@pytest.mark.parametrize("name", ["config.toml", "rounds.jsonl"])
def test_a_run_that_is_written_over_is_not_written_through_a_link(path, name, kind):
    put(kind, path / name)
    target = path.parent / "target"
    before = target.read_bytes() if target.exists() else None
    with RunFolder.create(path, CONFIG, force=True) as folder:
        folder.append({"round": 0})
        folder.finish("finished")
    assert not (path / name).is_symlink()
    assert (path / name).is_file()
    assert (target.read_bytes() if target.exists() else None) == before
    assert RunFolder.open(path).records() == [{"round": 0}]


@pytest.mark.parametrize("kind", KINDS)
def test_the_lock_is_a_regular_file_or_the_folder_is_refused(path, kind):
    put(kind, path / ".lock")
    for call in (RunFolder.open(path).restore, lambda: RunFolder.create(path, CONFIG, force=True)):
        with pytest.raises(ValueError, match=rf"\.lock is {kind}; a run folder holds regular files only"):
            call()
    assert len(RunFolder.open(path).records()) == 8


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_that_is_no_regular_file_is_set_aside(path, caplog, kind):
    put(kind, path / "checkpoints" / "round-000006.safetensors")
    assert_restored(path, 3)
    assert f"round-000006.safetensors is {kind}" in caplog.text
    assert checkpoint_names(path) == ["round-000003.safetensors", "round-000006.safetensors.aside-1"]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "a folder"])
@pytest.mark.parametrize("name", ["manifest.json", "checkpoints/round-000009.safetensors"])
def test_nothing_is_written_through_what_stands_where_a_file_is_gathered(path, name, kind):
    at = (path / name).with_name(f".{Path(name).name}.{os.getpid()}.part")
    with RunFolder.open(path) as folder:
        restored = folder.restore()
        put(kind, at)
        for number in range(6, 9):
            folder.append({"round": number})
        folder.checkpoint(type(restored)(9, restored.tensors, {}))
        folder.finish("finished")
    target = at.parent.parent / "target"
    assert target.exists() == (kind == "a link")
    assert kind != "a link" or target.read_bytes() == b"mine"
    assert not os.path.lexists(at)
    assert RunFolder.open(path).manifest["status"] == "finished"
    with RunFolder.open(path) as folder:
        assert folder.restore().rounds_done == 9


def make_huge(at):
    os.truncate(at, TERABYTE)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("manifest.json", "manifest.json: has more than the 4194304 bytes"),
        ("config.toml", f"config.toml: has {TERABYTE} bytes; such a file may have at most 16777216"),
        ("rounds.jsonl", "line 9 is damaged: it is longer than"),
    ],
)
def test_a_huge_file_is_refused_unread(path, little_memory, name, message):
    whole = write_run(path.with_name("whole"), settings(), rounds=8)  # rounds that a reader of runs takes in
    for folder in (path, whole):
        make_huge(folder / name)
    for call in (lambda: RunFolder.open(path).records(), lambda: read_run(whole)):
        with pytest.raises(ValueError, match=message):
            call()


def test_huge_records_are_kept_aside_without_room_for_them(path, caplog, little_memory):
    make_huge(path / "rounds.jsonl")
    assert_restored(path, 6)
    assert "the records as they were are kept in rounds.jsonl.aside-1" in caplog.text
    kept = os.stat(path / "rounds.jsonl.aside-1")
    assert kept.st_size >= TERABYTE
    assert kept.st_blocks < 1 << 20
    assert os.stat(path / "rounds.jsonl").st_size < 1 << 20


@pytest.mark.parametrize("damage", [b"", b"{}\n"])
def test_a_file_with_another_name_is_not_written_to(path, damage):
    """As a backup made of hard links has (cp -al)."""
    records, backup = path / "rounds.jsonl", path.with_name("backup")
    records.write_bytes(records.read_bytes() + damage)
    os.link(records, backup)
    before = backup.read_bytes()
    with RunFolder.open(path) as folder:
        folder.restore()
        folder.restore()  # the second time its own file is there
        folder.append({"round": 6})
    assert backup.read_bytes() == before
    assert records.read_bytes() != before
    assert len(RunFolder.open(path).records()) == 7


def test_a_huge_checkpoint_is_set_aside_unread(path, caplog, little_memory):
    make_huge(path / "checkpoints" / "round-000006.safetensors")
    assert_restored(path, 3)
    assert f"it has {TERABYTE} bytes, its header says" in caplog.text


@pytest.mark.parametrize("length", [1 << 62, 99_000_000, 0])
def test_a_checkpoint_that_claims_much_is_set_aside_unread(path, caplog, little_memory, length):
    at = path / "checkpoints" / "round-000006.safetensors"
    at.write_bytes(length.to_bytes(8, "little") + b"{")
    os.truncate(at, 1 << 33)
    assert_restored(path, 3)
    assert "round-000006.safetensors cannot be used: it is not a checkpoint" in caplog.text


def test_a_checkpoint_of_claimed_zeros_is_not_read_into_memory(path, caplog, little_memory):
    header = {"__metadata__": {"flare": json.dumps({"sha256": "0" * 64}, separators=(",", ":"))}}
    header["weights"] = {"dtype": "F32", "shape": [136 << 20], "data_offsets": [0, 544 << 20]}
    text = json.dumps(header, separators=(",", ":")).encode()
    at = path / "checkpoints" / "round-000006.safetensors"
    at.write_bytes(len(text).to_bytes(8, "little") + text)
    os.truncate(at, 8 + len(text) + (544 << 20))
    assert_restored(path, 3)
    assert "its checksum is wrong" in caplog.text


DEEP = b"[" * 200_000


def test_a_deeply_nested_manifest_is_refused(path):
    (path / "manifest.json").write_bytes(b'{"format":"flare-run","a":' + DEEP)
    with pytest.raises(ValueError, match=r"manifest.json is damaged \(its brackets are nested too deeply\)"):
        RunFolder.open(path)


def test_a_deeply_nested_configuration_is_refused(path):
    (path / "config.toml").write_bytes(b"seed = " + DEEP)
    with pytest.raises(ValueError, match=r"config.toml: is not valid TOML: its brackets are nested too deep"):
        RunFolder.open(path)


def test_a_deeply_nested_record_is_refused(tmp_path):
    old = ROOT / "tests" / "golden" / "before" / "run-format-1"
    for each in FILES:
        (tmp_path / each).write_bytes((old / each).read_bytes())
    (tmp_path / "rounds.jsonl").write_bytes(b'{"round":0,"a":' + DEEP + b"\n")
    with pytest.raises(ValueError, match="line 1 is damaged: its brackets are nested too deeply"):
        RunFolder.open(tmp_path).records()


def test_a_deeply_nested_header_of_a_checkpoint_is_refused(path, caplog):
    at = path / "checkpoints" / "round-000006.safetensors"
    at.write_bytes(len(DEEP).to_bytes(8, "little") + DEEP)
    assert_restored(path, 3)
    assert "its header cannot be read" in caplog.text


@pytest.mark.parametrize("name", FILES)
def test_a_device_is_refused(path, name):
    (path / name).unlink()
    try:
        os.mknod(path / name, 0o20666, os.makedev(1, 5))  # /dev/zero
    except PermissionError:
        pytest.skip("devices cannot be made here")
    with pytest.raises(ValueError, match=f"{name} is a device"):
        RunFolder.open(path).records()


@pytest.mark.parametrize("entry", [{"config_sha256": 3}, {"records": []}, {"identity": {"data": 1}}])
def test_an_entry_of_another_type_is_damage(path, entry):
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps(manifest | entry))
    with pytest.raises(
        ValueError, match=f'manifest.json is damaged: its "{next(iter(entry))}" is not what flare writes'
    ):
        RunFolder.open(path)


@pytest.mark.parametrize("name", FILES)
def test_the_commands_end_with_2_and_one_line(tmp_path, capsys, name):
    run = write_run(tmp_path / "run", settings(), rounds=3)
    (run / name).unlink()
    os.mkfifo(run / name)
    for words in (["report", run, "--out", tmp_path / "page.html"], ["run", "--resume", run]):
        code, _, said = flare(capsys, *map(str, words))
        assert code == 2, said
        assert f"{name} is a named pipe" in said
        assert len(said.splitlines()) == 1
