"""NeMo RL's keys: the YAML files of `run_grpo.py`, `run_ppo.py`, `run_sft.py`, `run_dpo.py` and the like."""

from __future__ import annotations

from dataclasses import replace

from lockstep.foreign import sentences as say
from lockstep.foreign.conversions import (
    Lookup,
    bound,
    context,
    data_file,
    data_ranks,
    distance,
    kl_coefficient,
    model_folder,
    nothing,
    number,
    optional,
    positive,
    refuse,
    section,
    teacher,
    tokens_left,
)
from lockstep.foreign.nemo_rl_others import OTHERS
from lockstep.foreign.words import Answer, Config, Convert, Gate, Json, Key, Library, Unset

TRAINERS = {
    "ppo": "ppo", "grpo": "grpo", "dpo": "dpo", "sft": "sft", "rm": "reward_model", "distillation": "distill",
}  # fmt: skip
DTENSOR, MEGATRON = "policy.dtensor_cfg", "policy.megatron_cfg"
KWARGS, VLLM = "policy.optimizer.kwargs", "policy.generation.vllm_cfg"
IMPORTANCE = "loss_fn.truncated_importance_sampling"
LORA = f"{DTENSOR}.lora_cfg"


def _trainer(config: Config) -> str | None:
    """The top-level section that names what is trained; PPO's goes before."""
    return next((name for name in TRAINERS if any(key.startswith(f"{name}.") for key in config.given)), None)


def _algorithm(config: Config) -> str | None:
    trainer = _trainer(config)
    return None if trainer is None else TRAINERS[trainer]


def _own(config: Config, name: str) -> str:
    return f"{_trainer(config)}.{name}"


def _is_megatron(config: Config) -> bool:
    return config.says(f"{MEGATRON}.enabled")


def _updates(config: Config) -> int:
    """Optimizer steps of one of their steps, which their scheduler counts."""
    prompts, each = (
        config.whole(_own(config, "num_prompts_per_step"), 0),
        config.whole(_own(config, "num_generations_per_prompt"), 1),
    )
    batch = config.whole("policy.train_global_batch_size", 1)
    return max(1, prompts * each // max(1, batch)) * config.whole(_own(config, "ppo_epochs"), 1)


def _scheduler(value: Json, config: Config) -> Answer:
    """A list of torch's schedulers: a linear warmup, and then constant."""
    listed = value if isinstance(value, list) else [value]
    stages = [stage for stage in listed if isinstance(stage, dict) and "name" in stage]
    names = [str(stage["name"]).rsplit(".", 1)[-1] for stage in stages]
    if names in ([], ["ConstantLR"]):
        return nothing("constant")
    kwargs = stages[0].get("kwargs")
    if names[0] != "LinearLR" or names[1:] not in ([], ["ConstantLR"]) or not isinstance(kwargs, dict):
        return refuse(f"there is no counterpart of {' and '.join(names)}; policy.schedule.decay is linear or cosine")
    steps = kwargs.get("total_iters")
    if not isinstance(steps, int):
        return refuse("a warmup of no known length")
    return section("policy.schedule", warmup_steps=steps * _updates(config))


def _megatron_schedule(value: Json, config: Config) -> Answer:
    style, steps = value, config.whole(f"{MEGATRON}.scheduler.lr_decay_iters", 0)
    if style == "constant":
        return nothing("constant")
    if style not in ("linear", "cosine") or steps <= 0:
        return refuse(f"there is no counterpart of {style}")
    return section("policy.schedule", decay=style, decay_steps=steps * _updates(config))


def _megatron_warmup(value: Json, config: Config) -> Answer:
    steps = value if isinstance(value, int) else 0
    return steps * _updates(config) if steps else nothing("no warmup")


def _dp(value: Json, config: Config) -> Answer:
    """Ranks that share the data: all GPUs, less what the other axes and separate engines take."""
    gpus = config.whole("cluster.gpus_per_node", 1) * config.whole("cluster.num_nodes", 1)
    if config.get("policy.generation.colocated.enabled") is False:
        each = config.whole("policy.generation.colocated.resources.gpus_per_node", 0)
        gpus -= each * max(1, config.whole("policy.generation.colocated.resources.num_nodes", 1))
    names = ("tensor_model", "pipeline_model", "context") if _is_megatron(config) else ("tensor", "context")
    others = 1
    for name in names:
        others *= config.whole(f"{MEGATRON if _is_megatron(config) else DTENSOR}.{name}_parallel_size", 1)
    return data_ranks(gpus, others)


def _placement(value: Json, config: Config) -> Answer:
    if not config.number("loss_fn.reference_policy_kl_penalty"):
        return nothing("there is no KL")
    return "reward" if value is True else "loss"


def _where(key: str, convert: Convert) -> Convert:
    """The conversion of an option that another one switches on."""
    return lambda value, config: convert(value, config) if config.says(key) else nothing(f"{key} is false")


def _reward_scaling(value: Json, config: Config) -> Answer:
    if value is not True:
        return nothing("off, as here without a word")
    source, target = (
        [config.number(_own(config, f"reward_scaling.{side}_{end}"), otherwise)
         for end, otherwise in (("min", 0.0), ("max", 1.0))]
        for side in ("source", "target")
    )  # fmt: skip
    ranges: dict[str, Json] = {"source": [*source], "target": [*target]}
    return section("ppo.reward_scaling", **ranges)


def _dynamic(value: Json, config: Config) -> Answer:
    if value is not True:
        return nothing("off, as here without a word")
    return config.whole("grpo.dynamic_sampling_max_gen_batches", 10)


def _dynamic_limit(value: Json, config: Config) -> Answer:
    return value if config.says(_own(config, "use_dynamic_sampling")) else nothing("use_dynamic_sampling is false")


def _correction(value: Json, config: Config) -> Answer:
    if value is None:
        return nothing("no correction")
    return Lookup({"tis": "token_tis", "icepop": "icepop"})(value, config)


def _bound(value: Json, config: Config) -> Answer:
    return value if config.get(f"{IMPORTANCE}_type") is not None and value is not None else nothing("no correction")


def _low(value: Json, config: Config) -> Answer:
    return value if config.get(f"{IMPORTANCE}_type") == "icepop" else nothing("for icepop alone")


def _reward(value: Json, config: Config) -> Answer:
    if value == "math":
        return section("reward", type="math")
    return (
        refuse("their environments are classes of theirs; environment.class_name names one of yours")
        if value
        else (nothing("none"))
    )


def _turns(value: Json, config: Config) -> Answer:
    if value in (1, None, 999999):
        return nothing("one turn")
    return refuse("episodes need an environment: environment.class_name; docs/guides/environments.md")


def _age(value: Json, config: Config) -> Answer:
    if value is not True:
        return nothing("off, as here without a word")
    return refuse("one_step_ahead is one step old, and needs a correction: ppo.correction.kind=token_tis")


def _data(value: Json, config: Config) -> Answer:
    if isinstance(value, list | dict):
        return refuse("several data sets; data.train takes a list of files")
    return data_file(value, config)


def _tracker(name: str) -> Convert:
    return lambda value, config: section("trackers", **{name: {}}) if value is True else nothing("off")


def _tracker_name(name: str) -> Convert:
    return lambda value, config: str(value) if config.says(f"logger.{name}_enabled") else nothing(f"{name} is off")


def _metric(value: Json, config: Config) -> Answer:
    if value is None:
        return nothing("none")
    if config.number(_own(config, "val_period")) <= 0 or (
        not config.get("data.validation.dataset_name") and not (config.get("data.validation.data_path"))
    ):
        return nothing("there is no validation")
    metrics = {"val:accuracy": "validation/accuracy", "val:val_loss": "validation/loss", "val_loss": "validation/loss"}
    if str(value) not in metrics:
        return refuse(f"the metric {value} has another name here; docs/coming_from.md")
    saves, validates = config.whole("checkpointing.save_period", 10), config.whole(_own(config, "val_period"), 1)
    if saves % validates:
        return refuse(f"a checkpoint is compared by its validation, and {saves} steps are no multiple of {validates}")
    return metrics[str(value)]


def _of_best(convert: Convert) -> Convert:
    def convert_best(value: Json, config: Config) -> Answer:
        metric = _metric(config.get("checkpointing.metric_name"), config)
        return convert(value, config) if isinstance(metric, str) else nothing("no best checkpoint is kept")

    return convert_best


def _saves(value: Json, config: Config) -> Answer:
    return value if config.get("checkpointing.enabled") is not False else nothing("checkpointing.enabled is false")


def _prompt_length(value: Json, config: Config) -> Answer:
    """A bound on prompts is that of whole sequences there; what the response leaves of it is the prompt's here."""
    limit, answer = (
        config.whole("policy.max_total_sequence_length", 0),
        config.whole("policy.generation.max_new_tokens", 0),
    )
    if _trainer(config) in ("grpo", "ppo", "distillation") and isinstance(value, int) and 0 < answer < limit:
        return min(value, limit - answer)
    return positive("the lengths decide")(value, config)


def _lora(convert: Convert) -> Convert:
    return _where(f"{LORA}.enabled", convert)


def _optimizer(value: Json, config: Config) -> Answer:
    adams = ("torch.optim.AdamW", "adam", "torch.optim.adamw.AdamW")
    return nothing(say.ADAMW) if value in adams else refuse(say.ADAMW)


def _betas(value: Json, config: Config) -> Answer:
    return [config.number(f"{MEGATRON}.optimizer.adam_beta{i}", otherwise) for i, otherwise in ((1, 0.9), (2, 0.999))]


PRECISION: dict[Json, Json | Unset] = {
    "bfloat16": "bf16",
    "float32": "fp32",
    "float16": refuse("no model is trained in fp16"),
}


def _policy_gradient(*rows: Key) -> tuple[Key, ...]:
    """Rows of `ppo.`, and the same of `grpo.`, which the page does not repeat."""
    copies = (
        replace(row, theirs=row.theirs.replace("ppo.", "grpo.", 1).replace("async_ppo", "async_grpo"), page="-")
        for row in rows
    )
    return (*rows, *copies)


def _every(*rows: Key) -> tuple[Key, ...]:
    """Rows of `ppo.`, and the same of each section that names what is trained."""
    return tuple(
        replace(row, theirs=row.theirs.replace("ppo.", f"{name}.", 1), page=row.page if name == "ppo" else "-")
        for row in rows
        for name in TRAINERS
    )


MAPPED = (
    Key("policy.model_name", ("model.path",), model_folder),
    Key("value.model_name", ("critic_model.path",), lambda value, config:
        nothing("the policy's own") if value == config.get("policy.model_name") else model_folder(value, config)),
    Key("teacher.model_name", ("teachers",), teacher, page="`teacher`"),
    Key("policy.precision", ("learner.dtype",), Lookup(PRECISION)),
    *_every(
        Key("ppo.seed", ("seed",)),
        Key("ppo.max_num_steps", ("run.max_steps",), positive("max_num_epochs decides")),
        Key("ppo.max_num_epochs", ("run.max_epochs",), lambda value, config:
            nothing("max_num_steps ends the run") if config.number(_own(config, "max_num_steps")) > 0 else value,
            differs="run.max_steps alone counts where it is said"),
        Key("ppo.val_period", ("run.validate_every",), positive("no validation")),
        Key("ppo.max_val_samples", ("data.max_validation_samples",), optional()),
        Key("ppo.val_batches", ("data.limit_val_batches",), positive("all of them"), page="-"),
    ),
    Key("", ("data.limit_val_batches",), page="`dpo.val_batches`"),
    Key("data.train.data_path", ("data.train",), data_file),
    Key("data.train.dataset_name", ("data.train",), _data, page="-"),
    Key("data.train", ("data.train",), _data, page="-"),
    Key("data.validation.data_path", ("data.validation",), data_file),
    Key("data.validation.dataset_name", ("data.validation",), _data, page="-"),
    Key("data.validation", ("data.validation",), _data, page="-"),
    Key("data.default.input_key", ("data.prompt",), lambda value, config: f"{{{value}}}"),
    Key("data.default.prompt_file", ("data.prompt",), lambda value, config:
        refuse("a file with a template; write its text into data.prompt") if value else nothing("none")),
    Key("data.default.output_key", ("data.answer", "data.completion"), lambda value, config: f"{{{value}}}"),
    Key("data.default.system_prompt_file", ("data.system_prompt",), lambda value, config:
        refuse("a file; write its text into data.system_prompt") if value else nothing("none")),
    Key("data.max_input_seq_length", ("data.max_prompt_tokens",), _prompt_length),
    Key("data.shuffle", ("data.shuffle",)),
    Key("data.default.chosen_key", ("data.chosen",), lambda value, config: f"{{{value}}}"),
    Key("data.default.rejected_key", ("data.rejected",), lambda value, config: f"{{{value}}}"),
    Key("env.math.math_verify_impl", ("reward.type",), lambda value, config: nothing("reward.type=math"), page="-"),
    Key("", ("reward.type",), Lookup({"hf_math_verify": "math"}), page="`env.math.math_verify_impl`"),
    Key("data.default.env_name", ("reward.function", "environment.class_name"), _reward, "an environment"),
    Key("grpo.max_rollout_turns", ("environment.max_turns",), _turns),
    Key("ppo.max_rollout_turns", ("environment.max_turns",), _turns, page="-"),
    *_policy_gradient(
        Key("ppo.reward_scaling.enabled", ("ppo.reward_scaling",), _reward_scaling, page="`ppo.reward_scaling`"),
        Key("ppo.reward_shaping.overlong_buffer_length", ("ppo.overlong_penalty.buffer",)),
        Key("ppo.reward_shaping.overlong_buffer_penalty", ("ppo.overlong_penalty.penalty",)),
        Key("ppo.overlong_filtering", ("ppo.overlong_filtering",)),
        Key("ppo.num_prompts_per_step", ("ppo.num_prompts_per_step",)),
        Key("ppo.num_generations_per_prompt", ("ppo.num_generations",)),
        Key("ppo.seq_logprob_error_threshold", ("ppo.max_sequence_mismatch",), optional()),
        Key("ppo.async_ppo.enabled", ("ppo.one_step_ahead",), _age,
            page="`ppo.async_ppo.enabled`, `grpo.async_grpo.enabled`"),
        Key("ppo.use_dynamic_sampling", ("ppo.dynamic_sampling.max_batches",), _dynamic,
            page="`grpo.use_dynamic_sampling`"),
        Key("ppo.dynamic_sampling_max_gen_batches", ("ppo.dynamic_sampling.max_batches",), _dynamic_limit,
            page="`grpo.dynamic_sampling_max_gen_batches`"),
        Key("ppo.ppo_epochs", ("ppo.ppo_epochs",)),
        Key("ppo.adv_estimator.normalize_advantages", ("ppo.whiten_advantages",)),
    ),
    Key("policy.generation.max_new_tokens", ("sampling.max_tokens",)),
    Key("policy.generation.temperature", ("sampling.temperature",)),
    Key("policy.generation.top_p", ("sampling.top_p",)),
    Key("policy.generation.top_k", ("sampling.top_k",), tokens_left),
    Key("policy.generation.val_temperature", ("validation_sampling.temperature",)),
    Key("policy.generation.val_top_p", ("validation_sampling.top_p",)),
    Key("policy.generation.val_top_k", ("validation_sampling.top_k",), tokens_left),
    Key("grpo.val_num_generations_per_prompt", ("validation_sampling.num_samples",), page="-"),
    Key("policy.train_global_batch_size", ("ppo.global_batch_size", "sft.global_batch_size", "dpo.global_batch_size",
        "reward_model.global_batch_size", "distill.global_batch_size")),
    Key("policy.max_total_sequence_length", ("sft.max_tokens", "dpo.max_tokens", "reward_model.max_tokens")),
    Key("loss_fn.ratio_clip_min", ("ppo.clip",)),
    Key("loss_fn.ratio_clip_max", ("ppo.clip_high",)),
    Key("loss_fn.ratio_clip_c", ("ppo.dual_clip",), optional()),
    Key("ppo.adv_estimator.gae_gamma", ("ppo.gamma",)),
    Key("ppo.adv_estimator.gae_lambda", ("ppo.gae_lambda",)),
    Key("ppo.adv_estimator.gae_lambda_policy", ("ppo.gae_lambda_policy",), optional()),
    Key("ppo.adv_estimator.gae_lambda_value", ("ppo.gae_lambda_value",), optional()),
    Key("ppo.adv_estimator.length_adaptive_alpha", ("ppo.length_adaptive_alpha",), distance),
    Key("value_loss_fn.cliprange", ("ppo.value_clip",), distance),
    Key("ppo.policy_training_start_step", ("ppo.critic_warmup_steps",)),
    Key("value.optimizer.kwargs.lr", ("critic.lr",), number),
    Key("value.optimizer.kwargs.weight_decay", ("critic.weight_decay",), number, page="-"),
    Key("value.optimizer.kwargs.betas", ("critic.betas",), page="-"),
    Key("value.optimizer.kwargs.eps", ("critic.eps",), number, page="-"),
    Key("value.max_grad_norm", ("critic.max_grad_norm",), bound, page="-"),
    Key("value.optimizer.name", ("critic.lr",), _optimizer, page="-"),
    Key("value.scheduler", ("critic.schedule.warmup_steps",), _scheduler, page="-"),
    Key("grpo.use_leave_one_out_baseline", ("grpo.baseline",), Lookup({True: "leave_one_out", False: "mean"})),
    Key("grpo.normalize_rewards", ("grpo.scale_rewards",), Lookup({True: "group", False: "none"}),
        page="`grpo.normalize_rewards`"),
    Key("grpo.adv_estimator.use_leave_one_out_baseline", ("grpo.baseline",), Lookup({True: "leave_one_out",
        False: "mean"}), page="-"),
    Key("grpo.adv_estimator.normalize_rewards", ("grpo.scale_rewards",), Lookup({True: "group", False: "none"}),
        page="-"),
    Key("grpo.adv_estimator.name", ("grpo.baseline",), lambda value, config:
        nothing("the baseline says it") if value == "grpo" else refuse(f"there is no counterpart of {value}"),
            page="-"),
    Key("ppo.adv_estimator.name", ("ppo.gae_lambda",), lambda value, config:
        nothing("algorithm: ppo") if value == "gae" else refuse(f"there is no counterpart of {value}"), page="-"),
    Key("loss_fn.token_level_loss", ("grpo.loss_mean",), Lookup({True: "tokens", False: "responses"})),
    Key("loss_fn.sequence_level_importance_ratios", ("grpo.importance_sampling_level",), Lookup({True: "sequence",
        False: "token"})),
    Key("loss_fn.use_cispo", ("grpo.loss",), Lookup({True: "cispo", False: "clip"})),
    Key("loss_fn.reference_policy_kl_penalty", ("ppo.kl.coef",), kl_coefficient),
    Key("loss_fn.use_kl_in_reward", ("ppo.kl.placement",), _placement),
    Key(f"{IMPORTANCE}_type", ("ppo.correction.kind",), _correction, page="-"),
    Key("", ("ppo.correction.kind",), Lookup({"tis": "token_tis", "icepop": "icepop"}), page=f"={IMPORTANCE}_type"),
    Key(f"{IMPORTANCE}_ratio", ("ppo.correction.high",), _bound),
    Key(f"{IMPORTANCE}_ratio_min", ("ppo.correction.low",), _low),
    Key("dpo.reference_policy_kl_penalty", ("dpo.ref_policy_kl_penalty",)),
    Key("dpo.preference_loss_weight", ("dpo.preference_loss_weight",)),
    Key("dpo.sft_loss_weight", ("dpo.sft_loss_weight",)),
    Key("dpo.preference_average_log_probs", ("dpo.preference_average_log_probs",)),
    Key("dpo.sft_average_log_probs", ("dpo.sft_average_log_probs",), lambda value, config:
        value if config.number("dpo.sft_loss_weight") else nothing("dpo.sft_loss_weight is 0")),
    Key("loss_fn.kl_type", ("distill.kl_type",), note="without `jsd`"),
    Key("loss_fn.mixed_kl_weight", ("distill.mixed_kl_weight",), lambda value, config:
        value if config.get("loss_fn.kl_type") == "mixed" else nothing("kl_type is not mixed")),
    Key("distillation.topk_logits_k", ("distill.top_k",)),
    Key("loss_fn.zero_outside_topk", ("distill.zero_outside_topk",)),
    Key("", ("distill.on_policy",), page="always"),
    Key("distillation.num_prompts_per_step", ("distill.num_prompts_per_step",)),
    Key("distillation.num_generations_per_prompt", ("distill.num_generations",)),
    Key(f"{KWARGS}.lr", ("policy.lr",), number),
    Key(f"{KWARGS}.betas", ("policy.betas",)),
    Key(f"{KWARGS}.eps", ("policy.eps",), number),
    Key(f"{KWARGS}.weight_decay", ("policy.weight_decay",), number),
    Key("policy.optimizer.name", ("policy.lr",), _optimizer, page="-"),
    Key("policy.max_grad_norm", ("policy.max_grad_norm",), bound),
    Key("policy.scheduler", ("policy.schedule.warmup_steps", "policy.schedule.decay"), _scheduler,
        differs="a schedule counts optimizer steps, not steps of the algorithm"),
    Key(f"{MEGATRON}.optimizer.lr", ("policy.lr",), number, page="-"),
    Key(f"{MEGATRON}.optimizer.weight_decay", ("policy.weight_decay",), number, page="-"),
    Key(f"{MEGATRON}.optimizer.adam_beta1", ("policy.betas",), _betas, page="-"),
    Key(f"{MEGATRON}.optimizer.adam_beta2", ("policy.betas",), _betas, page="-"),
    Key(f"{MEGATRON}.optimizer.adam_eps", ("policy.eps",), number, page="-"),
    Key(f"{MEGATRON}.optimizer.optimizer", ("policy.lr",), _optimizer, page="-"),
    Key(f"{MEGATRON}.optimizer.clip_grad", ("policy.max_grad_norm",), bound, page="-"),
    Key(f"{MEGATRON}.scheduler.lr_decay_style", ("policy.schedule.decay",), _megatron_schedule, page="-"),
    Key(f"{MEGATRON}.scheduler.lr_warmup_iters", ("policy.schedule.warmup_steps",), _megatron_warmup, page="-"),
    Key(f"{LORA}.enabled", ("learner.lora.rank",), lambda value, config: nothing("lora_cfg.dim says it"), page="-"),
    Key(f"{LORA}.dim", ("learner.lora.rank",), _lora(optional())),
    Key(f"{LORA}.alpha", ("learner.lora.alpha",), _lora(optional())),
    Key(f"{LORA}.target_modules", ("learner.lora.target_modules",), _lora(optional(off=(None, [])))),
    Key(f"{MEGATRON}.enabled", ("learner.backend",), Lookup({True: "megatron", False: nothing("the torch backend")}),
        page="-"),
    Key("", ("learner.backend",), Lookup({True: "megatron"}), page=f"`{MEGATRON}.enabled`"),
    Key("policy.sequence_packing.train_mb_tokens", ("learner.micro_batch_tokens",)),
    Key("policy.dynamic_batching.train_mb_tokens", ("learner.micro_batch_tokens",), page="-"),
    Key("cluster.gpus_per_node", ("learner.parallel.dp",), _dp),
    Key("cluster.num_nodes", ("learner.parallel.dp",), _dp),
    Key(f"{DTENSOR}.tensor_parallel_size", ("learner.parallel.tp",)),
    Key(f"{MEGATRON}.tensor_model_parallel_size", ("learner.parallel.tp",)),
    Key(f"{DTENSOR}.context_parallel_size", ("learner.parallel.cp",)),
    Key(f"{MEGATRON}.context_parallel_size", ("learner.parallel.cp",)),
    Key(f"{MEGATRON}.pipeline_model_parallel_size", ("learner.parallel.pp",)),
    Key(f"{DTENSOR}.dp_replicate_size", ("learner.parallel.dp_replicate",)),
    Key(f"{DTENSOR}.activation_checkpointing", ("learner.activation_checkpointing",)),
    Key(f"{MEGATRON}.activation_checkpointing", ("learner.activation_checkpointing",), page="-"),
    Key(f"{DTENSOR}.cpu_offload", ("learner.cpu_offload",)),
    Key("policy.generation.backend", ("sampler.backend",), Lookup({"vllm": "vllm", "sglang": refuse(
        "SGLang generates as a server alone: docs/guides/servers.md"),
        "megatron": refuse("Megatron trains and does not generate"),
        "trtllm": refuse("there is no TensorRT-LLM"), "dynamo": refuse("there is no Dynamo")}),
        page="`policy.generation.backend`"),
    Key(f"{VLLM}.tensor_parallel_size", ("sampler.tensor_parallel",)),
    Key(f"{VLLM}.max_model_len", ("sampler.vllm.max_model_len",),
        context("data.max_input_seq_length", "policy.generation.max_new_tokens")),
    Key(f"{VLLM}.enforce_eager", ("sampler.vllm.enforce_eager",)),
    Key(f"{VLLM}.gpu_memory_utilization", ("sampler.kv_cache_gib",), lambda value, config: refuse(say.SHARE),
        "a share"),
    Key("policy.generation.colocated.enabled", ("cluster.placement",), Lookup({True: "colocated", False: "separate"}),
        page="`policy.generation.colocated.enabled`"),
    Key("checkpointing.save_period", ("run.save_every",), _saves),
    Key("checkpointing.metric_name", ("run.best.metric",), _metric),
    Key("checkpointing.higher_is_better", ("run.best.mode",), _of_best(Lookup({True: "max", False: "min"})),
        page="`checkpointing.higher_is_better`"),
    Key("checkpointing.keep_top_k", ("run.best.count",), _of_best(optional())),
    Key("checkpointing.checkpoint_must_save_by", ("run.max_time_s",), lambda value, config:
        refuse("a time of day as dd:hh:mm:ss; run.max_time_s counts seconds") if value else nothing("no limit")),
    Key("checkpointing.checkpoint_dir", ("run.folder",), lambda value, config: str(value)),
    Key("logger.log_dir", ("run.folder",), lambda value, config: nothing("all of a run is in run.folder")),
    Key("logger.num_val_samples_to_print", ("run.num_logged_samples",)),
    Key("logger.tensorboard_enabled", ("trackers.tensorboard",), _tracker("tensorboard")),
    Key("logger.wandb_enabled", ("trackers.wandb",), _tracker("wandb"), page="-"),
    Key("logger.mlflow_enabled", ("trackers.mlflow",), _tracker("mlflow"), page="-"),
    Key("logger.wandb.project", ("trackers.wandb.project",), _tracker_name("wandb")),
    Key("logger.wandb.name", ("trackers.wandb.name",), _tracker_name("wandb")),
    Key("logger.mlflow.experiment_name", ("trackers.mlflow.experiment",), _tracker_name("mlflow")),
    Key("logger.mlflow.run_name", ("trackers.mlflow.name",), _tracker_name("mlflow"), page="-"),
)  # fmt: skip

GATES = (
    Gate((f"{MEGATRON}.*",), _is_megatron, "policy.megatron_cfg.enabled is false", but=(f"{MEGATRON}.enabled",)),
    Gate((f"{DTENSOR}.*", "policy.optimizer.*", "policy.scheduler"), lambda config: not _is_megatron(config),
         "Megatron trains, and has its own", but=(f"{DTENSOR}.enabled",)),
    Gate(("policy.sequence_packing.*",), lambda config: config.says("policy.sequence_packing.enabled"),
         "policy.sequence_packing.enabled is false", but=("policy.sequence_packing.enabled",)),
    Gate(("policy.dynamic_batching.*",), lambda config: config.says("policy.dynamic_batching.enabled"),
         "policy.dynamic_batching.enabled is false", but=("policy.dynamic_batching.enabled",)),
    Gate((f"{LORA}.*",), lambda config: config.says(f"{LORA}.enabled"), "lora_cfg.enabled is false",
        but=(f"{LORA}.enabled",)),
    Gate((f"{VLLM}.*", "policy.generation.vllm_kwargs*"),
        lambda config: config.get("policy.generation.backend") == "vllm",
         "policy.generation.backend is not vllm"),
    Gate(("*.reward_shaping.*",), lambda config: config.says(_own(config, "reward_shaping.enabled")),
         "reward_shaping.enabled is false", but=("*.reward_shaping.enabled",)),
    Gate(("*.reward_scaling.*",), lambda config: config.says(_own(config, "reward_scaling.enabled")),
         "reward_scaling.enabled is false", but=("*.reward_scaling.enabled",)),
    Gate(("*.async_grpo.*", "*.async_ppo.*"), lambda config: config.says(_own(config, "async_grpo.enabled"))
         or config.says(_own(config, "async_ppo.enabled")), "it is not asynchronous", but=("*.async_*po.enabled",)),
)  # fmt: skip

LIBRARY = Library("NeMo RL", "nemo-rl", "7ea279a, August 2026", MAPPED + OTHERS, _algorithm, GATES)
