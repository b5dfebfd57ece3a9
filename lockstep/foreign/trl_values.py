"""Values of TRL's preference trainers and of its optimizers."""

from __future__ import annotations

from collections.abc import Mapping

from lockstep.foreign import sentences as say
from lockstep.foreign.conversions import Lookup, nothing, refuse, section
from lockstep.foreign.words import Answer, Config, Json

_LOSSES_OF_PAIRS: Mapping[str, Mapping[str, Json]] = {
    "sigmoid": {"preference_loss": "dpo"},
    "robust": {"preference_loss": "robust"},
    "ipo": {"preference_loss": "ipo", "preference_average_log_probs": True},
}

_AT_NO_SMOOTHING = {"robust": "sigmoid"}
"""Losses that are another one without label smoothing."""


def convert_loss_of_pairs(value: Json, config: Config) -> Answer:
    """One loss of pairs, with the likelihood of chosen answers beside it or not."""
    names: list[Json] = value if isinstance(value, list) else [value]
    others = [name for name in names if name != "sft"]
    if len(others) != 1:
        return refuse(f"one loss of pairs, and sft beside it, not {value}")
    loss = Lookup({name: name for name in _LOSSES_OF_PAIRS})(others[0], config)
    if not isinstance(loss, str):
        return loss
    parts = dict(_LOSSES_OF_PAIRS[loss if config.get("label_smoothing") else _AT_NO_SMOOTHING.get(loss, loss)])
    if "sft" in names:
        weights = config.get("loss_weights")
        weight = weights[names.index("sft")] if isinstance(weights, list) and len(weights) == len(names) else 1.0
        parts |= {"sft_loss_weight": weight, "sft_average_log_probs": True}
    return section("dpo", **parts)


def convert_weights(value: Json, config: Config) -> Answer:
    """The weight of the loss of pairs."""
    names = config.get("loss_type")
    if not isinstance(value, list) or not isinstance(names, list) or len(value) != len(names):
        return nothing("none") if value is None else refuse("loss_weights without as many names in loss_type")
    first = next((i for i, name in enumerate(names) if name != "sft"), None)
    return refuse("there is no loss of pairs in loss_type") if first is None else value[first]


def convert_label_smoothing(value: Json, config: Config) -> Answer:
    """ε, of the losses that read it."""
    said = config.get("loss_type") or "sigmoid"
    if not value or not {"sigmoid", "robust"} & set(map(str, said if isinstance(said, list) else [said])):
        return nothing("this loss does not read it" if value else "none")
    return value


_OPTIMIZERS = {"sgd": "SGD", "adagrad": "Adagrad", "rmsprop": "RMSprop", "nadam": "NAdam", "radam": "RAdam"}


def has_adamw(config: Config) -> bool:
    """True if the config's optimizer is a kind of AdamW."""
    return str(config.get("optim") or "adamw").startswith("adamw")


def convert_optimizer(value: Json, config: Config) -> Answer:
    """An optimizer of `transformers`, by its name in torch."""
    if has_adamw(config):
        return nothing(say.ADAMW)
    name = _OPTIMIZERS.get(str(value))
    if name is None:
        return refuse("there is no such optimizer: docs/guides/optimizers.md")
    # Torch's own default, which is another one of Adagrad.
    return section("policy", name=name, eps=1e-10) if name == "Adagrad" else section("policy", name=name)
