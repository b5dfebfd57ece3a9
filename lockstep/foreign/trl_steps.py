"""Steps of TRL's trainers: their rows, their optimizer steps, and the scale of their gradient."""

from __future__ import annotations

import math
from dataclasses import replace

from lockstep.foreign.conversions import Lookup, nothing, positive, refuse, section, share_of_steps
from lockstep.foreign.trl_values import convert_optimizer, has_adamw
from lockstep.foreign.words import Answer, Config, Convert, Json, Kind, Several, Unset


def is_rloo(config: Config) -> bool:
    """True for the trainer of RLOO."""
    return "rloo" in config.program.lower()


def count_rows(config: Config) -> int:
    """Rows of an optimizer step, over all processes."""
    each = config.whole("per_device_train_batch_size", 8) * config.whole("gradient_accumulation_steps", 1)
    return max(1, each * (config.processes or 1))


def count_generated(config: Config) -> int:
    """Responses that GRPO and RLOO generate at a time."""
    accumulated = config.whole("gradient_accumulation_steps", 1)
    each = config.whole("per_device_train_batch_size", 8) * config.whole("steps_per_generation", accumulated)
    return config.whole("generation_batch_size", each * (config.processes or 1))


def _count_updates(config: Config) -> int:
    """Optimizer steps of one of our steps."""
    match config.algorithm:
        case "grpo":
            return max(1, count_generated(config) // count_rows(config) * config.whole("num_iterations", 1))
        case "ppo":
            return max(1, _count_of_pass(config) * config.whole("num_ppo_epochs", 1))
        case _:
            return 1


def _count_of_pass(config: Config) -> int:
    """Optimizer steps of one of PPO's passes over a batch.

    Accelerate makes one every `gradient_accumulation_steps` backward passes, and a minibatch is at least one of these:
    two minibatches of two backward passes each are one step where four are accumulated.
    """
    return max(1, config.whole("num_mini_batches", 1) // config.whole("gradient_accumulation_steps", 1))


def _in_our_steps(steps: float, config: Config) -> int:
    """GRPO and RLOO count optimizer steps, where ours count what is generated, as PPO does."""
    return math.ceil(steps / _count_updates(config)) if config.algorithm == "grpo" else int(steps)


def batch(value: Json, config: Config) -> Answer:
    """Rows of a step, and of an optimizer step."""
    rows = count_rows(config)
    if config.algorithm not in ("grpo", "ppo"):
        own = config.algorithm
        if own == "online_dpo":
            return section("online_dpo", num_prompts_per_step=rows)
        sizes: dict[str, Json] = {f"{own}.global_batch_size": rows}
        return Several(sizes | {"distill.num_prompts_per_step": rows} if own == "distill" else sizes)
    if config.algorithm == "ppo":
        parts, passes = config.whole("num_mini_batches", 1), config.whole("gradient_accumulation_steps", 1)
        if max(parts, passes) % min(parts, passes):
            return refuse(
                f"of {parts} minibatches, and {passes} backward passes a step, steps reach into the next batch"
            )
        return section("ppo", num_prompts_per_step=rows, global_batch_size=rows // _count_of_pass(config))
    generated, each = count_generated(config), config.whole("num_generations", 8)
    if each < 1 or generated % each:
        return refuse(f"{generated} responses at a time are no whole number of groups of {each}; say the processes")
    return section("grpo", num_prompts_per_step=generated // each, global_batch_size=rows)


_RATIO = "the ratio of a response that is used again, and its clip, are of the whole response there, of each token here"


def convert_generated(value: Json, config: Config) -> Answer:
    """Responses generated at a time, of which several optimizer steps may be made."""
    reuses = is_rloo(config) and count_generated(config) > count_rows(config)
    answer = batch(value, config)
    return replace(answer, unfinished=_RATIO) if reuses and isinstance(answer, Several) else answer


def iterations(value: Json, config: Config) -> Answer:
    """Passes over the responses of a step."""
    return Unset(Kind.LOST, _RATIO) if is_rloo(config) and value != 1 else value


def of_gradient(convert: Convert) -> Convert:
    """The conversion of a size of gradients: RLOO's are of sums over tokens, ours of these by `sampling.max_tokens`."""

    def convert_given(value: Json, config: Config) -> Answer:
        answer = convert(value, config)
        if not isinstance(answer, int | float) or not is_rloo(config):
            return answer
        return answer / config.whole("max_completion_length", 512)

    return convert_given


def optimizer(value: Json, config: Config) -> Answer:
    """The optimizer; of others than AdamW a step may grow with the gradient, of which RLOO has another scale."""
    if is_rloo(config) and not has_adamw(config):
        return Unset(
            Kind.LOST, "gradients are smaller by sampling.max_tokens here, which AdamW's steps alone do not show"
        )
    return convert_optimizer(value, config)


def count_steps(config: Config) -> float:
    """Steps of the run as their trainer counts them; -1 where epochs count."""
    episodes = config.whole("total_episodes", 0)
    return config.number("max_steps", -1) if not episodes else math.ceil(episodes / count_rows(config))


def count_scheduled(config: Config) -> float:
    """Optimizer steps of the run, which our schedules count; PPO's scheduler counts batches."""
    return count_steps(config) * (_count_updates(config) if config.algorithm == "ppo" else 1)


def max_steps(value: Json, config: Config) -> Answer:
    """Steps of the run."""
    steps = positive("num_train_epochs decides")(value, config)
    return _in_our_steps(steps, config) if isinstance(steps, int | float) else steps


def max_epochs(value: Json, config: Config) -> Answer:
    """Passes over the rows."""
    if count_steps(config) > 0:
        return nothing("the run ends after its steps")
    if isinstance(value, int | float) and float(value).is_integer():
        return int(value)
    return refuse("epochs are whole")


def of_critic_too(convert: Convert, key: str) -> Convert:
    """The conversion of an option of the one optimizer that policy and critic share there."""

    def convert_given(value: Json, config: Config) -> Answer:
        answer = convert(value, config)
        if config.algorithm != "ppo" or isinstance(answer, Unset):
            return answer
        options = answer.values if isinstance(answer, Several) else {f"policy.{key}": answer}
        return Several({**options, **{f"critic.{name.removeprefix('policy.')}": x for name, x in options.items()}})

    return convert_given


def decay(value: Json, config: Config) -> Answer:
    """The form of the schedule, and its length."""
    if value in ("constant", "constant_with_warmup"):
        return nothing("constant")
    form = Lookup({"linear": "linear", "cosine": "cosine", "cosine_with_min_lr": "cosine"})(value, config)
    if not isinstance(form, str):
        return form
    steps = int(count_scheduled(config))
    if steps <= 0:
        return refuse("a decay needs decay_steps, and the config does not say max_steps")
    return section("policy.schedule", decay=form, decay_steps=steps)


def final(value: Json, config: Config) -> Answer:
    """The share of the learning rate at the schedule's end."""
    fraction = value.get("min_lr_rate") if isinstance(value, dict) else None
    if not value:
        return nothing("none")
    if isinstance(fraction, int | float) and count_steps(config) > 0:
        return section("policy.schedule", final_fraction=fraction)
    return refuse("arguments of a schedule")


def warmup(value: Json, config: Config) -> Answer:
    """Optimizer steps of warmup."""
    if isinstance(value, float) and 0 < value < 1:
        return share_of_steps(count_scheduled)(value, config)
    return value * _count_updates(config) if config.algorithm == "ppo" and isinstance(value, int | float) else value


def validate_every(value: Json, config: Config) -> Answer:
    """Steps from one validation to the next."""
    if config.get("eval_strategy") not in ("steps", "epoch"):
        return nothing("eval_strategy is no")
    if config.get("eval_strategy") == "epoch":
        return refuse("an evaluation per epoch; run.validate_every counts steps")
    return _in_our_steps(value, config) if isinstance(value, int) and value > 0 else refuse("a share of all steps")


def save_every(value: Json, config: Config) -> Answer:
    """Steps from one checkpoint to the next."""
    if config.get("save_strategy") not in (None, "steps"):
        return refuse("checkpoints per epoch or none; run.save_every counts steps")
    return _in_our_steps(value, config) if isinstance(value, int) and value > 0 else refuse("a share of all steps")
