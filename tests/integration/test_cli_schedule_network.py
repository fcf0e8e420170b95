"""`flare schedule` as a network engineer asks: who must, who may, in whole blocks, each device its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.hostile import flare

DEVICES = str(Path(__file__).resolve().parents[2] / "examples" / "network.csv")
BAND = ("--bandwidth", "20MHz")


def answered(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    code, out, err = flare(capsys, "schedule", DEVICES, *BAND, *arguments, "--json")
    assert (code, err) == (0, "")
    return dict(json.loads(out))


def senders(answer: dict[str, Any]) -> set[str]:
    return {device["device"] for device in answer["devices"] if device["selected"]}


def test_columns_are_those_of_the_devices(capsys: pytest.CaptureFixture[str]) -> None:
    answer = answered(capsys)
    devices = {device["device"]: device for device in answer["devices"]}
    assert answer["deadline_s"] == 0.5  # the latest of the devices' own
    assert answer["payload_bits"] is None
    assert {name: devices["camera-2"][name] for name in ("weight", "payload_bits", "deadline_s")} == {
        "weight": 2.0,
        "payload_bits": 1e7,
        "deadline_s": 0.3,
    }
    assert answer["status"] == "optimal"
    for name in senders(answer):
        assert devices[name]["finish_s"] <= devices[name]["deadline_s"] * (1.0 + 1e-9)
    earlier = answered(capsys, "--deadline", "200ms")
    assert {device["deadline_s"] for device in earlier["devices"]} == {0.2}


@pytest.mark.parametrize(
    ("payload_bits", "deadline_s", "given", "warnings"),
    [
        ("1e6", "500", ("--deadline", "400ms"), [
            "one device has more than 4 s in deadline_s, such as 500 of 'a'; it is read as seconds, and changes "
            "nothing where the round ends after 0.4 s"
        ]),
        ("1e6", "500", (), [
            "one device has more than 60 s in deadline_s, such as 500 of 'a'; it is read as seconds; check the unit "
            "of the column"
        ]),
        ("10", "0.3", (), [
            "one device has less than 1000 bit in payload_bits, such as 10 of 'a'; it is read as bit; check the unit "
            "of the column"
        ]),
        ("1e6", "3", ("--deadline", "400ms"), []),
        ("1000", "60", (), []),
        ("1e6", "70", ("--deadline", "100s"), []),
    ],
)  # fmt: skip
def test_numbers_that_are_perhaps_in_another_unit_are_taken_with_a_warning(
    payload_bits: str,
    deadline_s: str,
    given: tuple[str, ...],
    warnings: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = tmp_path / "devices.csv"
    table.write_text(
        "name,tau,compute_s,snr_hz,payload_bits,deadline_s\n"
        f"a,3,0.1,1e10,{payload_bits},{deadline_s}\nb,3,0.1,1e10,1e6,0.3\n"
    )
    code, out, err = flare(capsys, "schedule", str(table), *BAND, *given, "--json")
    assert code == 0
    assert json.loads(out)["devices"][0]["payload_bits"] == float(payload_bits)
    assert err.splitlines() == [f"warning: {table}: {words}" for words in warnings]


def test_must_never_and_the_limit_are_kept_and_told(capsys: pytest.CaptureFixture[str]) -> None:
    answer = answered(capsys, "--must", "meter-1, meter-2", "--never", "gateway-1", "--max-devices", "4")
    assert {"meter-1", "meter-2"} <= senders(answer)
    assert "gateway-1" not in senders(answer)
    assert answer["num_selected"] <= 4
    assert (answer["must"], answer["never"], answer["max_devices"]) == (["meter-1", "meter-2"], ["gateway-1"], 4)
    reasons = {device["device"]: device["reason"] for device in answer["devices"]}
    assert reasons["gateway-1"] == "must not send"
    assert answered(capsys, "--must", "0,1", "--never", "4", "--max-devices", "4") == answer
    assert answered(capsys, "--must", "0,1", "--never", "4", "-o", "max_devices=4") == answer


def test_an_option_that_is_repeated_adds_to_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    together = answered(capsys, "--must", "meter-1,meter-2")
    assert answered(capsys, "--must", "meter-1", "--must", "meter-2") == together
    assert {"meter-1", "meter-2"} <= senders(together)
    assert answered(capsys, "--never", "meter-1", "--never", "meter-2")["never"] == ["meter-1", "meter-2"]


def test_the_limit_holds_for_the_bound_of_every_policy(capsys: pytest.CaptureFixture[str]) -> None:
    limited = answered(capsys, "--max-devices", "1", "--policy", "all")
    best = answered(capsys, "--max-devices", "1")
    assert limited["lower_bound"] == best["objective"]


def test_blocks_are_whole(capsys: pytest.CaptureFixture[str]) -> None:
    answer = answered(capsys, "--block", "180kHz")
    assert answer["block_hz"] == 180e3
    for device in answer["devices"]:
        blocks = device["bandwidth_hz"] / 180e3
        assert abs(blocks - round(blocks)) < 1e-9
    assert sum(device["bandwidth_hz"] for device in answer["devices"]) == pytest.approx(111 * 180e3)
    code, out, _ = flare(capsys, "schedule", "--cell", "paper", "--set", "wireless.block_hz=180kHz", "--json")
    assert (code, json.loads(out)["block_hz"]) == (0, 180e3)


def test_a_comparison_says_why_nobody_sends(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = flare(capsys, "schedule", DEVICES, *BAND, "--must", "phone-2", "--deadline", "110ms", "--compare")
    assert code == 0
    assert "Nobody sends: device phone-2 must send and cannot: an update of 5 Mbit takes it" in " ".join(out.split())


def test_json_says_why_nobody_sends(capsys: pytest.CaptureFixture[str]) -> None:
    answer = answered(capsys, "--must", "gateway-1,gateway-2,camera-1,camera-2,phone-1")
    assert (answer["num_selected"], answer["status"]) == (0, "infeasible")
    assert "together need" in answer["why_nobody"]
    assert "gateway-1" in answer["why_nobody"]
    assert answered(capsys)["why_nobody"] is None


def test_devices_that_cannot_together_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    must = ("--must", "gateway-1,gateway-2,camera-1")
    code, out, _ = flare(capsys, "schedule", DEVICES, *BAND, "--deadline", "400ms", *must)
    assert code == 0
    said = " ".join(out.split())
    assert "the devices that must send (camera-1, gateway-1, gateway-2) together need" in said
    assert "MHz of 20 MHz to meet the deadline of 400 ms" in said
    assert "held up by those who must send" in said


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ("--must", "phone-3"),
            "--must: there is no device 'phone-3'; did you mean 'phone-2'? The devices are meter-1,",
        ),
        (("--never", "8"), "--never: there is no device '8'"),
        (("--must", "phone-1,6"), "--must: device '6' is listed twice; list it once"),
        (("--must", ""), "--must: there is no device ''"),
        (
            ("--must", "phone-1", "--never", "6"),
            "device 'phone-1' is in --must and in --never; leave it in one of them",
        ),
        (("--must", "0,1,2", "--max-devices", "2"), "--must lists 3 devices, and --max-devices is 2"),
        (("--max-devices", "0"), "max_devices is 0; it must be a whole number of at least 1"),
        (("--max-devices", "3", "-o", "max_devices=4"), "max_devices is given as 3 and as 4; give it once"),
        (("--block", "30MHz"), "block_hz is 3e+07, more than the whole band of 2e+07 Hz"),
        (("--block", "wide"), "--block: 'wide' is not a bandwidth"),
        (("--payload", "1Mbit"), "--payload and the column 'payload_bits' say the same twice"),
    ],
)
def test_what_contradicts_itself_is_one_error(
    arguments: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = flare(capsys, "schedule", DEVICES, *BAND, *arguments)
    assert (code, out) == (2, "")
    assert says in " ".join(err.split())


def test_a_cell_of_the_table_that_is_out_of_range_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "devices.csv"
    table.write_text("tau,compute_s,snr_hz,weight\n2,0.1,1e9,1\n2,0.1,1e9,0\n")
    code, _, err = flare(capsys, "schedule", str(table), *BAND, "--deadline", "1s", "--payload", "1Mbit")
    assert code == 2
    assert "line 3, column weight: 0 is out of range; weight must be greater than 0" in " ".join(err.split())


def test_settings_of_the_uplink_are_said_to_play_no_part(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = flare(capsys, "schedule", "--cell", "paper", "--set", "uplink.codec=qsgd")
    assert code == 0
    assert "[uplink] is of runs, and plays no part here: give --payload" in err
    assert flare(capsys, "schedule", "--cell", "paper")[2] == ""
