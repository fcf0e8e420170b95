"""The testbed without a network: frames and moments by hand, and the numbers that follow from them."""

from __future__ import annotations

import csv
import io
import math
import re
import runpy
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flare.rounds import RoundRecord
from flare.testbed.capture import FRAME, Frames, Segment, parsed, read_frames
from flare.testbed.drawing import scatter_figure
from flare.testbed.measured import Delivery, OnLink, deliveries, on_link, requests
from flare.testbed.moments import FETCHED, SENT, TRAINED, Moment, note, read_moments
from flare.testbed.page import COLUMNS, as_csv, as_markdown, write_results
from flare.testbed.run import guard_for
from flare.testbed.settings import CALIBRATION, Settings
from flare.testbed.summary import NET_ROUND, ROUND, Spread, as_predicted, policy_result, summarise

ROOT = Path(__file__).resolve().parents[2]
UP, DOWN = 1, 0


def frames(*rows: tuple[float, int, int, int, int]) -> Frames:
    """Frames of device 0: when, in seconds, up or down, port, bytes of the frame, bytes that TCP carries."""
    made = np.zeros(len(rows), dtype=FRAME)
    for each, (time_s, up, port, frame_bytes, tcp_bytes) in zip(made, rows, strict=True):
        each["time_ns"], each["up"], each["port"] = round(1e9 * time_s), up, port
        each["frame_bytes"], each["tcp_bytes"] = frame_bytes, tcp_bytes
    return made


UPLOAD = frames(
    (0.5, UP, 7, 666, 600),  # before the window
    (1.1, UP, 7, 1066, 1000),  # Flower announces its message
    (1.2, DOWN, 7, 266, 200),
    (1.3, UP, 7, 1514, 1448),  # the update: two requests on two connections
    (1.4, UP, 8, 1514, 1448),
    (1.5, DOWN, 8, 66, 0),  # an acknowledgement is no answer
    (1.6, UP, 7, 3066, 3000),
    (1.7, UP, 8, 4066, 4000),
    (1.8, DOWN, 7, 266, 200),
    (1.9, UP, 7, 666, 600),  # a small object, while the other connection is still at it
    (2.0, UP, 8, 566, 500),
    (2.1, DOWN, 8, 266, 200),
    (2.2, UP, 8, 766, 700),  # and one after
    (9.0, UP, 8, 5066, 5000),  # after the window
)


def test_a_request_is_what_a_connection_carries_between_two_answers() -> None:
    found = sorted((each.first_ns, each.last_ns, each.tcp_bytes) for each in requests(UPLOAD[1:-1]))
    by_hand = [(1.1, 1.1, 1000), (1.3, 1.6, 4448), (1.4, 2.0, 5948), (1.9, 1.9, 600), (2.2, 2.2, 700)]
    assert found == [(round(1e9 * a), round(1e9 * b), size) for a, b, size in by_hand]


def test_the_upload_lasts_from_the_first_frame_of_an_array_to_the_last() -> None:
    seen = on_link(UPLOAD, 1.0, 3.0, 2e5)
    assert (seen.first_s, seen.last_s) == pytest.approx((1.3, 2.0))
    assert seen.frames == 6
    assert seen.frame_bytes == 1514 + 1514 + 3066 + 4066 + 666 + 566
    assert seen.tcp_bytes == seen.frame_bytes - 6 * 66
    assert seen.other_bytes == 1066 + 766
    # Six frames 0.1 to 0.2 s after one another, of which those of 3,066 and 4,066 bytes take 0.12264 and 0.16264 s.
    assert seen.pauses_s == pytest.approx((0.2 - 0.12264) + (0.2 - 8 * 666 / 2e5) + (0.1 - 8 * 566 / 2e5))


def test_where_no_array_was_on_the_link_nothing_was_seen() -> None:
    assert math.isnan(on_link(UPLOAD, 2.05, 3.0, 2e5).first_s)
    assert math.isnan(on_link(UPLOAD[:0], 0.0, 3.0, 2e5).first_s)


def tcp_frame(carried: int, ip_options: int = 0, tcp_options: int = 12) -> bytes:
    ip_bytes, tcp_bytes = 20 + ip_options, 20 + tcp_options
    ethernet = bytes(12) + struct.pack("!H", 0x0800)
    ip = struct.pack("!BBHIBBH", 0x40 | ip_bytes // 4, 0, ip_bytes + tcp_bytes + carried, 0, 64, 6, 0) + bytes(8)
    tcp = struct.pack("!HHIIBB", 41000, 8000, 0, 0, (tcp_bytes // 4) << 4, 0x18) + bytes(6)
    return ethernet + ip + bytes(ip_options) + tcp + bytes(tcp_options) + bytes(carried)


@pytest.mark.parametrize("options", [(0, 12), (0, 0), (40, 40)])
@pytest.mark.parametrize("carried", [0, 1, 1448])
def test_the_headers_of_a_frame(carried: int, options: tuple[int, int]) -> None:
    frame = tcp_frame(carried, *options)
    assert parsed(frame[:134]) == Segment(41000, 8000, len(frame), carried)


def test_what_is_no_tcp_is_left_out() -> None:
    frame = tcp_frame(100)
    assert parsed(frame[:12] + b"\x86\xdd" + frame[14:]) is None  # IPv6
    assert parsed(frame[:23] + b"\x11" + frame[24:]) is None  # UDP
    assert parsed(frame[:40]) is None
    assert parsed(b"") is None


def test_a_file_of_frames_that_was_cut(tmp_path: Path) -> None:
    (tmp_path / "frames.bin").write_bytes(UPLOAD[::-1].tobytes()[:-3])
    assert len(read_frames(tmp_path / "frames.bin")) == len(UPLOAD) - 1
    assert np.all(np.diff(read_frames(tmp_path / "frames.bin")["time_ns"].astype(np.int64)) > 0)


def record(*, selected: list[int], sent: list[int], index: int = 0) -> RoundRecord:
    many = len(selected)
    return RoundRecord(
        round=index, status="feasible", available=many, selected=selected, tau=[1.0] * many, tau_bar=1.0,
        lr=[0.1] * many, bandwidth_hz=[1e5] * many, compute_s=[0.5] * many, upload_s=[0.4] * many, latency_s=0.9,
        deadline_s=2.0, gamma=10.0, smoothness=None, clock_s=1.0, compute_energy_j=[0.0] * many,
        upload_energy_j=[0.0] * many, objective=1.0, lower_bound=None, sent=sent, payload_bits=[80_000.0] * len(sent),
    )  # fmt: skip


MOMENTS = [
    Moment(SENT, "cm", 0, 0, 0.2),
    Moment(TRAINED, "cm", 0, 0, 1.0, began_s=0.49, busy_s=0.1),
    Moment(FETCHED, "cm", 0, 0, 2.3),
    Moment(SENT, "cm", 0, 1, 0.2),
]


def delivery() -> Delivery:
    (found,) = deliveries("cm", [record(selected=[0], sent=[0])], MOMENTS, UPLOAD)
    return found


def test_the_times_of_a_device_add_up() -> None:
    """By hand: 10,000 bytes in 0.4 s are 200 kbit/s; 1,392 bytes beside them take 0.05568 s."""
    found = delivery()
    assert found.rate_bps == pytest.approx(2e5)
    assert found.delivery_s == pytest.approx(0.29)
    assert found.measured_compute_s == pytest.approx(0.51)
    assert found.hand_over_s == pytest.approx(0.3)
    assert found.measured_upload_s == pytest.approx(0.7)
    assert found.fetch_s == pytest.approx(0.3)
    assert found.protocol_s == pytest.approx(8 * 1392 / 2e5)
    assert found.net_upload_s == pytest.approx(0.7 - 8 * 1392 / 2e5)
    assert found.measured_finish_s == pytest.approx(1.81)
    parts = found.measured_compute_s + found.hand_over_s + found.measured_upload_s + found.fetch_s
    assert found.measured_finish_s == pytest.approx(parts)
    assert found.net_finish_s == pytest.approx(found.measured_compute_s + found.net_upload_s)
    assert found.late_s == pytest.approx(1.81 - 0.9)
    assert not found.missed


def test_an_update_that_did_not_come_is_missed() -> None:
    came, lost = deliveries("cm", [record(selected=[0, 1], sent=[0])], MOMENTS, UPLOAD)
    assert (came.missed, lost.missed) == (False, True)
    assert math.isnan(lost.measured_finish_s)
    refused = deliveries("cm", [record(selected=[0], sent=[])], MOMENTS, UPLOAD)
    assert refused[0].missed


def made(run: str, index: int, device: int, predicted_s: float, *, error: float = 0.0, late_s: float = 0.0) -> Delivery:
    """An update of 1 kB that takes half of the predicted time to compute, and errs by a share of its upload."""
    upload_s = 0.5 * predicted_s
    link = OnLink(
        first_s=upload_s, last_s=upload_s + (1.0 + error) * upload_s, frames=1, frame_bytes=1000, tcp_bytes=1000,
        other_bytes=0,
    )  # fmt: skip
    return Delivery(
        run, index, device, 1e5, 8000.0, 0.5 * predicted_s, upload_s, 2.0, sent_s=0.0, began_s=0.0,
        trained_s=0.5 * predicted_s, fetched_s=link.last_s + late_s, busy_s=0.1, link=link,
    )  # fmt: skip


def test_a_policy_is_as_slow_as_its_last_devices() -> None:
    those = [made("cm", 0, 0, 1.0), made("cm", 0, 1, 1.6, late_s=0.5), made("cm", 2, 0, 1.2)]
    found = policy_result("cm", those)
    assert (found.rounds, found.scheduled, found.in_time, found.missed) == (2, 1.5, 1.0, 1)
    assert (found.predicted_s, found.measured_s, found.net_s) == pytest.approx((1.4, (2.1 + 1.2) / 2, 1.4))


@pytest.mark.parametrize("turned", [False, True])
def test_an_update_that_never_came_makes_its_round_infinite_in_any_order(turned: bool) -> None:
    lost = replace(made("cm", 3, 1, 1.6), fetched_s=math.nan, link=OnLink(math.nan, math.nan, 0, 0, 0, 0))
    third = [made("cm", 3, 0, 1.0), lost][:: -1 if turned else 1]
    summary = summarise({"cm": [made("cm", 0, 0, 1.0), *third]})
    (found,) = summary.policies
    assert (found.measured_s, found.net_s, found.incomplete, found.missed) == (math.inf, math.inf, (3,), 1)
    assert found.predicted_s == pytest.approx(1.3)
    for name in (ROUND, NET_ROUND, "upload", "finish"):
        assert summary.errors[name].greatest == summary.errors[name].high == math.inf
    assert summary.errors["finish"].median == pytest.approx(0.0)
    words = "cm: 1 round with an update that never came, which counts as infinitely late (4)."
    assert words in as_markdown(summary)
    uploads, rounds = scatter_figure({"cm": third}).axes
    assert uploads.get_title(loc="left") == "Upload of a device (1 never came)"
    assert rounds.get_title(loc="left") == "Round (1 never ended)"


def test_errors_are_shares_of_what_was_predicted() -> None:
    those = [made("cm", 0, 0, 1.0, error=0.1), made("cm", 1, 0, 1.0, error=-0.04, late_s=0.2)]
    found = summarise({"cm": those})
    assert found.errors["computing"] == Spread(0.0, 0.0, 0.0)
    assert found.errors["upload"].median == pytest.approx(0.07)
    assert found.errors["upload"].greatest == pytest.approx(0.1)
    assert found.errors[NET_ROUND].median == pytest.approx((0.05 + 0.02) / 2)
    assert found.errors[ROUND].median == pytest.approx((0.05 + 0.18) / 2)
    assert found.overhead_s["fetch"].greatest == pytest.approx(0.2)


MISSED = "deadlines missed, counted from the model's arrival, at most 1%"


def test_goals_are_met_or_not() -> None:
    good = {"a": [made("a", 0, k, 1.0) for k in range(2)], "b": [made("b", 0, k, 1.2) for k in range(3)]}
    assert [each.met for each in summarise(good).goals] == [True] * 6
    late = {**good, "a": [made("a", 0, k, 1.0, error=0.5, late_s=0.6) for k in range(2)]}
    met = {each.what: each.met for each in summarise(late).goals}
    assert met["policies ordered by devices served as predicted"]
    assert not met["policies ordered by latency as predicted"]
    missed = {**good, "b": [made("b", 0, k, 1.2, late_s=1.0) for k in range(3)]}
    by_name = {each.what: each for each in summarise(missed).goals}
    assert by_name["updates later than the guard allows at most 1%"].reached == "3 of 5 (60.0%)"
    assert by_name[MISSED].reached == "3 of 5 (60.0%)"
    assert not by_name[MISSED].met
    assert not by_name["policies ordered by devices served as predicted"].met


def test_an_order_of_one_policy_is_not_tested() -> None:
    summary = summarise({"a": [made("a", 0, k, 1.0) for k in range(2)]})
    told = {each.what: (each.met, each.reached) for each in summary.goals}
    assert told["policies ordered by latency as predicted"] == (None, "0 of 0 pairs")
    assert "| policies ordered by latency as predicted | 0 of 0 pairs | not tested |" in as_markdown(summary)


def test_an_update_within_its_guard_is_as_planned() -> None:
    late = made("cm", 0, 0, 1.0, late_s=0.2)
    assert (replace(late, guard_s=0.25).beyond_guard, replace(late, guard_s=0.15).beyond_guard) == (False, True)
    assert replace(late, fetched_s=math.nan, guard_s=9.0).beyond_guard


def test_pairs_in_their_order() -> None:
    assert as_predicted([(1.0, 5.0), (2.0, 6.0), (3.0, 5.5)]) == (2, 3)
    assert as_predicted([(1.0, 5.0), (1.0, 6.0)]) == (0, 0)  # nothing was predicted


def test_a_comparison_of_nobody_is_refused() -> None:
    with pytest.raises(ValueError, match="no device was selected in any round"):
        summarise({"cm": []})


def test_the_guard_covers_the_longest_overhead() -> None:
    those = [made("cm", 0, 0, 1.0, late_s=0.2), made("cm", 0, 1, 1.0, late_s=0.401)]
    assert guard_for(those) == "0.61s"  # 1.5 times, in whole hundredths of a second, rounded up
    config = Settings().config("cm", guard=guard_for(those))
    assert config.wireless.usable_s == pytest.approx(20.0 - 0.61)
    with pytest.raises(ValueError, match="nothing was delivered in the calibration"):
        guard_for([replace(those[0], fetched_s=math.nan)])


def test_results_are_written(tmp_path: Path) -> None:
    delivered = {
        "calibration": [replace(delivery(), run="calibration")],
        "cm": [made("cm", 0, k, 1.0) for k in range(2)],
    }
    summary = write_results(delivered, ["cm"], tmp_path)
    rows = list(csv.DictReader(io.StringIO((tmp_path / "measurements.csv").read_text())))
    assert [row["run"] for row in rows] == ["calibration", "cm", "cm"]
    assert list(rows[0]) == list(COLUMNS)
    assert float(rows[0]["measured_upload_s"]) == pytest.approx(0.7)
    told = (tmp_path / "summary.md").read_text()
    assert told == as_markdown(summary)
    assert "| cm | 2.00 | 2.00 | 1.00 | 1.00 | 1.00 | 0 of 2 |" in told
    assert "</svg>" in (tmp_path / "scatter.svg").read_text()


def test_the_benchmark_writes_results_into_the_page() -> None:
    bench = runpy.run_path(str(ROOT / "benchmarks" / "testbed.py"))
    facts = {
        "began": "2026-01-02", "devices": 3, "rounds": 2, "update_bits": 4e6, "tls": True, "guard": "1.5s",
        "calibration_rounds": 4, "took_s": 120, "cores": 2, "load_before": 0.25, "system": "Linux", "flower": "1.41",
        "changed": ["wireless.deadline_s=8"], "guard_factor": 1.5,
    }  # fmt: skip
    summary = summarise({"cm": [made("cm", 0, k, 1.0, error=0.1) for k in range(2)]})
    told = bench["as_text"]({"main": (summary, facts), "without TLS": (summary, facts)})
    assert "updates of 4 Mbit, with TLS, guard 1.5s (1.5 times the longest overhead in 4 rounds" in told
    assert "Settings changed: wireless.deadline_s=8." in told
    assert as_markdown(summary) in told
    assert "| without TLS | 3, 0.2 | 1,000 | 0 | 0 | 0 | 10.0 % | 10.0 % |" in told
    page = f"before\n{bench['BEGIN']}\nold\n{bench['END']}\nafter\n"
    assert bench["with_results"](page, "new") == f"before\n{bench['BEGIN']}\n\nnew\n{bench['END']}\nafter\n"
    with pytest.raises(ValueError, match="no place for results"):
        bench["with_results"]("before", "new")


def test_the_page_says_what_was_measured() -> None:
    """Its table of errors, from the table of deliveries beside it."""
    page = (ROOT / "docs" / "testbed.md").read_text()
    with (ROOT / "docs" / "testbed" / "measurements.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["run"] != CALIBRATION]
    rounds: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in rows:
        rounds.setdefault((row["run"], row["round"]), []).append(row)

    def last(those: list[dict[str, str]], column: str) -> float:
        return max(float(row[column]) for row in those)

    errors = {
        "upload": [float(row["measured_upload_s"]) / float(row["upload_s"]) - 1.0 for row in rows],
        "upload, less the protocols' bytes": [
            float(row["net_upload_s"]) / float(row["upload_s"]) - 1.0 for row in rows
        ],
        "round": [last(those, "measured_finish_s") / last(those, "finish_s") - 1.0 for those in rounds.values()],
        NET_ROUND: [last(those, "net_finish_s") / last(those, "finish_s") - 1.0 for those in rounds.values()],
    }
    for name, values in errors.items():
        median, greatest = 100.0 * np.median(np.abs(values)), 100.0 * np.max(np.abs(values))
        (told,) = re.findall(rf"^\| {re.escape(name)} \| (.*) % \| .* % \| (.*) % \|$", page, re.MULTILINE)
        assert (float(told[0]), float(told[1])) == pytest.approx((median, greatest), abs=0.06)
    missed = sum(row["missed"] == "1" for row in rows)
    assert f"| {missed} of {len(rows)} (" in page


def test_what_is_not_known_is_an_empty_cell() -> None:
    _, lost = deliveries("cm", [record(selected=[0, 1], sent=[0])], MOMENTS, UPLOAD)
    (row,) = csv.DictReader(io.StringIO(as_csv([lost])))
    assert (row["measured_finish_s"], row["missed"]) == ("", "1")


def test_moments_are_lines_of_a_file(tmp_path: Path) -> None:
    for each in MOMENTS:
        note(tmp_path / "m.jsonl", each)
    assert list(read_moments(tmp_path / "m.jsonl")) == MOMENTS
    with (tmp_path / "m.jsonl").open("a") as file:
        file.write('{"what": "sent"}\n')
    with pytest.raises(ValueError, match="line 5 is no moment"):
        list(read_moments(tmp_path / "m.jsonl"))
