"""What somebody meant who wrote a key that there is not: the nearest key, or the one that other people's word means."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from flare.config.sections import SECTIONS, Config
from flare.config.setting import dotted
from flare.text import nearest

_NEAR_IN_SECTION = 0.75  # difflib's ratio from which a key is taken for a misspelling of another
_NEAR_ANYWHERE = 0.8


@dataclass(frozen=True)
class Moved:
    """A key that is an option now: the section it was and is in, its name as an option, what meant "not given", and
    the part that has it: the key of the section that names the part, and its name; ("", "") where several have it."""

    section: str
    key: str
    option: str
    default: Any
    part: tuple[str, str] = ("", "")

    @property
    def former(self) -> str:
        """The setting as it was written once."""
        return f"{self.section}.{self.key}"

    @property
    def where(self) -> str:
        """The setting as it is written now."""
        return f"{self.section}.options.{self.option}"


MOVED = (
    Moved("scheduling", "num_selected", "num_selected", 0),
    Moved("learning", "tau_bar", "tau_bar", "mas", ("method", "flare")),
    Moved("learning", "fixed_steps", "fixed_steps", 3, ("method", "fedavg-fixed")),
    Moved("learning", "tau_eff", "tau_eff", "mes", ("method", "fednova")),
    Moved("learning", "prox_mu", "prox_mu", 0.1, ("method", "fedprox")),
    Moved("data", "synthetic_alpha", "alpha", 1.0, ("name", "synthetic")),
    Moved("data", "synthetic_beta", "beta", 1.0, ("name", "synthetic")),
)
"""Keys that have moved, and where to."""
MEANINGS: dict[str, str] = {
    "learning.local_lr": "lr learning_rate eta step_size client_lr",
    "learning.global_lr": "lr learning_rate eta step_size server_lr",
    "learning.method": "algorithm strategy optimizer aggregation",
    "learning.model": "network architecture net",
    "learning.device": "gpu cuda",
    "learning.engine": "backend",
    "learning.clip": "clipping max_norm clip_norm norm_clip",
    "learning.robust": "byzantine reducer aggregator aggregation krum median",
    "learning.trim": "trimmed beta",
    "learning.attack": "adversary byzantine malicious",
    "learning.attackers": "num_attackers byzantine num_byzantine malicious adversaries",
    "run.rounds": "epochs num_rounds iterations num_epochs",
    "run.seconds": "time duration",
    "run.target_accuracy": "target accuracy",
    "run.evaluate_every": "eval_every test_every",
    "run.checkpoint_every": "save_every checkpoint",
    "wireless.batch_size": "batch bs b minibatch mini_batch batchsize",
    "wireless.tau_mean": "epochs local_epochs local_steps steps tau num_epochs",
    "wireless.tau_values": "tau",
    "wireless.num_devices": "k n devices clients num_clients users num_users nodes num_nodes workers num_workers",
    "wireless.total_bandwidth_hz": "b bandwidth band bw",
    "wireless.deadline_s": "deadline latency t_max timeout",
    "wireless.guard": "margin slack headroom reserve safety_margin",
    "wireless.payload_bits": "payload_size model_size upload_size s",
    "wireless.power_dbm": "power tx_power p",
    "wireless.downlink": "broadcast",
    "wireless.downlink_power_dbm": "bs_power base_station_power power_bs",
    "wireless.downlink_codec": "broadcast_codec",
    "wireless.noise_dbm_per_mhz": "noise n0",
    "wireless.min_distance_m": "distance",
    "wireless.max_distance_m": "distance radius",
    "wireless.cpu_min_hz": "cpu",
    "wireless.cpu_max_hz": "cpu",
    "scheduling.policy": "scheduler selection strategy",
    "scheduling.gamma": "weight",
    "scheduling.options": "num_selected clients_per_round fraction_fit frac m",
    "uplink.codec": "compression compressor quantizer quantiser quantization quantisation encoding encoder",
    "uplink.bits": "num_bits quantization_bits quantisation_bits levels",
    "uplink.share": "sparsity topk top_k keep fraction",
    "uplink.options": "block block_size error_feedback",
    "uplink.air": "ota over_the_air aircomp analog multiple_access access",
    "uplink.air_options": "max_mse threshold",
    "learning.options": "mu prox_mu tau_bar tau_eff fixed_steps local_epochs local_steps steps",
    "learning.model_options": "hidden width layers depth",
    "data.options": "alpha beta",
    "data.name": "dataset data_set",
    "data.folder": "data_dir root path",
    "data.partition": "split iid noniid non_iid",
    "fleet.ask": "fraction_train fraction_fit sample_size",
    "fleet.evaluate_share": "fraction_evaluate evaluate",
    "seed": "random_seed random_state rng",
}
"""Settings, with the words that people type for them elsewhere."""


def refuse_unknown(keys: Iterable[str], section: str) -> None:
    """ValueError where one of the keys is none of the section ("": the head of the file), with what may be meant."""
    own = _keys_of(section)
    unknown = next((key for key in keys if key not in own), None)
    if unknown is None:
        return
    name = dotted(section, unknown)
    for moved in MOVED:
        if name == moved.former:
            raise ValueError(
                f"{name} has moved: it is an option now; write {moved.option} = ... below [{section}.options] in a "
                f"file, or {moved.where}=..."
            )
    meant = meant_by(unknown, section)
    if not meant:
        listed = f"[{section}] has the keys" if section else "there are seed, plugins and the sections"
        keys = own if section else list(SECTIONS)
        raise ValueError(f"unknown key {name}; {listed} {', '.join(keys)}")
    raise ValueError(f"unknown key {name}; the nearest known key is {' or '.join(meant)}")


def meant_by(key: str, section: str) -> tuple[str, ...]:
    """The settings, with their sections, that a key which there is not may stand for; none where nothing is near.

    Looked for are, in turn: the very key in another section (with those of the same meaning), a misspelling of one of
    the section's own, one that has the same word in it (`lr`: `local_lr`), one of the same meaning (`learning_rate`), a
    misspelling of any.
    """
    word = key.lower().replace("-", "_")
    own = {name: dotted(section, name) for name in _keys_of(section)}
    everywhere = {name: dotted(other, name) for other in (*SECTIONS, "") for name in _keys_of(other)}
    same_meaning = tuple(name for name, words in MEANINGS.items() if word in words.split())
    if word in everywhere:
        return (*same_meaning, everywhere[word])
    near = nearest(word, own, min_ratio=_NEAR_IN_SECTION)
    if near is not None:
        return (own[near],)
    parts = set(word.split("_"))
    with_word = tuple(name for short, name in own.items() if section and parts <= set(short.split("_")))
    if with_word and len(word) > 1:
        return with_word
    if same_meaning:
        return same_meaning
    near = nearest(word, everywhere, min_ratio=_NEAR_ANYWHERE)
    return () if near is None else (everywhere[near],)


def _keys_of(section: str) -> list[str]:
    return [each.name for each in fields(SECTIONS[section] if section else Config)]
