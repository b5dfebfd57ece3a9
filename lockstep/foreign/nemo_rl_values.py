"""Values of NeMo RL's keys: the loss, the estimator, the reward, the critic, lengths and machines."""

from __future__ import annotations

import math

from lockstep.foreign.conversions import Lookup, bound, data_ranks, lack, nothing, number, positive, refuse, section
from lockstep.foreign.nemo_rl_steps import MEGATRON, batch_factor, has_one_update, is_megatron, key_of
from lockstep.foreign.words import Answer, Config, Convert, Json, Kind, Several, Unset

SAMPLES = ("ppo", "grpo", "distill")
"""Algorithms that learn from responses."""
DTENSOR = "policy.dtensor_cfg"
KWARGS, VLLM = "policy.optimizer.kwargs", "policy.generation.vllm_cfg"
IMPORTANCE, SHAPING = "loss_fn.truncated_importance_sampling", "reward_shaping"
LORA = f"{DTENSOR}.lora_cfg"
ESTIMATOR = "grpo.adv_estimator"
UNBOUNDED = 1e30
"""The bound of weights that theirs does not truncate."""
OFF = "off, as here without a word"


# The loss.


def clip(value: Json, config: Config) -> Answer:
    """The lower bound of the ratio, which `loss: cispo` has not."""
    if not config.says("loss_fn.use_cispo") or has_one_update(config):
        return value
    if isinstance(value, int | float) and value >= 1:
        return nothing("1 less it bounds no ratio, as in loss: cispo")
    return refuse(f"loss: cispo bounds the ratio above alone, and theirs also below, at 1 − {value}")


def ratio(value: Json, config: Config) -> Answer:
    """A ratio that is 1 or left out: the gradient is the same in a step's first optimizer step."""
    if value is not True:
        return nothing(OFF)
    if has_one_update(config):
        return nothing("a step has one optimizer step, in which the ratio is 1, with the same gradient")
    return lack("from a step's second optimizer step on, the ratio is not 1 here, and is clipped")


def kl_coefficient(value: Json, config: Config) -> Answer:
    """The coefficient of the KL, where their estimator or their loss reads it, and has the gradient of ours."""
    if not value:
        return nothing("0: no reference policy is loaded")
    kind, estimator = config.get("loss_fn.reference_policy_kl_type"), config.get(f"{ESTIMATOR}.name")
    if not config.says("loss_fn.use_kl_in_reward"):
        return refuse("k2 in their loss does not have the gradient of KL(π ‖ π_ref)") if kind == "k2" else value
    if config.algorithm == "grpo":
        return _kl_of_groups(estimator)
    return value if kind == "k1" else refuse(f"{kind} in their reward is another penalty than k1, which ours takes")


def _kl_of_groups(estimator: Json) -> Answer:
    if estimator == "reinforce_plus_plus":
        return refuse("a token pays for its own KL alone there, and for what follows it here")
    return Unset(Kind.IGNORED, f"use_kl_in_reward takes it out of the loss, and the estimator {estimator} reads none")


def kl_placement(value: Json, config: Config) -> Answer:
    """The place of the KL, if there is one."""
    if isinstance(kl_coefficient(config.get("loss_fn.reference_policy_kl_penalty"), config), Unset):
        return nothing("the recipe has no KL")
    return "reward" if value is True else "loss"


def correction(value: Json, config: Config) -> Answer:
    """The kind of truncated weights."""
    if value is None:
        return nothing("no weights are truncated")
    if config.says("loss_fn.sequence_level_importance_ratios"):
        return Lookup({"tis": "sequence_tis"})(value, config)
    return Lookup({"tis": "token_tis", "icepop": "icepop"})(value, config)


def weights(value: Json, config: Config) -> Answer:
    """Importance weights; where none are truncated, up to a bound that none reaches."""
    if value is not True:
        return nothing("no correction, as here without a word")
    if config.get(f"{IMPORTANCE}_type") is not None:
        return nothing("truncated_importance_sampling_type says it")
    kind = "sequence_tis" if config.says("loss_fn.sequence_level_importance_ratios") else "token_tis"
    return section("ppo.correction", kind=kind, high=UNBOUNDED)


def weights_high(value: Json, config: Config) -> Answer:
    """The upper bound of the weights."""
    return value if config.get(f"{IMPORTANCE}_type") is not None and value is not None else nothing("no correction")


def weights_low(value: Json, config: Config) -> Answer:
    """The lower bound of the weights, which TIS has there alone."""
    name = config.get(f"{IMPORTANCE}_type")
    if name == "tis" and value:
        return refuse(f"token_tis has no lower bound, and theirs raises smaller weights to {value}")
    return value if name == "icepop" else nothing("no lower bound")


# The estimator.


def _passes_on(config: Config, name: str) -> bool:
    """True if a file that is built on gives the estimator what stands above it, as the first of theirs does."""
    return "defaults" in config.given and f"{ESTIMATOR}.{name}" not in config.given and f"grpo.{name}" in config.given


def pass_on(name: str, convert: Convert) -> Convert:
    """The conversion of a key above the estimator's own, which alone is read."""

    def convert_given(value: Json, config: Config) -> Answer:
        if _passes_on(config, name):
            return convert(value, config)
        if config.given.get(f"{ESTIMATOR}.{name}") == value:
            return nothing("grpo.adv_estimator has it, too")
        return Unset(Kind.IGNORED, "grpo.adv_estimator has its own, which alone is read")

    return convert_given


def leaves_one_out(config: Config) -> bool:
    """True if the baseline and the deviation are of the other responses."""
    name = "use_leave_one_out_baseline"
    return config.get(f"grpo.{name}" if _passes_on(config, name) else f"{ESTIMATOR}.{name}") is not False


def scale(value: Json, config: Config) -> Answer:
    """The divisor of the advantage: the deviation of those whose mean is the baseline."""
    if value is not True:
        return "none"
    return "others" if leaves_one_out(config) else "group"


def estimator(value: Json, config: Config) -> Answer:
    """The estimator of GRPO's trainer."""
    if value == "grpo":
        return nothing("the baseline says it")
    if value == "reinforce_plus_plus":
        compares = config.get(f"{ESTIMATOR}.minus_baseline") is not False
        return Several({
            "grpo.baseline": "mean" if compares else "none", "grpo.scale_rewards": "none",
            "grpo.whiten_advantages": True,
        })  # fmt: skip
    return refuse(f"there is no counterpart of {value}")


def compares_responses(config: Config) -> bool:
    """True if the estimator reads its baseline and its deviation."""
    return config.get(f"{ESTIMATOR}.name") != "reinforce_plus_plus"


def dynamic_sampling(value: Json, config: Config) -> Answer:
    """Prompts whose rewards are equal leave the step."""
    if value is not True:
        return nothing(OFF)
    if config.algorithm == "ppo":
        return Unset(Kind.IGNORED, "PPO's loop does not call it")
    if config.get("grpo.use_leave_one_out_baseline") is not False:
        return lack(
            "with use_leave_one_out_baseline a response leaves there where all others are equal, as the only right one "
            "does, and here the prompts of which all are; false makes both the same"
        )
    return math.ceil(config.whole("grpo.dynamic_sampling_max_gen_batches", 10) * batch_factor(config))


def dynamic_limit(value: Json, config: Config) -> Answer:
    """Batches of a step of dynamic sampling, which are as large as the step here."""
    answer = dynamic_sampling(config.get(key_of(config, "use_dynamic_sampling")), config)
    return answer if isinstance(answer, int) else nothing("there is no dynamic sampling")


# The reward.


def reward_scaling(value: Json, config: Config) -> Answer:
    """The linear map of rewards."""
    if value is not True:
        return nothing(OFF)
    source, target = (
        [config.number(key_of(config, f"reward_scaling.{side}_{end}"), otherwise)
         for end, otherwise in (("min", 0.0), ("max", 1.0))]
        for side in ("source", "target")
    )  # fmt: skip
    ranges: dict[str, Json] = {"source": [*source], "target": [*target]}
    return section("ppo.reward_scaling", **ranges)


def _overlong(config: Config) -> tuple[float, float, float] | Unset:
    """Tokens before the longest response from which on theirs takes something off; their buffer and penalty."""
    name = key_of(config, SHAPING)
    if config.get(f"{name}.stop_properly_penalty_coef") is not None:
        return Unset(Kind.IGNORED, "stop_properly_penalty_coef is set, and goes before")
    buffer, penalty = config.number(f"{name}.overlong_buffer_length"), config.number(f"{name}.overlong_buffer_penalty")
    longest, given = config.number("policy.generation.max_new_tokens"), config.number(f"{name}.max_response_length")
    if not buffer or not longest or not given:
        return lack("the buffer, max_response_length or max_new_tokens is not said, so the penalty has no place")
    begins = longest - (given - buffer)
    return (begins, buffer, penalty) if begins > 0 and penalty > 0 else nothing("no response gets so long, or pays")


def overlong_buffer(value: Json, config: Config) -> Answer:
    """Tokens over which the penalty grows here: from where theirs begins to the longest response."""
    found = _overlong(config)
    return found if isinstance(found, Unset) else int(found[0])


def overlong_penalty(value: Json, config: Config) -> Answer:
    """The penalty of the longest response here, on the line of theirs."""
    found = _overlong(config)
    return found if isinstance(found, Unset) else found[2] * found[0] / found[1]


def stop_properly(value: Json, config: Config) -> Answer:
    """A factor of truncated responses' rewards."""
    if value is None:
        return nothing("no factor")
    if value == 1:
        return nothing("1 changes no reward, and takes the penalty of overlong responses away")
    return lack("the reward of a truncated response is multiplied by it; ppo.truncation_penalty is subtracted")


# The critic.


def _value_scale(config: Config) -> float:
    return config.number("value_loss_fn.scale", 1.0) or 1.0


def value_scale(value: Json, config: Config) -> Answer:
    """A factor of the critic's loss, which AdamW's steps show where a bound or `eps` is beside the gradient alone."""
    if value in (1, None):
        return nothing("1, as here")
    if not value:
        return lack("the critic is not trained there")
    return Unset(Kind.DIFFERS, "critic.max_grad_norm and critic.eps are divided by it: AdamW's steps are the same")


def of_critic(convert: Convert) -> Convert:
    """The conversion of a size of the critic's gradients, which are of the loss without its factor here."""

    def convert_given(value: Json, config: Config) -> Answer:
        answer = convert(value, config)
        return answer / _value_scale(config) if isinstance(answer, int | float) else answer

    return convert_given


def critic_batch(value: Json, config: Config) -> Answer:
    """Rows of the critic's optimizer step."""
    if config.algorithm != "ppo":
        return nothing("there is no critic")
    if value == config.get("policy.train_global_batch_size"):
        return nothing("the policy's own")
    return lack("the critic has so many rows to an optimizer step there, and as many as the policy here")


# Machines.


def dp(value: Json, config: Config) -> Answer:
    """Ranks that share the data: all GPUs, less what the other axes and separate engines take."""
    gpus = config.whole("cluster.gpus_per_node", 1) * config.whole("cluster.num_nodes", 1)
    if config.get("policy.generation.colocated.enabled") is False:
        each = config.whole("policy.generation.colocated.resources.gpus_per_node", 0)
        gpus -= each * max(1, config.whole("policy.generation.colocated.resources.num_nodes", 1))
    names = ("tensor_model", "pipeline_model", "context") if is_megatron(config) else ("tensor", "context")
    others = 1
    for name in names:
        others *= config.whole(f"{MEGATRON if is_megatron(config) else DTENSOR}.{name}_parallel_size", 1)
    return data_ranks(gpus, others)


def where(key: str, convert: Convert) -> Convert:
    """The conversion of an option that another one switches on."""
    return lambda value, config: convert(value, config) if config.says(key) else nothing(f"{key} is false")


def age(value: Json, config: Config) -> Answer:
    """Rollouts of older weights."""
    if value is not True:
        return nothing(OFF)
    return refuse("one_step_ahead is one step old, and needs a correction: ppo.correction.kind=token_tis")


def turns(value: Json, config: Config) -> Answer:
    """Turns of an episode."""
    if value in (1, None, 999999):
        return nothing("one turn")
    return refuse("episodes need an environment: environment.class_name; docs/guides/environments.md")


def describe_lengths(limit: int, answer: int) -> str:
    """Says that a long prompt leaves less for its response there."""
    return (
        f"a prompt and its response have at most policy.max_total_sequence_length = {limit} tokens together there; "
        f"here a response may have sampling.max_tokens = {answer} behind any prompt"
    )


def prompt_length(value: Json, config: Config) -> Answer:
    """A bound on prompts, of which the longest may leave less than `max_new_tokens` of their bound on both."""
    limit, answer = (
        config.whole("policy.max_total_sequence_length", 0),
        config.whole("policy.generation.max_new_tokens", 0),
    )
    if config.algorithm in SAMPLES and isinstance(value, int) and 0 < answer < limit < value + answer:
        return Several({"data.max_prompt_tokens": value}, describe_lengths(limit, answer))
    return positive("the lengths decide")(value, config)


def total_length(value: Json, config: Config) -> Answer:
    """A bound on prompt and response together."""
    if config.algorithm not in SAMPLES:
        return value
    return Unset(
        Kind.DIFFERS, "prompts and responses have each their bound here: data.max_prompt_tokens, sampling.max_tokens"
    )


def engine_length(value: Json, config: Config) -> Answer:
    """The longest sequence of an engine, unless both bounds exceed it."""
    prompt = prompt_length(config.get("data.max_input_seq_length"), config)
    answer = config.whole("policy.generation.max_new_tokens", 0)
    if isinstance(value, int) and isinstance(prompt, int) and value >= prompt + answer:
        return value
    return Unset(Kind.DIFFERS, "the engine holds data.max_prompt_tokens and sampling.max_tokens together here")


def saves(value: Json, config: Config) -> Answer:
    """Steps between checkpoints."""
    return value if config.get("checkpointing.enabled") is not False else nothing("checkpointing.enabled is false")


def metric(value: Json, config: Config) -> Answer:
    """The metric of the best checkpoint."""
    if value is None:
        return nothing("none")
    metrics = {"val:accuracy": "validation/accuracy", "val:val_loss": "validation/loss", "val_loss": "validation/loss"}
    if str(value) not in metrics:
        return refuse(f"the metric {value} has another name here; docs/coming_from.md")
    if config.number(key_of(config, "val_period")) <= 0:
        return nothing("val_period validates at no step between")
    named = (config.get("data.validation.dataset_name"), config.get("data.validation.data_path"))
    if not any(named):
        return refuse("there are no rows in data.validation to compare by")
    every, validates = config.whole("checkpointing.save_period", 10), config.whole(key_of(config, "val_period"), 1)
    if every % validates:
        return refuse(f"a checkpoint is compared by its validation, and {every} steps are no multiple of {validates}")
    return metrics[str(value)]


def of_best(convert: Convert) -> Convert:
    """The conversion of a key of the best checkpoint, if one is kept."""

    def convert_best(value: Json, config: Config) -> Answer:
        named = metric(config.get("checkpointing.metric_name"), config)
        return convert(value, config) if isinstance(named, str) else nothing("no best checkpoint is kept")

    return convert_best


def tracker(name: str) -> Convert:
    """The conversion of the switch of a tracker."""
    return lambda value, config: section("trackers", **{name: {}}) if value is True else nothing("off")


def tracker_name(name: str) -> Convert:
    """The conversion of a tracker's option."""
    return lambda value, config: str(value) if config.says(f"logger.{name}_enabled") else nothing(f"{name} is off")


CRITIC_BOUND = of_critic(bound)
CRITIC_EPS = of_critic(number)
