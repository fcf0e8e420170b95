"""Codecs one by one: their draws, their registration, what they refuse, sending with error feedback."""

from __future__ import annotations

import math
import re
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

import flare
from flare.config import setting
from flare.rng import stream
from flare.uplink import CODECS, Codec, NotFiniteError, Qsgd, Sign, Ternary, TopK, arrive, draw, keys, make_codec, send
from flare.uplink.draws import DRAWS, Draws, draw_words, words_of_torch
from flare.uplink.packing import pack, packed_bytes, unpack
from flare.uplink.rounding import round_at_random
from flare.uplink.topk import _last_size, largest_places
from tests import codec_oracles as plain

EVERY_CODEC = [
    *(make_codec(name) for name in CODECS),
    *(make_codec("qsgd", {"bits": bits, "block": 100}) for bits in (2, 3, 7, 8, 9, 16)),
    *(make_codec("topk", {"share": share}) for share in (0.2, 0.5, 1.0)),
]
each_codec = pytest.mark.parametrize("codec", EVERY_CODEC, ids=repr)


def normal(devices: int, num_weights: int) -> torch.Tensor:
    return torch.from_numpy(stream(0, "test", devices).normal(size=(devices, num_weights)).astype(np.float32))


def test_draws_are_those_of_splitmix64() -> None:
    known = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    assert plain.splitmix64(1234567, 5) == known
    some = [1234567, 0, -1, -(2**63), 2**63 - 1]
    words = draw_words(torch.tensor(some), 1001)
    assert [[word & plain.MASK for word in row] for row in words.tolist()] == [
        plain.splitmix64(key, 1001) for key in some
    ]
    assert torch.equal(words_of_torch(torch.tensor(some), 1001), words)  # what a GPU does
    assert torch.equal(words_of_torch(torch.tensor(some), 101, 900), draw_words(torch.tensor(some), 101, 900))
    draws = Draws(torch.tensor(some), 999)
    assert draws.of(0, 999)[0].tolist() == [plain.draws(key, 999) for key in some]
    assert draws.of(900, 99)[0].tolist() == [plain.draws(key, 999)[900:] for key in some]


@pytest.mark.parametrize("count", [4095, 4096, 4097, 8192, 9001])  # they are made in rows of 4096
def test_many_draws_are_those_of_the_generator(count: int) -> None:
    some = torch.tensor([0, -5, 2**63 - 1])
    assert torch.equal(draw_words(some, count, 77), words_of_torch(some, count, 77))


@pytest.mark.parametrize("kept", [0, 1 << 18])
def test_draws_do_not_depend_on_what_the_memory_held_or_whether_it_is_kept(kept: int, monkeypatch) -> None:
    monkeypatch.setattr("flare.uplink.draws._MAX_KEPT", kept)
    monkeypatch.setattr("flare.uplink.draws._kept", threading.local())
    for some, count in (([3, -4], 501), ([7], 20), ([3, -4], 501)):
        drawn, spare = Draws(torch.tensor(some), count).of(0, count)
        assert drawn.tolist() == [plain.draws(key, count) for key in some]
        spare.fill_(torch.nan)


def test_a_key_depends_on_seed_round_device_and_part_alone() -> None:
    together = keys(1, 2, [5, 3, 8])
    assert [int(keys(1, 2, [device])[0]) for device in (5, 3, 8)] == together.tolist()
    others = [keys(2, 2, [5]), keys(1, 3, [5]), keys(1, 2, [6]), keys(1, 2, [5], part=1)]
    assert len({int(key[0]) for key in others} | set(together.tolist())) == 7
    assert keys(1, 2, []).shape == (0,)


@pytest.mark.parametrize("fraction", [0.0, 2.0**-30, 2.0**-24, 0.3, 0.5, 1.0 - 2.0**-24])
def test_over_all_draws_the_upper_number_is_as_frequent_as_the_fraction_says(fraction: float) -> None:
    every_draw = torch.arange(0, DRAWS, 97, dtype=torch.float32)
    exact = torch.tensor(fraction)
    ups = int(np.ceil(float(exact) * DRAWS))  # draws 0, ..., ups - 1 round up, all others down
    rounded = round_at_random(exact.repeat(len(every_draw)), every_draw.clone())
    assert torch.equal(rounded == 1.0, every_draw < ups)
    edges = torch.tensor([max(ups - 1, 0), min(ups, DRAWS - 1)], dtype=torch.float32)
    assert round_at_random(exact.repeat(2), edges).tolist() == [float(ups > 0), 0.0]


@pytest.mark.parametrize("codec", [Qsgd(2, 8), Qsgd(4, 20), Ternary(16)], ids=repr)
def test_the_mean_of_many_messages_is_the_update_and_their_spread_what_is_stated(codec: Codec) -> None:
    update, repeats = normal(1, 30), 2000
    received = send(codec, update.expand(repeats, -1).contiguous(), keys(0, 0, range(repeats))).received.double()
    error = received - update.double()
    # Five standard deviations of a mean of 2,000; the keys are fixed, so that it holds always or never.
    limit = 5.0 * received.std(0) / repeats**0.5 + 1e-6
    assert bool((error.mean(0).abs() <= limit).all())
    lost = error.square().sum(1) / update.double().square().sum()
    stated = float(codec.expected_error(update)[0])
    assert float(lost.mean()) == pytest.approx(stated, abs=5.0 * float(lost.std()) / repeats**0.5)
    assert stated <= codec.variance(30)


def test_the_bounds_are_reached() -> None:
    for bits in (2, 3, 4, 8):
        codec = Qsgd(bits, 256)
        alike = codec.levels**-1 / (1.0 + (1.0 + 255 / codec.levels**2) ** 0.5)  # docstring of variance_bound
        update = torch.full((1, 1000), alike)
        update[0, ::256] = 1.0
        update[0, 768:] = 0.0  # a shorter block may lose less
        assert float(codec.expected_error(update)[0]) == pytest.approx(codec.variance(1000), rel=1e-5)
    one = torch.zeros(1, 64)
    one[0, 5] = 3.0
    assert float((send(Sign(64), one).received - one).square().sum() / 9.0) == pytest.approx(Sign(64).variance(64))
    same = torch.ones(1, 50)
    assert float((send(TopK(0.3), same).received - same).square().sum() / 50.0) == pytest.approx(TopK(0.3).variance(50))


def test_ternary_draws_what_two_bits_draw() -> None:
    update, key = normal(3, 500), keys(0, 1, [0, 1, 2])
    assert torch.equal(send(Ternary(100), update, key).received, send(Qsgd(2, 100), update, key).received)


@pytest.mark.parametrize("block", [1, 3, 4, 7, 100])
def test_an_update_that_is_coded_piece_by_piece_is_coded_as_a_whole(block: int, monkeypatch) -> None:
    monkeypatch.setattr("flare.uplink.blocks._SPAN", 10)  # pieces of 10, 12, 14, 16 and 200 entries
    update = normal(2, 101)
    for row, key in zip(update, (5, -6), strict=True):
        assert Qsgd(5, block).encode(row, key) == plain.qsgd(row.numpy(), key, 5, block)
        assert Ternary(block).encode(row, key) == plain.ternary(row.numpy(), key, block)


@pytest.mark.parametrize("width", [*range(17), 25, 31])
def test_numbers_of_any_width_are_packed_without_gaps(width: int) -> None:
    numbers = stream(0, "numbers", width).integers(2**width, size=(3, 37))
    parts = pack(torch.from_numpy(numbers), width)
    message = torch.cat(parts, dim=1) if parts else torch.zeros(3, 0, dtype=torch.uint8)
    assert [bytes(row.numpy()) for row in message] == [plain.pack(row.tolist(), width) for row in numbers]
    assert unpack(message, 37, width).tolist() == numbers.tolist()
    planes = width // 8 + bin(width % 8).count("1")
    assert 37 * width <= 8 * packed_bytes(37, width) < 37 * width + 8 * max(planes, 1)


def test_of_equal_sizes_the_first_are_sent() -> None:
    rows = torch.tensor([[1.0, -2.0, 2.0, 0.0, -2.0, 1.0], [0.0] * 6, [5.0, 4.0, 3.0, 2.0, 1.0, 0.5]])
    assert largest_places(rows, 2).tolist() == [[1, 2], [0, 1], [0, 1]]
    assert largest_places(rows, 4).tolist() == [[0, 1, 2, 4], [0, 1, 2, 3], [0, 1, 2, 3]]
    assert TopK(0.07).num_sent(100) == 7
    assert TopK(1e-9).num_sent(3) == 1


@each_codec
def test_an_update_in_company_of_another_round_is_coded_as_alone(codec: Codec) -> None:
    updates, own = normal(5, 2500), keys(3, 7, range(5))
    together = codec.encode_many(updates, own)
    assert 8 * together.shape[1] == codec.bits(2500)
    back = codec.decode_many(together, 2500)
    for i in (0, 3):
        message = codec.encode(updates[i], int(own[i]))
        assert message == bytes(together[i].numpy())
        assert torch.equal(codec.decode(message, 2500), back[i])
    assert codec.encode_many(updates[:0], own[:0]).shape[0] == 0
    assert torch.equal(codec.arrive_many(updates, own), back)


@each_codec
def test_what_arrives_is_what_is_decoded_to_the_bit(codec: Codec) -> None:
    updates, own = normal(4, 2500), keys(3, 7, range(4))
    updates[1] = updates[1].round()  # many entries of one size, zeros and -0 among them
    updates[2] *= 1e-40  # denormal
    updates[3] = -0.0
    sent, arrived = send(codec, updates, own), arrive(codec, updates, own)
    assert torch.equal(arrived.received.view(torch.int32), sent.received.view(torch.int32))
    assert (arrived.memory is None) == (sent.memory is None)
    if codec.error_feedback:
        memory = normal(4, 2500).flip(0)
        sent, arrived = send(codec, updates, own, memory), arrive(codec, updates, own, memory)
        assert torch.equal(arrived.received, sent.received)
        assert torch.equal(arrived.memory, sent.memory)
    if not codec.keeps_everything:
        updates[[0, 2], 7] = torch.tensor([float("nan"), float("inf")])
        with pytest.raises(NotFiniteError, match="update 0 of 4") as caught:
            arrive(codec, updates, own)
        assert caught.value.rows == (0, 2)


def test_the_last_size_that_is_sent_is_found_also_where_a_sample_misleads() -> None:
    sizes = np.zeros(100_000, dtype=np.int32)
    sizes[:: 100_000 // 4096] = 7  # every entry of the sample is large, and hardly any other
    sizes[1] = 9
    for count in (1, 2, 50, 4000, 20_000, 100_000):
        assert _last_size(sizes, count) == np.sort(sizes)[-count]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: that codecs give the same bytes there is not tested")
@each_codec
def test_a_gpu_gives_the_same_bytes(codec: Codec) -> None:
    updates, own = normal(300, 2500), keys(3, 7, range(300))
    there = send(codec, updates.cuda(), own.cuda())
    here = send(codec, updates, own)
    assert there.messages.device.type == there.received.device.type == "cuda"
    assert torch.equal(there.messages.cpu(), here.messages)
    assert torch.equal(there.received.cpu(), here.received)
    arrived = arrive(codec, updates.cuda(), own.cuda())
    assert torch.equal(arrived.received.cpu().view(torch.int32), here.received.view(torch.int32))
    updates[1], updates[2] = updates[1].round(), updates[2] * 1e-40
    arrived = arrive(codec, updates.cuda(), own.cuda())
    here = send(codec, updates, own)
    assert torch.equal(arrived.received.cpu().view(torch.int32), here.received.view(torch.int32))
    if not codec.keeps_everything:
        updates[17, 3] = float("nan")
        with pytest.raises(NotFiniteError, match="update 17 of 300"):
            arrive(codec, updates.cuda(), own.cuda())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: that sizes are found by their digits is not tested")
def test_a_gpu_finds_the_nth_largest_of_many_of_few_and_of_equal_numbers() -> None:
    from flare.uplink.nth_largest import nth_largest  # here: Triton is there where GPUs are

    draw = torch.Generator().manual_seed(0)
    for width in (1, 7, 4096, 20_000):  # less than a chunk, a chunk, and five of them
        rows = {
            "normal": torch.randn(width, generator=draw),
            "few values": torch.randint(-2, 3, (width,), generator=draw).float(),
            "zeros": torch.zeros(width),
            "all bits": torch.randint(-(2**31), 2**31 - 1, (width,), generator=draw)
            .to(torch.int32)
            .view(torch.float32),
        }
        numbers = torch.stack(list(rows.values())).view(torch.int32)
        in_order = (numbers & 0x7FFFFFFF).sort(dim=1, descending=True).values
        for n in {1, 2, width // 2, width} - {0} if width > 1 else {1}:
            assert torch.equal(nth_largest(numbers.cuda(), n).cpu(), in_order[:, n - 1 : n]), (width, n)


@each_codec
def test_a_message_of_another_length_is_refused_before_anything_is_allocated(codec: Codec) -> None:
    message = codec.encode(normal(1, 100)[0], 1)
    for wrong in (b"", message[:-1], message + b"\0"):
        with pytest.raises(ValueError, match=rf"has {len(wrong)} bytes; .* sends {len(message)} for 100 weights"):
            codec.decode(wrong, 100)
    with pytest.raises(ValueError, match=r"bytes; .* sends"):
        codec.decode(message, 2**31 - 1)  # 8 GiB, were it believed
    for number in (0, -1, 2**31, 1.5):
        with pytest.raises(ValueError, match="must have a whole number of them, 1 to"):
            codec.decode(message, number)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must be bytes"):
        codec.decode("text", 100)  # type: ignore[arg-type]


def put(message: bytes, at: int, part: bytes) -> bytes:
    return message[:at] + part + message[at + len(part) :]


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), -1.0])
@pytest.mark.parametrize("codec", [Qsgd(4, 10), Ternary(10), Sign(10)], ids=repr)
def test_a_scale_that_is_none_is_refused(codec: Codec, scale: float) -> None:
    message = put(codec.encode(normal(1, 40)[0], 1), 4, struct.pack("<f", scale))
    with pytest.raises(ValueError, match="a scale that is negative, infinite or not a number"):
        codec.decode(message, 40)


def test_numbers_that_stand_for_nothing_are_refused() -> None:
    update = normal(1, 40)[0]
    with pytest.raises(ValueError, match="the number 15, which stands for no level"):
        Qsgd(4).decode(put(Qsgd(4).encode(update, 1), 4, b"\x0f"), 40)
    with pytest.raises(ValueError, match="the number 65535, which stands for no level"):
        Qsgd(16).decode(Qsgd(16).encode(update, 1)[:4] + b"\xff" * 80, 40)
    with pytest.raises(ValueError, match="a byte above 242"):
        Ternary().decode(put(Ternary().encode(update, 1), 4, b"\xf3"), 40)
    half = make_codec("float16")
    for part, at in ((struct.pack("<h", 129), 0), (struct.pack("<h", -149), 0)):
        with pytest.raises(ValueError, match="an exponent outside -148 to 128"):
            half.decode(put(half.encode(update), at, part), 40)
    with pytest.raises(ValueError, match="infinite or not a number"):
        half.decode(put(half.encode(update), 2, struct.pack("<e", float("inf"))), 40)
    with pytest.raises(ValueError, match="above 32768"):
        half.decode(struct.pack("<h", 128) + struct.pack("<e", 65504.0) * 40, 40)


def test_places_that_cannot_be_are_refused() -> None:
    codec, update = TopK(0.05), torch.zeros(1000)  # 50 places: 4 low bits each in 25 bytes, then 112 bits
    places = torch.arange(0, 1000, 20)
    update[places] = 1.0
    message = codec.encode(update)
    assert torch.equal(codec.decode(message, 1000), update)
    low, row = 4 * 50, 4 * 50 + 25
    assert len(message) == row + 14
    with pytest.raises(ValueError, match="does not name 50 entries"):
        codec.decode(message[:row] + b"\0" * 14, 1000)
    with pytest.raises(ValueError, match="does not name 50 entries"):
        codec.decode(message[:row] + b"\xff" * 14, 1000)
    bits = torch.zeros(1, 112, dtype=torch.uint8)
    bits[0, :50] = 1  # all in the first 16 places: equal or falling low bits are no ascending ones
    with pytest.raises(ValueError, match="not ascending"):
        codec.decode(message[:row] + bytes(pack(bits, 1)[0][0].numpy()), 1000)
    too_far = torch.cat([places[:49], torch.tensor([1007])])  # ascending, and the last one is beyond the end
    bits = torch.zeros(1, 112, dtype=torch.uint8)
    bits[0, (too_far >> 4) + torch.arange(50)] = 1
    parts = torch.cat([*pack((too_far & 15).unsqueeze(0), 4), *pack(bits, 1)], 1)
    with pytest.raises(ValueError, match="not below 1000"):
        codec.decode(message[:low] + bytes(parts[0].numpy()), 1000)
    with pytest.raises(ValueError, match="infinite or not a number"):
        codec.decode(put(message, 0, struct.pack("<f", float("nan"))), 1000)


def test_updates_that_are_not_finite_are_named_and_the_others_can_go() -> None:
    updates = normal(4, 20)
    updates[1, 3], updates[3, 0] = float("nan"), float("-inf")
    with pytest.raises(NotFiniteError, match=r"update 1 of 4 has an entry .* lower the learning rate") as caught:
        send(Qsgd(4), updates, keys(0, 0, range(4)))
    assert caught.value.rows == (1, 3)
    largest = torch.full((1, 2000), torch.finfo(torch.float32).max)
    for codec in EVERY_CODEC:
        assert torch.equal(send(codec, largest, keys(0, 0, [0])).received[:, :20], largest[:, :20]), codec


def test_wrong_tensors_are_refused() -> None:
    codec = Qsgd(4)
    for bad in (torch.zeros(2, 3, dtype=torch.float64), torch.zeros(3), torch.zeros(2, 0)):
        with pytest.raises(ValueError, match=r"give float32 of \(devices, weights\)|0 weights"):
            codec.encode_many(bad, keys(0, 0, [0, 1]))
    with pytest.raises(ValueError, match="must be flat"):
        codec.encode(torch.zeros(2, 2))
    with pytest.raises(ValueError, match="draws random numbers: give a key for each update"):
        codec.encode_many(torch.zeros(2, 3))
    with pytest.raises(ValueError, match="one int64 for each update"):
        codec.encode_many(torch.zeros(2, 3), keys(0, 0, [0]))
    with pytest.raises(ValueError, match="keeps nothing of what is lost"):
        send(codec, torch.zeros(1, 3), keys(0, 0, [0]), torch.zeros(1, 3))
    with pytest.raises(ValueError, match=r"must be float32 \(1, 3\)"):
        send(Sign(), torch.zeros(1, 3), memory=torch.zeros(1, 2))
    with pytest.raises(ValueError, match=r"uint8 of \(devices, bytes\)"):
        codec.decode_many(torch.zeros(1, 9), 3)


def test_with_error_feedback_all_is_sent_in_the_end() -> None:
    update = torch.tensor([[8.0, 4.0, 2.0, 1.0, 0.5, 0.25, 0.125, 0.0625]])
    for codec in (TopK(0.25), Sign(8)):
        memory, total = None, torch.zeros(1, 8)
        for _ in range(60):
            before = None if memory is None else memory.clone()
            done = send(codec, update, memory=memory)
            assert memory is None or torch.equal(memory, before)
            memory, total = done.memory, total + done.received
        assert float((total / 60 - update).abs().max()) < 0.6
        without = send(codec, update).received
        assert float((without - update).abs().max()) >= 2.0 - 1e-6
    assert send(TopK(0.25, error_feedback=False), update).memory is None


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("qsgd", {"bits": 1}, r"option 'bits' of codec 'qsgd' is 1; it must be a whole number, at least 2, at most 16"),
        ("qsgd", {"bits": 17}, r"at least 2, at most 16"),
        ("qsgd", {"bits": 2.5}, r"a whole number"),
        ("qsgd", {"block": 0}, r"at least 1"),
        ("topk", {"share": 0.0}, r"greater than 0, at most 1"),
        ("topk", {"share": 1.1}, r"greater than 0, at most 1"),
        ("topk", {"shares": 0.1}, r"has no option 'shares' \(its options: share, error_feedback\)"),
        ("qsdg", {}, r"there is no codec 'qsdg'.*'qsgd'.*none, float16, qsgd, ternary, sign, topk"),
    ],
)
def test_wrong_options_are_answered_with_what_there_is(name: str, options: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make_codec(name, options)
    if name == "topk" and "share" in options:
        with pytest.raises(ValueError, match="greater than 0"):
            TopK(**options)


@pytest.fixture
def registered() -> Iterator[None]:
    before = set(CODECS)
    yield
    for name in set(CODECS) - before:
        del CODECS[name]


@pytest.mark.usefixtures("registered")
def test_a_codec_of_ones_own_is_registered_with_its_options() -> None:
    @flare.codec("bfloat16")
    @dataclass(frozen=True)
    class Mine(Codec):
        """The upper half of a float32."""

        up: bool = setting(False, "whether to round up")
        unbiased = False

        def bits(self, num_weights):
            return 16 * num_weights

        def variance(self, num_weights):
            return 2.0**-14

        def pack(self, updates, keys):
            return updates.view(torch.int16)[:, 1::2].contiguous().view(torch.uint8)

        def unpack(self, messages, num_weights):
            return messages.clone().view(torch.int16).to(torch.int32).bitwise_left_shift(16).view(torch.float32)

    made = make_codec("bfloat16", {"up": True})
    assert made == Mine(up=True)
    assert CODECS["bfloat16"].summary == "The upper half of a float32."
    updates = normal(3, 11)
    assert torch.allclose(send(made, updates).received, updates, rtol=2.0**-7)
    with pytest.raises(ValueError, match="infinite"):
        made.encode(torch.tensor([float("inf")]))


@pytest.mark.usefixtures("registered")
def test_codecs_that_cannot_work_are_refused_when_they_are_registered() -> None:
    with pytest.raises(ValueError, match="must derive from"):
        flare.codec("a")(int)
    with pytest.raises(ValueError, match="lacks bits, pack, unpack, variance, unbiased"):
        flare.codec("b")(type("B", (Codec,), {}))
    with pytest.raises(ValueError, match="flare has one of its own"):
        flare.codec("qsgd")(lambda: Qsgd())
    flare.codec("c")(lambda: 5)
    with pytest.raises(ValueError, match="codec 'c' returned a int"):
        make_codec("c")

    class Typed(Sign.__base__):  # type: ignore[misc, name-defined]
        unbiased: bool = True
        bits = variance = pack = unpack = lambda self, *_: 0

    with pytest.raises(ValueError, match="its option 'unbiased' has the name of a part"):
        flare.codec("d")(dataclass(frozen=True)(Typed))
    with pytest.raises(ValueError, match="write @codec above @dataclass"):
        dataclass(flare.codec("e")(type("E", (Codec,), dict(vars(Typed)) | {"x": setting(1, "a number")})))


class Honest(Codec):
    """Float32, as it is."""

    unbiased = True

    def bits(self, num_weights):
        return 32 * num_weights

    def variance(self, num_weights):
        return 0.0

    def pack(self, updates, keys):
        return updates.contiguous().view(torch.uint8)

    def unpack(self, messages, num_weights):
        return messages.clone().view(torch.float32)


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    ("part", "answer", "words"),
    [
        ("bits", lambda self, n: 8, r"its pack answered torch.uint8 \(1, 400\) .* must answer torch.uint8 \(1, 1\)"),
        ("bits", lambda self, n: 32 * n + 3, "answered 3203; it must answer a whole number of bits, a multiple of 8"),
        ("bits", lambda self, n: 32.0 * n, "answered 3200.0"),
        ("bits", lambda self, n: None, "answered None"),
        ("bits", lambda self, n: "x", "answered x"),
        ("bits", lambda self, n: 10**400, "answered 1000"),
        ("pack", lambda self, updates, keys: updates, r"its pack answered torch.float32 \(1, 100\)"),
        ("pack", lambda self, updates, keys: b"text", "its pack answered bytes"),
        ("pack", lambda self, updates, keys: 1 / 0, "fails on an update of 100 zeros: ZeroDivisionError"),
        ("unpack", lambda self, messages, n: messages.numpy(), "its unpack answered ndarray"),
        (
            "unpack",
            lambda self, messages, n: torch.zeros(1, n).double(),
            "its unpack answered torch.float64",
        ),
        ("unpack", lambda self, messages, n: torch.zeros(1, n).to_sparse(), "must answer a dense torch.float32"),
        ("unpack", lambda self, messages, n: torch.zeros(1, n, device="meta"), "where the messages are"),
        ("arrive", lambda self, updates, keys: updates + 1.0, "what its arrive gives is not what unpack makes of pack"),
        ("arrive", lambda self, updates, keys: updates * 9.0, "what its arrive gives is not what unpack makes of pack"),
        ("unpack", lambda self, messages, n: messages.clone().view(torch.float32) / 0, "numbers that are not finite"),
        ("pack", lambda self, updates, keys: updates.mul_(2.0).view(torch.uint8), "writes into the update"),
        ("variance", lambda self, n: float("nan"), r"its variance\(100\) answered nan; it must answer a finite number"),
        ("variance", lambda self, n: -1, "answered -1"),
        ("variance", lambda self, n: "x", "answered x"),
    ],
)
def test_a_codec_of_ones_own_that_lies_is_refused_by_name(part: str, answer: object, words: str) -> None:
    flare.codec("liar")(type("Liar", (Honest,), {part: answer}))
    with pytest.raises(ValueError, match=f"codec 'liar'.*{words}"):
        make_codec("liar")


@pytest.mark.usefixtures("registered")
def test_a_codec_of_ones_own_is_tried_with_the_size_of_the_model_too() -> None:
    """What is charged follows from `bits` alone, so that a lie about large updates would never be seen."""
    own = {"bits": lambda self, n: 32 * n if n == 100 else 8, "arrive": lambda self, updates, keys: updates.clone()}
    flare.codec("liar")(type("Liar", (Honest,), own))
    with pytest.raises(ValueError, match=r"codec 'liar': Liar: its pack answered torch.uint8 \(1, \d+\)"):
        flare.simulate({"uplink.codec": "liar", "run.payload": "model", "data.name": "digits", "run.rounds": 1})


def test_draws_for_codecs_of_ones_own_are_fixed_by_the_keys() -> None:
    own = keys(3, 7, range(4))
    drawn = draw(own, 20_001)
    assert drawn.shape == (4, 20_001)
    assert torch.equal(drawn[2:], draw(own[2:], 20_001))
    assert 0 <= int(drawn.min()) < int(drawn.max()) < 2**24
    assert drawn.double().mean() / 2**23 == pytest.approx(1.0, abs=0.01)


def test_the_page_says_what_normal_and_laplacian_entries_lose() -> None:
    text, draws = PAGE.read_text(), torch.Generator().manual_seed(0)
    normal_entries = torch.randn(40, 100 * 1024, generator=draws)
    halves = torch.rand(40, 100 * 1024, generator=draws, dtype=torch.float64) - 0.5
    laplacian = (-halves.sign() * torch.log1p(-2.0 * halves.abs())).float()
    rows = re.findall(r"^\| `(\d)` \| ([\d.]+) \| ([\d.]+) \|$", text, flags=re.MULTILINE)
    assert [int(bits) for bits, *_ in rows] == [2, 3, 4, 6, 8]
    for bits, *said in rows:
        codec = make_codec("qsgd", {"bits": int(bits)})
        for entries, value in zip((normal_entries, laplacian), said, strict=True):
            found = codec.expected_error(entries)  # of 40 updates: their spread says how sure the mean is
            error = 3.0 * float(found.std()) / math.sqrt(len(found)) + 0.005 * float(value)
            assert float(found.mean()) == pytest.approx(float(value), abs=error)


PAGE = Path(__file__).resolve().parents[2] / "docs" / "uplink.md"


def rows_of(heading: str) -> list[list[str]]:
    table = PAGE.read_text().partition(heading)[2].partition("\n\n")[0]
    return [re.split(r"\s*\|\s*", line.strip("| ")) for line in table.splitlines() if line.startswith("| `")]


def test_the_page_says_the_bits_and_bounds_that_there_are() -> None:
    rows = rows_of("| codec |")
    seen = set()
    for name, options, bits, unbiased, variance, *_ in rows:
        pairs = re.findall(r"(\w+) = ([\d.]+)", options)
        given = {key: float(value) if "." in value else int(value) for key, value in pairs}
        codec = make_codec(name.strip("`"), given)
        assert f"{codec.bits(312_414) / 312_414:.4g}" == bits, name
        assert {True: "yes", False: "no"}[codec.unbiased] == unbiased
        assert f"{codec.variance(312_414):.3g}" == variance, name
        seen.add(name.strip("`"))
    assert seen == set(CODECS)


def test_the_page_says_what_normal_and_laplacian_updates_lose() -> None:
    rng = stream(0, "page")
    normal_entries = torch.from_numpy(rng.normal(size=(1, 1024 * 400)).astype(np.float32))
    laplacian = torch.from_numpy(rng.laplace(size=(1, 1024 * 400)).astype(np.float32))
    rows = rows_of("| bits of `qsgd` |")
    assert len(rows) == 5
    for bits, *stated in rows:
        codec = Qsgd(int(bits.strip("`")))
        for entries, number in zip((normal_entries, laplacian), stated, strict=True):
            assert float(codec.expected_error(entries)[0]) == pytest.approx(float(number), rel=0.03)
