"""Codecs over random updates: every finite float32 number may occur, zeros, denormal and huge ones too."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from flare.uplink import Codec, NotFiniteError, Qsgd, Sign, Ternary, TopK, make_codec, send
from flare.uplink.places import layout, pack_places, unpack_places
from tests import codec_oracles as plain

LARGEST = float(np.finfo(np.float32).max)
any_number = st.floats(width=32, allow_nan=False, allow_infinity=False)
alike = st.sampled_from(
    [0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, -1e-45, LARGEST, -LARGEST]
)  # ties, and the ends of the range
updates = arrays(np.float32, st.integers(1, 70), elements=any_number | alike)
key_numbers = st.integers(-(2**63), 2**63 - 1)
blocks = st.integers(1, 40)
codecs = st.one_of(
    st.builds(make_codec, st.sampled_from(["none", "float16"])),
    st.builds(Qsgd, st.integers(2, 16), blocks),
    st.builds(Ternary, blocks),
    st.builds(Sign, blocks),
    st.builds(TopK, st.floats(0.001, 1.0)),
)
often = settings(max_examples=60, deadline=None)


def decoded(codec: Codec, message: bytes, size: int) -> np.ndarray:
    return codec.decode(message, size).numpy()


@often
@given(updates, key_numbers, st.integers(2, 16), blocks)
def test_qsgd_and_ternary_send_what_the_plain_versions_send(x, key, bits, block) -> None:
    assert Qsgd(bits, block).encode(torch.from_numpy(x), key) == plain.qsgd(x, key, bits, block)
    assert Ternary(block).encode(torch.from_numpy(x), key) == plain.ternary(x, key, block)


@often
@given(updates, blocks, st.integers(1, 100))
def test_the_codecs_that_draw_nothing_send_what_the_plain_versions_send(x, block, percent) -> None:
    update = torch.from_numpy(x)
    assert make_codec("none").encode(update) == x.tobytes()
    assert make_codec("float16").encode(update) == plain.float16(x)
    assert Sign(block).encode(update) == plain.sign(x, block)
    assert TopK(percent / 100).encode(update) == plain.topk(x, percent / 100)


@often
@given(codecs, updates, key_numbers)
def test_a_message_has_the_promised_bits_and_means_the_same_each_time(codec, x, key) -> None:
    message = codec.encode(torch.from_numpy(x), key)
    assert 8 * len(message) == codec.bits(len(x))
    assert codec.encode(torch.from_numpy(x.copy()), key) == message
    once, again = decoded(codec, message, len(x)), decoded(codec, bytearray(message), len(x))
    assert once.dtype == np.float32
    assert once.tobytes() == again.tobytes()
    assert np.isfinite(once).all()


@settings(max_examples=20, deadline=None)
@given(codecs, st.integers(1, 12), st.data())
def test_an_update_is_coded_alone_as_in_company(codec, size, data) -> None:
    stack = data.draw(arrays(np.float32, st.tuples(st.integers(2, 20), st.just(size)), elements=any_number | alike))
    keys = torch.tensor(data.draw(st.lists(key_numbers, min_size=len(stack), max_size=len(stack))))
    messages = codec.encode_many(torch.from_numpy(stack), keys)
    together = codec.decode_many(messages, size)
    for row, key, message, received in zip(stack, keys.tolist(), messages, together, strict=True):
        assert codec.encode(torch.from_numpy(row.copy()), key) == bytes(message.numpy())
        assert codec.decode(bytes(message.numpy()), size).numpy().tobytes() == received.numpy().tobytes()


@often
@given(updates, st.integers(2, 16), blocks)
def test_the_mean_over_all_draws_is_the_update_and_the_error_within_the_bound(x, bits, block) -> None:
    codec = Qsgd(bits, block)
    means, error = plain.mean_and_error(x, block, codec.levels)
    exact = [Fraction(float(entry)) for entry in x]
    unit = [
        max(abs(entry) for entry in exact[i - i % block : i - i % block + block]) / codec.levels for i in range(len(x))
    ]
    tiny = Fraction(2) ** -149
    for mean, entry, one in zip(means, exact, unit, strict=True):
        assert abs(mean - entry) <= abs(entry) / 2**21 + one / 2**22 + tiny
    # Rounding moves a probability by at most 2^-22 (1 + |x| / level), which adds that many level^2 to the error,
    # and a value by 2^-22 of itself or half the smallest number.
    added = sum(
        (one * (one + abs(entry)) / 2**20 + (abs(entry) / 2**22 + tiny) ** 2)
        for entry, one in zip(exact, unit, strict=True)
    )
    assert error <= Fraction(codec.variance(len(x))) * sum(entry**2 for entry in exact) + added
    stated = float(codec.expected_error(torch.from_numpy(x).unsqueeze(0))[0])
    assert stated <= codec.variance(len(x)) * (1 + 1e-6)


@often
@given(updates, blocks, st.floats(0.001, 1.0))
def test_the_codecs_that_draw_nothing_lose_no_more_than_they_say(x, block, share) -> None:
    exact = x.astype(np.longdouble)
    for codec in (make_codec("none"), make_codec("float16"), Sign(block), TopK(share)):
        lost = decoded(codec, codec.encode(torch.from_numpy(x)), len(x)) - exact
        # The scale of signs is rounded to float32: 2^-24 of it, or half the smallest number, for each entry.
        rounding = len(x) * (np.abs(exact).max() * 2.0**-24 + 2.0**-149) ** 2 if isinstance(codec, Sign) else 0.0
        assert (lost**2).sum() <= codec.variance(len(x)) * (exact**2).sum() * (1 + 1e-12) + rounding


@often
@given(codecs, updates, st.sampled_from([math.nan, math.inf, -math.inf]), st.data())
def test_what_is_not_finite_is_refused_or_kept_to_the_bit(codec, x, bad, data) -> None:
    x[data.draw(st.integers(0, len(x) - 1))] = bad
    if codec.keeps_everything:
        assert decoded(codec, codec.encode(torch.from_numpy(x)), len(x)).tobytes() == x.tobytes()
        return
    with pytest.raises(NotFiniteError, match="infinite or not a number"):
        codec.encode(torch.from_numpy(x))


@often
@given(codecs, st.integers(1, 70), st.data())
def test_hostile_bytes_are_refused_or_a_finite_update(codec, size, data) -> None:
    length = codec.bits(size) // 8
    message = data.draw(st.binary(min_size=length, max_size=length))
    try:
        update = codec.decode(message, size)
    except ValueError:
        return
    assert update.shape == (size,)
    assert codec.keeps_everything or bool(torch.isfinite(update).all())


@often
@given(codecs, updates, key_numbers, st.data())
def test_a_message_with_a_byte_changed_is_refused_or_a_finite_update(codec, x, key, data) -> None:
    message = bytearray(codec.encode(torch.from_numpy(x), key))
    message[data.draw(st.integers(0, len(message) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        update = codec.decode(message, len(x))
    except ValueError:
        return
    assert codec.keeps_everything or bool(torch.isfinite(update).all())


@often
@given(st.integers(1, 400), st.data())
def test_places_survive_in_no_more_bytes_than_a_bitmap_or_a_list(num_places, data) -> None:
    places = sorted(data.draw(st.sets(st.integers(0, num_places - 1), min_size=1)))
    parts = pack_places(torch.tensor([places]), num_places)
    size = layout(num_places, len(places)).size
    assert sum(part.shape[1] for part in parts) == size
    assert size <= math.ceil(num_places / 8)
    message = torch.cat(parts, dim=1) if parts else torch.zeros(1, 0, dtype=torch.uint8)
    assert unpack_places(message, num_places, len(places)).tolist() == [places]


@often
@given(st.one_of(st.builds(Sign, blocks), st.builds(TopK, st.floats(0.001, 1.0))), st.integers(1, 9), st.data())
def test_error_feedback_keeps_exactly_what_was_not_sent(codec, size, data) -> None:
    numbers = st.integers(-1000, 1000).map(float)  # sums of them are exact
    memory, sent, received = None, torch.zeros(2, size), torch.zeros(2, size)
    for _ in range(3):
        update = torch.from_numpy(data.draw(arrays(np.float32, (2, size), elements=numbers)))
        done = send(codec, update, memory=memory)
        memory, sent, received = done.memory, sent + update, received + done.received
    assert torch.allclose(sent, received + memory, rtol=0.0, atol=3 * 4000 * 2.0**-22)
