"""Between devices and base station: every vector that a device sends is coded, and what is decoded is what counts.

    UPDATE     Q(delta + e), e what was lost when the device last sent (codecs with error feedback)
    GRADIENT   Q(gradient + e), where the method asks for gradients first; the device subtracts its own as it is, the
               drift has the mean of those received (FedLin with compressed gradients, Mitra et al., 2021)
    CONTROL    Q(c_i' - c_i) / (1 + w) with an unbiased codec of variance w, else Q(c_i' - c_i); no error feedback

Controls. The base station holds c_i, and what a device sends is where its control should be less where it is held:
whatever was lost is part of the next difference, and error feedback would count it twice. An unbiased codec adds noise
of up to w |c_i' - c_i|^2, which for w > 1 would grow from round to round; taken at 1 / (1 + w), the distance shrinks on
average, by w / (1 + w) in its square (DIANA, Mishchenko et al., 2019; SCALLION, Huang et al., 2024).

A simulation codes all vectors of all runs in lockstep that share a codec together (`transmit`); on Flower a node
encodes (`encoded`) and the server decodes (`decoded`). What is drawn depends on seed, round, device and part alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, final

import torch
from torch import Tensor

from flare.learning.engine.threads import one_thread
from flare.learning.job import LocalRule, Update, control_change
from flare.learning.kept import KeptWith
from flare.rounds.base_station import BaseStation
from flare.rounds.residuals import Part
from flare.rounds.state import RunState
from flare.uplink import Arrived, Codec, NotFiniteError, arrive, keys, send
from flare.uplink.codec import row_portions

Row = tuple[int, int]
"""The number of an outgoing, and a device."""
Coded = tuple[list[Tensor], list[Tensor | None]]
"""What is received of some rows, and what their devices hold back."""


@final
@dataclass(frozen=True, eq=False)
class Outgoing:
    """Vectors of one part, each of shape (weights,), that devices of a run send in round `index`, by device; or the one
    that its base station broadcasts (`rounds/broadcast.py`)."""

    station: BaseStation
    index: int
    part: Part
    vectors: Mapping[int, Tensor]
    residuals: Mapping[int, Tensor] = field(default_factory=dict)  # what these devices hold back of this part
    codecs: Mapping[int, Codec] = field(default_factory=dict)  # of devices that have one of their own
    held: Mapping[int, Tensor] = field(default_factory=dict)  # of devices that send a part: places of its weights

    def part_of(self, device: int, vector: Tensor) -> Tensor:
        """What the device sends of a vector of shape (weights,): all of it, or its part."""
        held = self.held.get(device)
        return vector if held is None else vector[held.to(vector.device)]

    def whole_of(self, device: int, part: Tensor, outside: Tensor | None = None) -> Tensor:
        """The vector of shape (weights,) that has the part of a device, and else `outside`, or zeros."""
        held = self.held.get(device)
        if held is None:
            return part
        whole = part.new_zeros(self.station.num_weights) if outside is None else outside.to(part, copy=True)
        whole[held.to(part.device)] = part
        return whole

    def num_sent(self, device: int) -> int:
        """How many numbers the device sends."""
        return self.station.num_weights if device not in self.held else len(self.held[device])

    def codec_of(self, device: int) -> Codec:
        """That of the broadcast, or that of what the device sends."""
        return self.station.downlink_codec if self.part.goes_down else self.codecs.get(device, self.station.codec)

    @property
    def coding(self) -> tuple[object, ...]:
        """What makes the codec: vectors for which it is the same can be coded together."""
        wireless = self.station.config.wireless
        down = (wireless.downlink_codec, wireless.downlink_options)
        return (self.part, *(down if self.part.goes_down else (self.station.config.uplink,)))


@final
@dataclass(frozen=True, eq=False)
class Incoming:
    """What the base station takes for the vectors, and what their devices hold back now, by device."""

    part: Part
    vectors: dict[int, Tensor] = field(default_factory=dict)
    kept: dict[int, Tensor] = field(default_factory=dict)


def outgoing_gradients(
    station: BaseStation, state: RunState, gradients: Mapping[int, Tensor], codecs: Mapping[int, Codec]
) -> list[Outgoing]:
    """The gradients of devices, where they are coded, otherwise nothing; `codecs` of those that have their own."""
    if not station.codes or not gradients:
        return []
    return [Outgoing(station, state.rounds_done, Part.GRADIENT, gradients, state.residuals.of(Part.GRADIENT), codecs)]


def outgoing_updates(
    station: BaseStation,
    state: RunState,
    rules: Mapping[int, LocalRule],
    updates: Sequence[Update],
    codecs: Mapping[int, Codec],
) -> list[Outgoing]:
    """The updates of the devices that follow these rules, and the changes of their controls, where they are coded."""
    if not station.codes or not rules:
        return []
    deltas = {device: update.delta for device, update in zip(rules, updates, strict=True)}
    index = state.rounds_done
    held = _held_places(station, rules, updates[0].delta.device)  # one engine computed them all
    sent = [Outgoing(station, index, Part.UPDATE, deltas, state.residuals.of(Part.UPDATE), codecs, held)]
    if station.method.sends_control:
        changes = {device: _change(station, rule, deltas[device]) for device, rule in rules.items()}
        sent.append(Outgoing(station, index, Part.CONTROL, changes, codecs=codecs, held=held))
    return sent


_places = KeptWith(lambda mask, where: mask.nonzero()[:, 0].to(where))


def _held_places(station: BaseStation, rules: Mapping[int, LocalRule], where: torch.device) -> dict[int, Tensor]:
    """Where the weights are that each device trains, where some train a narrower model."""
    if not station.method.needs_widths:
        return {}
    return {device: _places(rule.mask, where) for device, rule in rules.items() if rule.mask is not None}


def control_of(station: BaseStation, rule: LocalRule) -> Tensor:
    """The control variate that comes with a rule; ValueError where a method said that there is one and gave none."""
    if rule.control is None:
        raise ValueError(
            f"method '{station.config.learning.method}' says that its devices send changes of control variates, but a "
            "rule of it has no control: give each LocalRule control=..., or set sends_control = False"
        )
    return rule.control


def _change(station: BaseStation, rule: LocalRule, delta: Tensor) -> Tensor:
    return control_change(control_of(station, rule).to(delta.device), rule.steps, rule.lr, delta)


def as_received(devices: Sequence[int], updates: Sequence[Update], heard: Sequence[Incoming]) -> list[Update]:
    """Updates with the vectors that the base station takes for them; their losses and norms are the devices' own."""
    vectors = {each.part: each.vectors for each in heard}
    if Part.UPDATE not in vectors:
        return list(updates)
    changes = vectors.get(Part.CONTROL, {})
    return [
        replace(update, delta=vectors[Part.UPDATE][device], control_change=changes.get(device))
        for device, update in zip(devices, updates, strict=True)
    ]


def transmit(outgoing: Sequence[Outgoing]) -> list[Incoming]:
    """Code and decode vectors, those of one codec and part together, on the device that they are on; on a CPU each core
    works on some of them.

    A vector with entries that are no finite numbers cannot be coded. It arrives as it is, so that its run diverges as
    it would have without a codec; others in its company are not touched by that.
    """
    answers = [Incoming(each.part) for each in outgoing]
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for number, each in enumerate(outgoing):
        where = next(iter(each.vectors.values())).device  # one engine computed them all
        for device in each.vectors:
            kind = (each.coding, each.num_sent(device), where, each.codecs.get(device))
            groups.setdefault(kind, []).append((number, device))
    for (_, num_weights, where, _), rows in groups.items():
        portions = [rows[each] for each in row_portions(len(rows), num_weights, where)]
        for portion, (received, kept) in zip(portions, _shared(outgoing, portions, where), strict=True):
            for (number, device), vector, residual in zip(portion, received, kept, strict=True):
                sender = outgoing[number]
                answers[number].vectors[device] = sender.whole_of(device, vector)
                if residual is not None:
                    before = sender.residuals.get(device)
                    answers[number].kept[device] = sender.whole_of(device, residual, before)
    return answers


def encoded(
    codec: Codec, part: Part, vector: Tensor, *, seed: int, index: int, device: int, residual: Tensor | None
) -> tuple[bytes, Tensor | None]:
    """The message of one device, and what it holds back then; NotFiniteError where its vector cannot be coded."""
    row = None if residual is None else residual.unsqueeze(0)
    sent = send(codec, vector.unsqueeze(0), keys(seed, index, [device], part=part), row)
    kept = None if sent.memory is None or part is Part.CONTROL else sent.memory[0]
    return bytes(sent.messages[0].cpu().numpy()), kept


def decoded(codec: Codec, part: Part, message: bytes, num_weights: int) -> Tensor:
    """What the base station takes for a message; ValueError where it is none, before anything is allocated."""
    return _taken(codec, part, codec.decode(message, num_weights).unsqueeze(0))[0]


def _shared(outgoing: Sequence[Outgoing], portions: Sequence[list[Row]], where: torch.device) -> list[Coded]:
    """Code all portions, on a CPU in as many threads as torch has, each with operations of one thread."""
    work, threads = partial(_code, outgoing), min(torch.get_num_threads(), len(portions))
    with one_thread(where):
        if where.type != "cpu" or threads < 2:
            return [work(portion) for portion in portions]
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return list(pool.map(work, portions))


def _code(outgoing: Sequence[Outgoing], rows: Sequence[Row]) -> Coded:
    """Rows, all of one codec and part, as they are received, and what their devices hold back."""
    first = outgoing[rows[0][0]]
    codec, part = first.codec_of(rows[0][1]), first.part
    senders = [(outgoing[number], device) for number, device in rows]
    vectors = torch.stack([each.part_of(device, each.vectors[device]).float() for each, device in senders])
    held_back = [(each, device, each.residuals.get(device)) for each, device in senders]
    memory = _memory([None if e is None else each.part_of(device, e) for each, device, e in held_back], vectors[0])
    draws = _draws(outgoing, rows) if codec.draws else None
    try:
        return _through(codec, part, vectors, draws, memory)
    except NotFiniteError as error:
        lost = set(error.rows)
    sound = [row for row in range(len(rows)) if row not in lost]
    received, kept = _through(codec, part, vectors[sound], _at(draws, sound), _at(memory, sound))
    of_sound = dict(zip(sound, zip(received, kept, strict=True), strict=True))
    wanted = vectors if memory is None else vectors + memory
    answers = [of_sound.get(row, (wanted[row], None)) for row in range(len(rows))]
    return [vector for vector, _ in answers], [residual for _, residual in answers]


def _through(codec: Codec, part: Part, vectors: Tensor, draws: Tensor | None, memory: Tensor | None) -> Coded:
    arrived = _arrive(codec, part, vectors, draws, memory)
    received = list(_taken(codec, part, arrived.received))
    if arrived.memory is None:
        return received, [None] * len(received)
    alone = len(received) == 1
    return received, [row if alone else row.clone() for row in arrived.memory]  # a view would keep all rows alive


def _memory(held: Sequence[Tensor | None], like: Tensor) -> Tensor | None:
    """What devices hold back as rows, zeros for those that never sent; None where nobody did."""
    if all(each is None for each in held):
        return None
    zero = torch.zeros_like(like)
    return torch.stack([zero if each is None else each.to(zero.device) for each in held])


def _draws(outgoing: Sequence[Outgoing], rows: Sequence[Row]) -> Tensor:
    """A key for each row; those of a run lie together."""
    devices_of: dict[int, list[int]] = {}
    for number, device in rows:
        devices_of.setdefault(number, []).append(device)
    drawn = [
        keys(outgoing[number].station.config.seed, outgoing[number].index, devices, part=outgoing[number].part)
        for number, devices in devices_of.items()
    ]
    return torch.cat(drawn)


def _at(rows: Tensor | None, places: list[int]) -> Tensor | None:
    return None if rows is None else rows[places]


def _arrive(codec: Codec, part: Part, vectors: Tensor, draws: Tensor | None, memory: Tensor | None) -> Arrived:
    """What arrives of vectors (devices, weights) of one part; changes of controls leave nothing behind."""
    arrived = arrive(codec, vectors, draws, memory)
    return replace(arrived, memory=None) if part is Part.CONTROL else arrived


def _taken(codec: Codec, part: Part, vectors: Tensor) -> Tensor:
    """What the base station takes for decoded vectors (devices, weights)."""
    if part is not Part.CONTROL or not codec.unbiased:
        return vectors
    return vectors / (1.0 + codec.variance(vectors.shape[1]))
