"""Steps of NeMo RL's trainers, ends of its runs, and schedules of learning rates."""

from __future__ import annotations

import math

from lockstep.foreign import sentences as say
from lockstep.foreign.conversions import nothing, number, positive, refuse, section
from lockstep.foreign.words import Answer, Config, Convert, Json, Kind, Unset

TRAINERS = {
    "ppo": "ppo", "grpo": "grpo", "dpo": "dpo", "sft": "sft", "rm": "reward_model", "distillation": "distill",
}  # fmt: skip
MEGATRON = "policy.megatron_cfg"
ENDLESS = 1_000_000
"""GRPO's steps where a config does not say them: more than a run has."""
ALL_SETS = 10_000_000
"""Rows that no data set has: where a run of so many steps needs more, its passes end it."""
OF_ENDLESS = 1_000_000
"""Rows that data sets stay below where the steps are `ENDLESS`."""


def find_trainer(config: Config) -> str | None:
    """The top-level section that names what is trained; PPO's goes before."""
    of_algorithm = next((name for name, ours in TRAINERS.items() if ours == config.algorithm), None)
    return next((name for name in TRAINERS if any(key.startswith(f"{name}.") for key in config.given)), of_algorithm)


def algorithm(config: Config) -> str | None:
    """The algorithm of ours that trains likewise."""
    trainer = find_trainer(config)
    return None if trainer is None else TRAINERS[trainer]


def key_of(config: Config, name: str) -> str:
    """A key of the section that names what is trained."""
    return f"{find_trainer(config)}.{name}"


def is_megatron(config: Config, owner: str = "policy") -> bool:
    """True if Megatron trains a model."""
    return config.says(f"{owner}.megatron_cfg.enabled")


def count_updates(config: Config) -> int:
    """Optimizer steps of one pass over a step's responses, after which their scheduler makes a step."""
    prompts, each = (
        config.whole(key_of(config, "num_prompts_per_step"), 0),
        config.whole(key_of(config, "num_generations_per_prompt"), 1),
    )
    return max(1, prompts * each // max(1, config.whole("policy.train_global_batch_size", 1)))


def has_one_update(config: Config) -> bool:
    """True if a step has one optimizer step, in which the policy is still the one that sampled."""
    return count_updates(config) * config.whole(key_of(config, "ppo_epochs"), 1) == 1


# What ends a run.


def batch_factor(config: Config) -> float:
    """Prompts that dynamic sampling draws at a time, divided by those of a step."""
    return (
        config.number(key_of(config, "batch_multiplier"), 1)
        if config.says(key_of(config, "use_dynamic_sampling"))
        else 1
    )


def _count_needed(config: Config) -> float:
    """Rows of a data set of which the passes would last as long as the steps, or longer with dynamic sampling."""
    rows = config.whole(key_of(config, "num_prompts_per_step"), config.whole("policy.train_global_batch_size", 1))
    rows = int(rows * batch_factor(config))
    steps, passes = config.number(key_of(config, "max_num_steps")), config.number(key_of(config, "max_num_epochs"), 1)
    try:
        return steps * rows / max(1, passes)
    except OverflowError:
        return math.inf


def _is_async(config: Config) -> bool:
    return config.says("grpo.async_grpo.enabled") or config.says("ppo.async_ppo.enabled")


def _ends_by_epochs(config: Config) -> bool:
    steps = config.number(key_of(config, "max_num_steps"))
    most = OF_ENDLESS if steps >= ENDLESS else ALL_SETS
    return steps <= 0 or (not _is_async(config) and _count_needed(config) > most)


def max_steps(value: Json, config: Config) -> Answer:
    """Steps of the run, unless its passes certainly end it before."""
    if _ends_by_epochs(config) and config.number(key_of(config, "max_num_steps")) > 0:
        return nothing(f"max_num_epochs ends the run before, of any data set below {_count_needed(config):,.0f} rows")
    return positive("max_num_epochs decides")(value, config)


def max_epochs(value: Json, config: Config) -> Answer:
    """Passes over the rows, where steps do not end the run before."""
    if _ends_by_epochs(config):
        return value
    if _is_async(config):
        return nothing("max_num_steps alone ends an asynchronous run")
    return Unset(Kind.DIFFERS, "the first of both ends the run there, and run.max_steps alone here")


def describe_end(config: Config) -> str:
    """Says what ends the run there where that depends on the number of rows; else empty."""
    steps, passes = config.number(key_of(config, "max_num_steps")), config.number(key_of(config, "max_num_epochs"), 1)
    needed = _count_needed(config)
    if not 0 < passes < steps or needed > ALL_SETS or _is_async(config):
        return ""
    if _ends_by_epochs(config):
        return (
            f"with fewer than {needed:,.0f} rows max_num_epochs ends the run there; where max_num_steps does, say "
            f"run.max_steps={int(steps)} in place of run.max_epochs"
        )
    return (
        f"the run ends there after max_num_epochs = {int(passes)}, if its steps do not end it before: with fewer than "
        f"{needed:,.0f} rows, say run.max_epochs={int(passes)} in place of run.max_steps"
    )


# Schedules of learning rates.


def scheduler(owner: str, ours: str) -> Convert:
    """Torch's schedulers of a model: a linear warmup, and then constant or cosine."""

    def convert(value: Json, config: Config) -> Answer:
        stages = _stages(value)
        names, warmup = [name for name, _ in stages], _warmup_iters(value)
        rest = stages[1:] if names[:1] == ["LinearLR"] else stages
        if [name for name, _ in rest] not in ([], ["ConstantLR"], ["CosineAnnealingLR"]) or warmup is None:
            return refuse(f"there is no counterpart of {' and '.join(names)} as these are set; {ours}.decay is linear "
                          "or cosine")  # fmt: skip
        steps = {"warmup_steps": warmup * count_updates(config)} if warmup else {}
        if rest and rest[0][0] == "CosineAnnealingLR":
            return _cosine(owner, ours, rest[0][1], warmup, steps, config)
        return section(ours, **steps) if steps else nothing("constant")

    return convert


def _cosine(
    owner: str, ours: str, kwargs: dict[str, Json], warmup: int, steps: dict[str, int], config: Config
) -> Answer:
    length, lowest = kwargs.get("T_max"), kwargs.get("eta_min", 0.0)
    rate = number(config.get(f"{owner}.optimizer.kwargs.lr"), config)
    if not isinstance(length, int) or not isinstance(lowest, int | float) or not isinstance(rate, int | float):
        return refuse("a decay of no known length, or to no known rate")
    total = (warmup + length) * count_updates(config)
    return section(ours, decay="cosine", decay_steps=total, final_fraction=lowest / rate, **steps)


def _stages(value: Json) -> list[tuple[str, dict[str, Json]]]:
    """The schedulers of a list by their short names, with their arguments."""
    listed = value if isinstance(value, list) else [value]
    return [
        (str(stage["name"]).rsplit(".", 1)[-1], kwargs)
        for stage in listed
        if isinstance(stage, dict) and "name" in stage and isinstance(kwargs := stage.get("kwargs", {}), dict)
    ]


def _warmup_iters(value: Json) -> int | None:
    """Their steps of a linear warmup to the full rate, 0 without one; None: it is something else."""
    stages = _stages(value)
    if any(name == "ConstantLR" and kwargs.get("factor") != 1.0 for name, kwargs in stages):
        return None
    if not stages or stages[0][0] != "LinearLR":
        return 0
    kwargs = stages[0][1]
    steps = kwargs.get("total_iters")
    ends = [stage["milestones"] for stage in value if isinstance(stage, dict) and "milestones" in stage] if isinstance(
        value, list) else []  # fmt: skip
    is_warmup = kwargs.get("end_factor", 1.0) == 1.0 and isinstance(steps, int) and ends in ([], [[steps]])
    return steps if is_warmup and isinstance(steps, int) else None


def find_start(config: Config) -> tuple[float, int] | None:
    """The share of the rate at which a warmup of the policy begins there, and its steps here; None: there is none."""
    if is_megatron(config):
        steps = config.whole(f"{MEGATRON}.scheduler.lr_warmup_iters", 0)
        rate = config.number(f"{MEGATRON}.optimizer.lr")
        share = config.number(f"{MEGATRON}.scheduler.lr_warmup_init") / rate if rate else 0.0
    else:
        value = config.get("policy.scheduler")
        stages, steps = _stages(value), _warmup_iters(value) or 0
        start = stages[0][1].get("start_factor", 1 / 3) if stages else 0.0
        share = start if isinstance(start, int | float) else 0.0
    return (share, steps * count_updates(config)) if steps > 0 else None


def megatron_schedule(owner: str, ours: str) -> Convert:
    """Megatron's decay, whose length counts the warmup, as ours does."""

    def convert(value: Json, config: Config) -> Answer:
        own = f"{owner}.megatron_cfg"
        steps, rate = config.whole(f"{own}.scheduler.lr_decay_iters", 0), config.number(f"{own}.optimizer.lr")
        if value == "constant":
            return nothing("constant")
        if value not in ("linear", "cosine") or steps <= 0 or not rate:
            return refuse(f"there is no counterpart of {value}, or its length is not said")
        final = config.number(f"{own}.optimizer.min_lr") / rate
        return section(ours, decay=value, decay_steps=steps * count_updates(config), final_fraction=final)

    return convert


def megatron_warmup(value: Json, config: Config) -> Answer:
    """Megatron's warmup, whose steps are those of their scheduler."""
    steps = value if isinstance(value, int) else 0
    return steps * count_updates(config) if steps else nothing("no warmup")


def optimizer(value: Json, config: Config) -> Answer:
    """AdamW; others have options of their own."""
    adams = ("torch.optim.AdamW", "adam", "torch.optim.adamw.AdamW")
    return nothing(say.ADAMW) if value in adams else refuse(
        "the recipe has AdamW; policy.name takes another of torch.optim: docs/guides/optimizers.md")  # fmt: skip


def betas(owner: str) -> Convert:
    """Both betas of Megatron's Adam."""

    def convert(value: Json, config: Config) -> Answer:
        own = f"{owner}.megatron_cfg.optimizer"
        return [config.number(f"{own}.adam_beta{i}", otherwise) for i, otherwise in ((1, 0.9), (2, 0.999))]

    return convert
