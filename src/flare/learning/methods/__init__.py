"""Learning methods by name, and what one is made of."""

from flare.learning.methods.flare import Flare  # noqa: I001  (they register the methods, in this order)
from flare.learning.methods.fedavg import FedAvg, FedAvgFixed
from flare.learning.methods.fedprox import FedProx
from flare.learning.methods.fednova import FedNova
from flare.learning.methods.scaffold import Scaffold
from flare.learning.methods.fedlin import FedLin
from flare.learning.methods.fedavgm import FedAvgM
from flare.learning.methods.fedadam import FedAdam, FedYogi
from flare.learning.methods.fedsam import FedSam
from flare.learning.methods.moon import Moon
from flare.learning.methods.fedbuff import FedBuff
from flare.learning.methods.fedpaq import FedPaq
from flare.learning.methods.heterofl import HeteroFl
from flare.learning.methods.around import AroundMethod
from flare.learning.methods.base import (
    MeanReducer,
    Method,
    MethodState,
    PlainMethod,
    Reducer,
    ReducerAround,
    Round,
    Sizes,
    takes_mean,
)
from flare.learning.methods.registry import METHODS, MethodKind, make_method, method
from flare.learning.methods.steps import equal_rates, scaled_rates

__all__ = [
    "METHODS",
    "AroundMethod",
    "FedAdam",
    "FedAvg",
    "FedAvgFixed",
    "FedAvgM",
    "FedBuff",
    "FedLin",
    "FedNova",
    "FedPaq",
    "FedProx",
    "FedSam",
    "FedYogi",
    "Flare",
    "HeteroFl",
    "MeanReducer",
    "Method",
    "MethodKind",
    "MethodState",
    "Moon",
    "PlainMethod",
    "Reducer",
    "ReducerAround",
    "Round",
    "Scaffold",
    "Sizes",
    "equal_rates",
    "make_method",
    "method",
    "scaled_rates",
    "takes_mean",
]
