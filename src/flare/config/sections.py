"""Every setting of a run, a section of the file each: frozen dataclasses.

A setting is declared in one line with its default, what it means and what it may be. Checks, error messages and the
complete file with a comment for each key (`to_toml`) all come from that line.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from flare.config.options import NO_OPTIONS, Options, Value
from flare.config.setting import check, setting
from flare.config.wireless import PLAIN, WirelessConfig

MAX_SEEDS = 1000
"""Seeds of one comparison: each is a run of its own."""


FDMA, OTA = "fdma", "ota"
"""How devices share the band: each on its own part of it, or all at once over the air."""
MODELLED, WALL, AUTO = "modelled", "wall", "auto"
"""What ends a round of a fleet: its nodes, the deadline in real time, or a deadline that follows from their times."""
LONGEST_UNSEEN = "longest-unseen"
"""Which nodes are asked: those that have not been asked for longest."""


@dataclass(frozen=True)
class SchedulingConfig:
    """Who sends, and how participation is weighed against local steps."""

    policy: str = setting("exact", "name of the policy that selects the devices")
    gamma: float | str = setting(
        10.0,
        'weight of participation in problem P2; "auto": global_lr / L with the smoothness L of the loss, estimated at '
        'the start; "auto-lr": global_lr / (L local_lr tau_bar), what Lemma 1 asks for',
        at_least=0.0,
        also=("auto", "auto-lr"),
    )
    bound: bool = setting(True, "also prove, every round, the bound that a policy without proof is measured against")
    options: Options = setting(  # noqa: RUF009 (options never change)
        NO_OPTIONS, "options of the policy by name, such as num_selected = 10"
    )

    def __post_init__(self) -> None:
        check(self, "scheduling")
        if not self.policy.strip():
            raise ValueError(f'scheduling.policy is "{self.policy}"; it must be the name of a policy, such as "exact"')


@dataclass(frozen=True)
class UplinkConfig:
    """How an update travels from a device to the base station."""

    codec: str = setting(
        PLAIN, "codec of the updates: none (float32), float16, qsgd, ternary, sign, topk, or one of your own"
    )
    bits: int | str = setting(
        "default",
        'bits a weight, of codecs with an option bits (qsgd); "auto": chosen for each device with the schedule; '
        '"default": as the codec says',
        at_least=2,
        at_most=16,
        also=("auto", "default"),
        kind=int,
    )
    share: float | str = setting(
        "default",
        'share of the entries that are sent, of codecs with an option share (topk); "default": as the codec says',
        above=0.0,
        at_most=1.0,
        also=("default",),
        kind=float,
    )
    air: str = setting(
        FDMA,
        "how devices share the band: each on its own part of it, or all at once and added over the air",
        choices=(FDMA, OTA),
    )
    air_scheme: str = setting(
        "mse", "over the air, how devices scale what they send: mse, truncated-inversion, cotaf, or one of your own"
    )
    air_senders: str = setting(
        "policy",
        "over the air, who sends: whom scheduling.policy selects, or the best set by the objective with the noise",
        choices=("policy", "best"),
    )
    air_noise: float = setting(
        1.0,
        'over the air, what the noise counts where air_senders is "best": the square of an update over the variance of '
        "gradients",
        at_least=0.0,
        at_most=1e30,
    )
    options: Options = setting(  # noqa: RUF009 (options never change)
        NO_OPTIONS, "options of the codec by name, such as block = 256"
    )
    air_options: Options = setting(  # noqa: RUF009 (options never change)
        NO_OPTIONS, "options of the air scheme by name, such as max_mse = 0.1"
    )

    def __post_init__(self) -> None:
        check(self, "uplink")
        for name in ("bits", "share"):
            if getattr(self, name) != "default" and name in self.options:
                raise ValueError(
                    f"uplink.{name} is {getattr(self, name)} and uplink.options.{name} is {self.options[name]}: they "
                    "are one option; give it once"
                )

    @property
    def given(self) -> dict[str, Value]:
        """All options that are given to the codec, bits and share among them."""
        named = {name: getattr(self, name) for name in ("bits", "share")}
        return {**self.options, **{name: value for name, value in named.items() if value != "default"}}


@dataclass(frozen=True)
class DataConfig:
    """What the devices learn from, and who holds what."""

    name: str = setting("digits", "data set: digits, synthetic, mnist, fashion-mnist, cifar10, or one of your own")
    folder: str = setting("", "folder with the files of a data set, looked into first; empty: none")
    partition: str = setting(
        "iid",
        "who holds which samples: at random, by label shards (the paper's non-i.i.d.), by Dirichlet-distributed "
        "labels, by quantity, or as the data come divided",
        choices=("iid", "shards", "dirichlet", "quantity", "natural"),
    )
    shards_per_device: int = setting(2, "label shards: how many a device holds", at_least=1)
    dirichlet_alpha: float = setting(0.5, "Dirichlet partition: small is uneven, large is even", above=0.0)
    quantity_skew: float = setting(1.0, "quantity partition: sizes follow a power law of this exponent", at_least=0.0)
    share_labels: bool = setting(
        False, "devices tell the base station how many samples of each label they hold, for policies that ask for it"
    )
    share_losses: bool = setting(
        False, "devices tell the base station the loss of their samples, for policies that ask for it"
    )
    share_norms: bool = setting(
        False,
        "devices tell the base station the length of their gradient before it selects, for policies that ask for it",
    )
    share_gradients: bool = setting(
        False, "devices send the base station their gradient before it selects, for policies that ask for it"
    )
    shared_fraction: float = setting(
        0.0,
        "size of a data set that all devices share, with equally many samples of each label, taken out of what they "
        "hold, as a share of what they hold then; 0: none",
        at_least=0.0,
        at_most=1.0,
    )
    shared_part: float = setting(
        1.0, "share of the shared data that each device gets, drawn at random", above=0.0, at_most=1.0
    )
    warm_up_epochs: int = setting(
        5,
        "passes over the shared data in which the base station trains the start model, at the local learning rate",
        at_least=0,
        at_most=1000,
    )
    options: Options = setting(  # noqa: RUF009 (options never change)
        NO_OPTIONS, "options of the data set by name, such as alpha = 0.5"
    )

    def __post_init__(self) -> None:
        check(self, "data")
        if self.folder:
            object.__setattr__(self, "folder", os.path.abspath(self.folder))


@dataclass(frozen=True)
class LearningConfig:
    """How the devices learn and how the base station averages."""

    model: str = setting("mlp", "model: logistic, mlp, mnist-cnn, cifar-cnn, or one of your own")
    model_options: Options = setting(NO_OPTIONS, "options of the model by name")  # noqa: RUF009 (options never change)
    method: str = setting(
        "flare",
        "method: flare, fedavg, fedavg-fixed, fedprox, fednova, scaffold, fedlin, fedavgm, fedadam, fedyogi, fedsam, "
        "moon, heterofl, fedpaq, fedbuff, or one of your own",
    )
    asynchronous: bool = setting(
        False,
        "devices compute across rounds from the model that they last received, and those that are heard get the new "
        "one; some methods (fedbuff) and policies (hu) imply it",
    )
    local_lr: float = setting(0.05, "local learning rate", above=0.0)
    global_lr: float = setting(1.0, "global learning rate", above=0.0)
    options: Options = setting(  # noqa: RUF009 (options never change)
        NO_OPTIONS, 'options of the method by name, such as tau_bar = "mes"'
    )
    clip: float | str = setting(
        "auto",
        "an update longer than this many times the median length of late is shortened to it; 0: none is; "
        '"auto": 3 on real nodes, none in simulations',
        at_least=0.0,
        at_most=1e9,
        also=("auto",),
        kind=float,
    )
    robust: str = setting(
        "none",
        "what takes the place of the mean of updates, so that a few wrong ones are outvoted",
        choices=("none", "median", "trimmed-mean"),
    )
    trim: float = setting(
        0.25, "trimmed-mean: share of the updates left out at each end, for every weight", at_least=0.0, at_most=0.5
    )
    robust_bytes: float = setting(
        4e9,
        "median and trimmed-mean keep all updates of a round: what these may take, byte; no more devices are selected",
        at_least=1.0,
    )
    attack: str = setting(
        "none",
        "simulated attackers send noise, minus their update, or too much of it; absent: they stay away",
        choices=("none", "noise", "sign-flip", "scaled", "absent"),
    )
    attackers: int = setting(0, "how many devices are attackers, drawn with the seed", at_least=0)
    attack_scale: float = setting(
        10.0, "length of what attackers send, as a multiple of their true update", above=0.0, at_most=1e30
    )
    engine: str = setting(
        "auto", "what computes: auto takes batched on a GPU", choices=("auto", "reference", "sequential", "batched")
    )
    device: str = setting(
        "auto", "where it computes: auto takes a GPU if there is one", choices=("auto", "cpu", "cuda")
    )
    precision: str = setting(
        "float32",
        "matrix products on a GPU: float32, or tf32, which is faster and keeps about 3 digits of each factor",
        choices=("float32", "tf32"),
    )

    def __post_init__(self) -> None:
        check(self, "learning")
        if isinstance(self.clip, float) and 0.0 < self.clip < 1.0:
            raise ValueError(
                f"learning.clip is {self.clip:g}, which would shorten the median update itself; it must be 0, 1 or more"
            )


@dataclass(frozen=True)
class RunConfig:
    """When a run ends, and what it writes down."""

    rounds: int = setting(100, "end after this many rounds", at_least=1)
    seconds: float = setting(0.0, "end when the simulated clock has passed this; 0: never", at_least=0.0)
    target_accuracy: float = setting(
        0.0, "end when the test accuracy reaches this; 0: never", at_least=0.0, at_most=1.0
    )
    evaluate_every: int = setting(5, "test the global model every so many rounds (and at the last)", at_least=1)
    checkpoint_every: int = setting(20, "write a checkpoint every so many rounds (and at the last)", at_least=1)
    payload: str = setting(
        "model", "size of an update: the model's true size, or wireless.payload_bits", choices=("model", "wireless")
    )

    def __post_init__(self) -> None:
        check(self, "run")


@dataclass(frozen=True)
class FleetConfig:
    """Rounds on real nodes (`flare.flower`); a simulation does not go by these."""

    deadline: str = setting(
        MODELLED,
        "what ends a round: the last answer, with wireless.deadline_s in modelled time; wireless.deadline_s in real "
        "time; or a deadline in real time that a share of the devices makes, by the times that they took",
        choices=(MODELLED, WALL, AUTO),
    )
    deadline_share: float = setting(
        0.8, 'deadline "auto": share of the devices that are to answer in time', above=0.0, at_most=1.0
    )
    ask: int = setting(0, "how many nodes are asked in a round; 0: all", at_least=0, at_most=10_000_000)
    ask_by: str = setting(
        "random",
        "which nodes are asked where not all are: drawn at random, or those that have not been asked for longest",
        choices=("random", LONGEST_UNSEEN),
    )
    evaluate_share: float = setting(
        0.0,
        "share of the nodes, drawn at random, that test the global model on their own data every run.evaluate_every "
        "rounds; 0: none",
        at_least=0.0,
        at_most=1.0,
    )

    def __post_init__(self) -> None:
        check(self, "fleet")


MAX_SEED = 2**63 - 1
"""What tables and files of all kinds can hold."""


@dataclass(frozen=True)
class Config:
    """All settings of a run; a field that is itself a dataclass is a section of the file."""

    seed: int = setting(0, "seed of every random draw; the same seed gives the same run", at_least=0, at_most=MAX_SEED)
    wireless: WirelessConfig = field(default_factory=WirelessConfig)
    scheduling: SchedulingConfig = field(default_factory=SchedulingConfig)
    uplink: UplinkConfig = field(default_factory=UplinkConfig)
    data: DataConfig = field(default_factory=DataConfig)
    learning: LearningConfig = field(default_factory=LearningConfig)
    run: RunConfig = field(default_factory=RunConfig)
    fleet: FleetConfig = field(default_factory=FleetConfig)
    plugins: tuple[str, ...] = setting(
        (),
        "Python files of your own policies, methods, models, data sets, codecs and air schemes; relative to this file",
        of=str,
    )

    def __post_init__(self) -> None:
        check(self, "")
        for each in self.plugins:
            if "\0" in each:
                raise ValueError(f"plugins: {each!r:.80} is no path of a file: it has a NUL character")
        object.__setattr__(self, "plugins", tuple(dict.fromkeys(map(os.path.abspath, self.plugins))))


SECTIONS: dict[str, type[Any]] = {
    each.name: each.default_factory  # type: ignore[misc]
    for each in fields(Config)
    if is_dataclass(each.default_factory)
}
"""The sections of the file by name."""


def settings_of(config: Config) -> dict[str, Any]:
    """Every setting by its dotted name, such as "wireless.deadline_s", in the order of the file."""
    table: dict[str, Any] = {}
    for each in fields(config):
        value = getattr(config, each.name)
        if is_dataclass(value):
            table |= {f"{each.name}.{inner.name}": getattr(value, inner.name) for inner in fields(value)}
        else:
            table[each.name] = value
    return table
