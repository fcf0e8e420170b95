"""The vectors in answers of nodes, read with care: arrays by name, or messages of the codec."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message
from torch import Tensor

from flare.flower.arrays import Layout
from flare.flower.coding import UPLINK
from flare.learning.flat import update_bits
from flare.rounds import BaseStation
from flare.rounds.coding import decoded
from flare.rounds.residuals import Part
from flare.uplink import Codec

_WORDS = {Part.UPDATE: "update", Part.GRADIENT: "gradient", Part.CONTROL: "change of its control"}


@final
@dataclass(frozen=True, eq=False)
class Reader:
    """Reads one vector at a time, as a run of this station has them; none is believed that is longer than `max_norm`,
    or, of gradients and of controls, than `max_norm` over the local learning rate: a step along it is then sound."""

    station: BaseStation
    layout: Layout
    max_norm: float
    codecs: Mapping[int, Codec] = field(default_factory=dict)  # of devices that have one of their own

    @property
    def coded(self) -> bool:
        """Whether nodes send messages of a codec."""
        return self.station.codes

    def bits(self, device: int) -> float:
        """What an answer of a device with its update takes."""
        if not self.coded:
            return float(update_bits(self.layout.num_weights))
        vectors = 1 + self.station.method.sends_control
        return float(vectors * self._codec_of(device).checked_bits(self.layout.num_weights))

    def read(self, answer: Message, part: Part, device: int) -> tuple[Tensor, float]:
        """The vector of a part that a device sent, until the next is read, and its norm; ValueError says why it is not
        to be used."""
        vector = self._decoded(answer, part, self._codec_of(device)) if self.coded else self._flat(answer)
        max_norm = self.max_norm if part is Part.UPDATE else self.max_norm / self.station.config.learning.local_lr
        norm = math.sqrt(float(torch.dot(vector, vector)))
        if norm <= max_norm and norm < math.inf:  # false of nan too: then it is looked at closely
            return vector, norm
        norm = float(torch.linalg.vector_norm(vector.double()))
        if not math.isfinite(norm):
            raise ValueError(f"its {_WORDS[part]} holds numbers that are not finite")
        if norm > max_norm:
            raise ValueError(f"its {_WORDS[part]} has norm {norm:.3g}; {max_norm:.3g} is the most")
        return vector, norm

    def _codec_of(self, device: int) -> Codec:
        return self.codecs.get(device, self.station.codec)

    def _flat(self, answer: Message) -> Tensor:
        """The arrays of an answer as one vector, in the layout's room."""
        arrays = answer.content.get("arrays")  # a view by kind would outlive the answer
        if not isinstance(arrays, ArrayRecord):
            raise ValueError("its answer lacks the record 'arrays'")
        return self.layout.flatten(arrays, out=self.layout.room)

    def _decoded(self, answer: Message, part: Part, codec: Codec) -> Tensor:
        """What stands for a message of the codec; its length is compared before anything is allocated."""
        record = answer.content.get(UPLINK)
        message = record.get(part.word) if isinstance(record, ConfigRecord) else None
        if not isinstance(message, bytes):
            raise ValueError(f"its answer lacks the bytes '{part.word}' in a record '{UPLINK}'")
        try:
            return decoded(codec, part, message, self.layout.num_weights)
        except ValueError as error:
            raise ValueError(f"its {_WORDS[part]} cannot be decoded: {error}") from None
