"""FedPAQ: local steps, partial participation and quantised updates (Reisizadeh et al., AISTATS 2020, Alg. 1).

Paper -> code: x_k -> the global weights, tau -> each device's steps, r -> the selected devices, Q -> codec `qsgd`.

    x_{k+1}  =  x_k + (1/r) sum_i Q(x_{k,tau}^(i) - x_k)

That is FedAvg with a codec: what sets FedPAQ apart happens in the uplink, so that here is only what it asks of it. Its
example of a quantiser (section 2.3, low-precision) is that of `qsgd` with another scale: the authors scale by the
2-norm of the update, the codec by the greatest entry of each block, which is less noise for the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor

from flare.learning.job import LocalRule
from flare.learning.methods.base import MethodState, PlainMethod, Round
from flare.learning.methods.registry import method
from flare.learning.methods.steps import equal_rates


@method("fedpaq")
@final
@dataclass(frozen=True)
class FedPaq(PlainMethod):
    """FedPAQ: FedAvg whose updates are sent in a few bits a weight (uplink.codec=qsgd)."""

    needs_codec = "qsgd"

    def rules(self, state: MethodState, now: Round, common_gradient: Tensor | None) -> list[LocalRule]:
        """Plain gradient descent, Alg. 1, line 6."""
        return equal_rates(now)
