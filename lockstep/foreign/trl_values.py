"""Values of TRL's keys: of its preference trainers, rewards, corrections, optimizers and trackers."""

from __future__ import annotations

import re
from collections.abc import Mapping

from lockstep.foreign import sentences as say
from lockstep.foreign.conversions import Lookup, nothing, refuse, section
from lockstep.foreign.words import Answer, Config, Convert, Json, Several, Unset

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


SCALES: dict[Json, Json | Unset] = {"group": "group", "batch": "batch", "none": "none", True: "group", False: "none"}
OF_LEARNER = nothing("learner.dtype says it")
DTYPES: dict[Json, Json | Unset] = {
    **dict.fromkeys(("bfloat16", "auto", "float16", "float32", None), OF_LEARNER),
}


def bf16(value: Json, config: Config) -> Answer:
    """The dtype of the learner, from `bf16` and `fp16`."""
    if config.says("fp16"):
        return "fp16"
    return "bf16" if value is not False else "fp32"


def betas(value: Json, config: Config) -> Answer:
    """Both betas of AdamW."""
    return [config.number("adam_beta1", 0.9), config.number("adam_beta2", 0.999)]


def length(value: Json, config: Config) -> Answer:
    """A bound on lengths, which must be there."""
    return value if value else refuse("no bound on lengths; say max_tokens")


def with_vllm(convert: Convert) -> Convert:
    """The conversion of a key that is read where vLLM generates."""
    return lambda value, config: convert(value, config) if config.says("use_vllm") else nothing("use_vllm is false")


_CORRECTIONS: dict[Json, Json | Unset] = {
    "token_truncate": "token_tis", "sequence_truncate": "sequence_tis", "token_mask": "icepop",
    "sequence_mask": refuse("whole responses are left out there whose ratio is out of bounds; "
                            "here tokens (icepop), or their weight is bounded (token_tis, sequence_tis)"),
}  # fmt: skip


def correction(value: Json, config: Config) -> Answer:
    """The kind of correction for what vLLM samples; a mask without a lower bound has 0 here."""
    if config.get("vllm_importance_sampling_correction") is False:
        return nothing("no correction")
    kind = Lookup(_CORRECTIONS)(value, config)
    if value == "token_mask" and isinstance(kind, str):
        return section("ppo.correction", kind=kind, low=config.number("vllm_importance_sampling_clip_min", 0.0))
    return kind


def _corrects(config: Config) -> bool:
    return not isinstance(correction(config.get("vllm_importance_sampling_mode"), config), Unset)


def correction_bound(value: Json, config: Config) -> Answer:
    """The upper bound of a correction."""
    if not _corrects(config):
        return nothing("no such correction")
    return refuse("no bound from above; here there is one") if value is None else value


def correction_low(value: Json, config: Config) -> Answer:
    """The lower bound of a mask."""
    if value is None or not _corrects(config):
        return nothing("no bound from below")
    if config.get("vllm_importance_sampling_mode") != "token_mask":
        return refuse("weights have a bound from below there; here from above alone")
    return value


def strategy(value: Json, config: Config) -> Answer:
    """The times of validation."""
    if value == "epoch":
        return refuse("an evaluation per epoch; run.validate_every counts steps")
    return nothing("no validation" if value in (None, "no") else "eval_steps says it")


def with_lora(convert: Convert) -> Convert:
    """The conversion of a key that is read where LoRA is trained."""
    return lambda value, config: convert(value, config) if config.says("use_peft") else nothing("use_peft is false")


def lora(value: Json, config: Config) -> Answer:
    """LoRA, with TRL's defaults."""
    if value is not True:
        return nothing("no LoRA")
    return section("learner.lora", rank=config.whole("lora_r", 16), alpha=config.whole("lora_alpha", 32))


def modules(value: Json, config: Config) -> Answer:
    """The maps that get LoRA."""
    if value in (None, "all-linear"):
        return nothing("all linear maps, as here without a word" if value else "peft chooses them")
    return value if isinstance(value, list) else [value]


def tracker(value: Json, config: Config) -> Answer:
    """The trackers."""
    names = [name for name in (value if isinstance(value, list) else [value]) if name not in (None, "none")]
    unknown = [str(name) for name in names if name not in ("wandb", "tensorboard", "mlflow")]
    if unknown:
        return refuse(f"there is no tracker {', '.join(unknown)}")
    return section("trackers", **{str(name): {} for name in names}) if names else nothing("none")


def run_name(value: Json, config: Config) -> Answer:
    """The run's name, for the tracker that has a use for it."""
    named = config.get("report_to")
    loggers = named if isinstance(named, list) else [named]
    return str(value) if "wandb" in loggers else nothing("no tracker has a use for it")


def best(value: Json, config: Config) -> Answer:
    """The metric by which checkpoints are kept."""
    return refuse(f"the metric {value} has another name here; docs/coming_from.md") if value else nothing("none")


def temperature(value: Json, config: Config) -> Answer:
    """The temperature of training and validation."""
    return Several({"sampling.temperature": value, "validation_sampling.temperature": value})


_VERIFIERS = ("accuracy_reward", "trl.rewards.accuracy_reward")
_WRITE = "write functions of ours in the place of theirs, docs/guides/rewards.md"


def rewards(value: Json, config: Config) -> Answer:
    """Reward functions: math-verify where theirs is that, else functions that have to be written."""
    named = [str(name) for name in _list(value)]
    weights = _list(config.get("reward_weights"))
    each = weights if len(weights) == len(named) else [1.0] * len(named)
    answers: dict[str, Json] = {"data.answer": "{solution}"} if set(_VERIFIERS) & set(named) else {}
    unfinished = "" if set(named) <= set(_VERIFIERS) else _WRITE
    if len(named) == 1 and each == [1.0]:
        return Several(answers | {f"reward.{key}": value for key, value in _reward(named[0]).items()}, unfinished)
    parts: dict[str, Json] = {
        _name_part(name): {**_reward(name), "weight": weight} for name, weight in zip(named, each, strict=True)
    }
    if not named or len(parts) < len(named):
        return refuse("functions of theirs with no name of their own: docs/guides/rewards.md")
    return Several(answers | {"reward.type": "sum", "reward.parts": parts}, unfinished)


def _list(value: Json) -> list[Json]:
    """The values of a key that has one or several."""
    return [] if value in (None, "") else value if isinstance(value, list) else [value]


def _reward(name: str) -> dict[str, Json]:
    is_math = name in _VERIFIERS
    return {"type": "math"} if is_math else {"type": "python", "function": f"my_rewards.py:{_name_part(name)}"}


def _name_part(name: str) -> str:
    """A name that a part may have: that of a function, without its module."""
    return re.sub(r"\W", "_", re.split(r"[./]", name)[-1])


def weights(value: Json, config: Config) -> Answer:
    """The weights of several rewards."""
    each = _list(value)
    if each in ([], [1.0]):
        return nothing("one reward, as it is")
    if len(_list(config.get("reward_funcs"))) == len(each):
        return nothing("those of reward.parts")
    return refuse("weights are of the parts of a sum: reward.parts.<name>.weight (docs/guides/rewards.md)")


def validation_split(value: Json, config: Config) -> Answer:
    """The split of held-out rows."""
    return nothing("data.validation is a file of its own, since there are no splits")


def _is_cispo(config: Config) -> bool:
    return config.get("loss_type") == "cispo"


def clip(value: Json, config: Config) -> Answer:
    """The lower distance of the clip, which CISPO has none of."""
    return nothing("epsilon_high alone bounds the ratio of cispo") if _is_cispo(config) else value


def clip_high(value: Json, config: Config) -> Answer:
    """The upper distance of the clip; in CISPO theirs is the bound on the ratio itself."""
    if not isinstance(value, int | float) or not _is_cispo(config):
        return nothing("that of epsilon, as here") if value is None else value
    return round(value - 1, 9) if value > 1 else refuse("a ratio of at most 1; here a distance above 1")
