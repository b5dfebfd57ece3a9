"""NeMo RL's keys: the YAML files of `run_grpo.py`, `run_ppo.py`, `run_sft.py`, `run_dpo.py` and the like."""

from __future__ import annotations

from dataclasses import replace

from lockstep.foreign import nemo_rl_data as data
from lockstep.foreign import nemo_rl_steps as steps
from lockstep.foreign import nemo_rl_values as values
from lockstep.foreign import sentences as say
from lockstep.foreign.conversions import (
    Lookup,
    bound,
    distance,
    lack,
    model_folder,
    nothing,
    number,
    optional,
    positive,
    refuse,
    strings,
    teacher,
    tokens_left,
)
from lockstep.foreign.nemo_rl_defaults import find_defaults
from lockstep.foreign.nemo_rl_others import OTHERS
from lockstep.foreign.nemo_rl_steps import MEGATRON, TRAINERS
from lockstep.foreign.nemo_rl_values import DTENSOR, ESTIMATOR, IMPORTANCE, KWARGS, LORA, VLLM
from lockstep.foreign.words import Convert, Gate, Json, Key, Library, Unset, under

BASELINES: dict[Json, Json | Unset] = {True: "leave_one_out", False: "mean"}
PRECISION: dict[Json, Json | Unset] = {
    "bfloat16": "bf16",
    "float32": "fp32",
    "float16": "fp16",
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


def _megatron(owner: str, ours: str, eps: Convert, most: Convert) -> tuple[Key, ...]:
    """Rows of a model that Megatron trains: its optimizer and its schedule."""
    theirs = f"{owner}.megatron_cfg"
    return (
        Key(f"{theirs}.optimizer.lr", (f"{ours}.lr",), number, page="-"),
        Key(f"{theirs}.optimizer.weight_decay", (f"{ours}.weight_decay",), number, page="-"),
        Key(f"{theirs}.optimizer.adam_beta1", (f"{ours}.betas",), steps.betas(owner), page="-"),
        Key(f"{theirs}.optimizer.adam_beta2", (f"{ours}.betas",), steps.betas(owner), page="-"),
        Key(f"{theirs}.optimizer.adam_eps", (f"{ours}.eps",), eps, page="-"),
        Key(f"{theirs}.optimizer.optimizer", (f"{ours}.lr",), steps.optimizer, page="-"),
        Key(f"{theirs}.optimizer.clip_grad", (f"{ours}.max_grad_norm",), most, page="-"),
        Key(f"{theirs}.scheduler.lr_decay_style", (f"{ours}.schedule.decay",),
            steps.megatron_schedule(owner, f"{ours}.schedule"), page="-"),
        Key(f"{theirs}.scheduler.lr_warmup_iters", (f"{ours}.schedule.warmup_steps",), steps.megatron_warmup,
            page="-"),
    )  # fmt: skip


def _gates(owner: str) -> tuple[Gate, ...]:
    """Gates of the keys of a model."""
    megatron, packing, batching = under(owner, "megatron_cfg sequence_packing dynamic_batching")
    return (
        Gate((f"{megatron}.*",), lambda config: steps.is_megatron(config, owner), f"{megatron}.enabled is false",
             but=(f"{megatron}.enabled",)),
        Gate((f"{owner}.dtensor_cfg.*", f"{owner}.optimizer.*", f"{owner}.scheduler"),
             lambda config: not steps.is_megatron(config, owner), "Megatron trains, and has its own",
             but=(f"{owner}.dtensor_cfg.enabled",)),
        Gate((f"{packing}.*",), lambda config: config.says(f"{packing}.enabled"), f"{packing}.enabled is false",
             but=(f"{packing}.enabled",)),
        Gate((f"{batching}.*",), lambda config: config.says(f"{batching}.enabled"), f"{batching}.enabled is false",
             but=(f"{batching}.enabled",)),
    )  # fmt: skip


MAPPED = (
    *data.ROWS,
    Key("policy.model_name", ("model.path",), model_folder),
    Key("value.model_name", ("critic_model.path",), lambda value, config:
        nothing("the policy's own") if value == config.get("policy.model_name") else model_folder(value, config)),
    Key("teacher.model_name", ("teachers",), teacher, page="`teacher`"),
    Key("policy.precision", ("learner.dtype",), Lookup(PRECISION)),
    *_every(
        Key("ppo.seed", ("seed",)),
        Key("ppo.max_num_steps", ("run.max_steps",), steps.max_steps),
        Key("ppo.max_num_epochs", ("run.max_epochs",), steps.max_epochs),
        Key("ppo.val_period", ("run.validate_every",), positive("no validation")),
        Key("ppo.max_val_samples", ("data.max_validation_samples",), optional()),
        Key("ppo.val_batches", ("data.limit_val_batches",), positive("all of them"), page="-"),
    ),
    Key("", ("data.limit_val_batches",), page="`dpo.val_batches`"),
    Key("", ("reward.type",), Lookup({"hf_math_verify": "math"}), page="`env.math.math_verify_impl`"),
    Key("grpo.max_rollout_turns", ("environment.max_turns",), values.turns),
    Key("ppo.max_rollout_turns", ("environment.max_turns",), values.turns, page="-"),
    *_policy_gradient(
        Key("ppo.reward_scaling.enabled", ("ppo.reward_scaling",), values.reward_scaling, page="`ppo.reward_scaling`"),
        Key("ppo.reward_shaping.overlong_buffer_length", ("ppo.overlong_penalty.buffer",), values.overlong_buffer,
            "to the longest response", page="`ppo.reward_shaping.overlong_buffer_length`"),
        Key("ppo.reward_shaping.overlong_buffer_penalty", ("ppo.overlong_penalty.penalty",), values.overlong_penalty,
            "of the longest response, on the same line", page="`ppo.reward_shaping.overlong_buffer_penalty`"),
        Key("ppo.reward_shaping.stop_properly_penalty_coef", ("ppo.truncation_penalty",), values.stop_properly,
            page="-"),
        Key("ppo.overlong_filtering", ("ppo.overlong_filtering",)),
        Key("ppo.num_prompts_per_step", ("ppo.num_prompts_per_step",)),
        Key("ppo.num_generations_per_prompt", ("ppo.num_generations",)),
        Key("ppo.seq_logprob_error_threshold", ("ppo.max_sequence_mismatch",), optional()),
        Key("ppo.async_ppo.enabled", ("ppo.one_step_ahead",), values.age,
            page="`ppo.async_ppo.enabled`, `grpo.async_grpo.enabled`"),
        Key("ppo.use_dynamic_sampling", ("ppo.dynamic_sampling.max_batches",), values.dynamic_sampling,
            page="`grpo.use_dynamic_sampling`"),
        Key("ppo.dynamic_sampling_max_gen_batches", ("ppo.dynamic_sampling.max_batches",), values.dynamic_limit,
            page="`grpo.dynamic_sampling_max_gen_batches`"),
        Key("ppo.ppo_epochs", ("ppo.ppo_epochs",)),
        Key("ppo.adv_estimator.normalize_advantages", ("ppo.whiten_advantages",)),
    ),
    Key("policy.generation.max_new_tokens", ("sampling.max_tokens",)),
    Key("policy.generation.temperature", ("sampling.temperature",)),
    Key("policy.generation.top_p", ("sampling.top_p",)),
    Key("policy.generation.top_k", ("sampling.top_k",), tokens_left),
    Key("policy.generation.stop_strings", ("sampling.stop",), strings),
    Key("policy.generation.val_temperature", ("validation_sampling.temperature",)),
    Key("policy.generation.val_top_p", ("validation_sampling.top_p",)),
    Key("policy.generation.val_top_k", ("validation_sampling.top_k",), tokens_left),
    Key("grpo.val_num_generations_per_prompt", ("validation_sampling.num_samples",), page="-"),
    Key("policy.train_global_batch_size", ("ppo.global_batch_size", "sft.global_batch_size", "dpo.global_batch_size",
        "reward_model.global_batch_size", "distill.global_batch_size")),
    Key("value.train_global_batch_size", ("ppo.global_batch_size",), values.critic_batch, page="-"),
    Key("policy.max_total_sequence_length", ("sft.max_tokens", "dpo.max_tokens", "reward_model.max_tokens"),
        values.total_length),
    Key("loss_fn.ratio_clip_min", ("ppo.clip",), values.clip),
    Key("loss_fn.ratio_clip_max", ("ppo.clip_high",)),
    Key("loss_fn.ratio_clip_c", ("ppo.dual_clip",), optional()),
    Key("ppo.adv_estimator.gae_gamma", ("ppo.gamma",)),
    Key("ppo.adv_estimator.gae_lambda", ("ppo.gae_lambda",)),
    Key("ppo.adv_estimator.gae_lambda_policy", ("ppo.gae_lambda_policy",), optional()),
    Key("ppo.adv_estimator.gae_lambda_value", ("ppo.gae_lambda_value",), optional()),
    Key("ppo.adv_estimator.length_adaptive_alpha", ("ppo.length_adaptive_alpha",), distance),
    Key("value_loss_fn.cliprange", ("ppo.value_clip",), distance),
    Key("ppo.policy_training_start_step", ("ppo.critic_warmup_steps",)),
    Key("value_loss_fn.scale", ("critic.max_grad_norm",), values.value_scale, page="-"),
    Key("value.optimizer.kwargs.lr", ("critic.lr",), number),
    Key("value.optimizer.kwargs.weight_decay", ("critic.weight_decay",), number, page="-"),
    Key("value.optimizer.kwargs.betas", ("critic.betas",), page="-"),
    Key("value.optimizer.kwargs.eps", ("critic.eps",), values.CRITIC_EPS, page="-"),
    Key("value.max_grad_norm", ("critic.max_grad_norm",), values.CRITIC_BOUND, page="-"),
    Key("value.optimizer.name", ("critic.lr",), steps.optimizer, page="-"),
    Key("value.scheduler", ("critic.schedule.warmup_steps",), steps.scheduler("value", "critic.schedule"), page="-"),
    *_megatron("value", "critic", values.CRITIC_EPS, values.CRITIC_BOUND),
    Key("grpo.use_leave_one_out_baseline", ("grpo.baseline",),
        values.pass_on("use_leave_one_out_baseline", Lookup(BASELINES)), page="-"),
    Key("grpo.normalize_rewards", ("grpo.scale_rewards",), values.pass_on("normalize_rewards", values.scale),
        page="-"),
    Key(f"{ESTIMATOR}.use_leave_one_out_baseline", ("grpo.baseline",), Lookup(BASELINES)),
    Key(f"{ESTIMATOR}.normalize_rewards", ("grpo.scale_rewards",), values.scale,
        page="`grpo.adv_estimator.normalize_rewards`, with `use_leave_one_out_baseline`"),
    Key(f"{ESTIMATOR}.name", ("grpo.baseline",), values.estimator, page="-"),
    Key(f"{ESTIMATOR}.minus_baseline", ("grpo.baseline",), 
        lambda value, config: nothing("the estimator's name says it"), page="-"),
    Key("ppo.adv_estimator.name", ("ppo.gae_lambda",), lambda value, config: nothing("algorithm: ppo")
        if value == "gae" else lack(f"there is no counterpart of {value}"), page="-"),
    Key("loss_fn.token_level_loss", ("grpo.loss_mean",), Lookup({True: "tokens", False: "responses"})),
    Key("loss_fn.sequence_level_importance_ratios", ("grpo.importance_sampling_level",), Lookup({True: "sequence",
        False: "token"})),
    Key("loss_fn.use_cispo", ("grpo.loss",), Lookup({True: "cispo", False: "clip"})),
    Key("loss_fn.reference_policy_kl_penalty", ("ppo.kl.coef",), values.kl_coefficient),
    Key("loss_fn.use_kl_in_reward", ("ppo.kl.placement",), values.kl_placement),
    Key("loss_fn.force_on_policy_ratio", ("ppo.clip",), values.ratio, page="-"),
    Key("loss_fn.disable_ppo_ratio", ("ppo.clip",), values.ratio, page="-"),
    Key("loss_fn.use_importance_sampling_correction", ("ppo.correction.kind",), values.weights, page="-"),
    Key(f"{IMPORTANCE}_type", ("ppo.correction.kind",), values.correction, page="-"),
    Key("", ("ppo.correction.kind",), Lookup({"tis": "token_tis", "icepop": "icepop"}), page=f"={IMPORTANCE}_type"),
    Key(f"{IMPORTANCE}_ratio", ("ppo.correction.high",), values.weights_high),
    Key(f"{IMPORTANCE}_ratio_min", ("ppo.correction.low",), values.weights_low),
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
    Key("policy.optimizer.name", ("policy.lr",), steps.optimizer, page="-"),
    Key("policy.max_grad_norm", ("policy.max_grad_norm",), bound),
    Key("policy.scheduler", ("policy.schedule.warmup_steps", "policy.schedule.decay"),
        steps.scheduler("policy", "policy.schedule"),
        differs="a schedule counts optimizer steps, not steps of the algorithm"),
    *_megatron("policy", "policy", number, bound),
    Key(f"{LORA}.enabled", ("learner.lora.rank",), lambda value, config: nothing("lora_cfg.dim says it"), page="-"),
    Key(f"{LORA}.dim", ("learner.lora.rank",), values.where(f"{LORA}.enabled", optional())),
    Key(f"{LORA}.alpha", ("learner.lora.alpha",), values.where(f"{LORA}.enabled", optional())),
    Key(f"{LORA}.target_modules", ("learner.lora.target_modules",), 
        values.where(f"{LORA}.enabled", optional(off=(None, [])))),
    Key(f"{MEGATRON}.enabled", ("learner.backend",), Lookup({True: "megatron", False: nothing("the torch backend")}),
        page="-"),
    Key("", ("learner.backend",), Lookup({True: "megatron"}), page=f"`{MEGATRON}.enabled`"),
    Key("policy.sequence_packing.train_mb_tokens", ("learner.micro_batch_tokens",)),
    Key("policy.dynamic_batching.train_mb_tokens", ("learner.micro_batch_tokens",), page="-"),
    Key("cluster.gpus_per_node", ("learner.parallel.dp",), values.dp),
    Key("cluster.num_nodes", ("learner.parallel.dp",), values.dp),
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
        values.engine_length),
    Key(f"{VLLM}.enforce_eager", ("sampler.vllm.enforce_eager",)),
    Key(f"{VLLM}.gpu_memory_utilization", ("sampler.kv_cache_gib",), lambda value, config: refuse(say.SHARE),
        "a share"),
    Key("policy.generation.colocated.enabled", ("cluster.placement",), Lookup({True: "colocated", False: "separate"}),
        page="`policy.generation.colocated.enabled`"),
    Key("checkpointing.save_period", ("run.save_every",), values.saves),
    Key("checkpointing.metric_name", ("run.best.metric",), values.metric),
    Key("checkpointing.higher_is_better", ("run.best.mode",), values.of_best(Lookup({True: "max", False: "min"})),
        page="`checkpointing.higher_is_better`"),
    Key("checkpointing.keep_top_k", ("run.best.count",), values.of_best(optional())),
    Key("checkpointing.checkpoint_must_save_by", ("run.max_time_s",), lambda value, config:
        refuse("a time of day as dd:hh:mm:ss; run.max_time_s counts seconds") if value else nothing("no limit")),
    Key("checkpointing.checkpoint_dir", ("run.folder",), lambda value, config: str(value)),
    Key("logger.log_dir", ("run.folder",), lambda value, config: nothing("all of a run is in run.folder")),
    Key("logger.num_val_samples_to_print", ("run.num_logged_samples",)),
    Key("logger.tensorboard_enabled", ("trackers.tensorboard",), values.tracker("tensorboard")),
    Key("logger.wandb_enabled", ("trackers.wandb",), values.tracker("wandb"), page="-"),
    Key("logger.mlflow_enabled", ("trackers.mlflow",), values.tracker("mlflow"), page="-"),
    Key("logger.wandb.project", ("trackers.wandb.project",), values.tracker_name("wandb")),
    Key("logger.wandb.name", ("trackers.wandb.name",), values.tracker_name("wandb")),
    Key("logger.mlflow.experiment_name", ("trackers.mlflow.experiment",), values.tracker_name("mlflow")),
    Key("logger.mlflow.run_name", ("trackers.mlflow.name",), values.tracker_name("mlflow"), page="-"),
)  # fmt: skip

GATES = (
    *data.GATES,
    *(gate for owner in ("policy", "value", "teacher") for gate in _gates(owner)),
    Gate((f"{MEGATRON}.mtp_*",), lambda config: config.whole(f"{MEGATRON}.mtp_num_layers", 0) > 0,
         "mtp_num_layers is 0", but=(f"{MEGATRON}.mtp_num_layers",)),
    Gate((f"{LORA}.*",), lambda config: config.says(f"{LORA}.enabled"), "lora_cfg.enabled is false",
        but=(f"{LORA}.enabled",)),
    Gate((f"{VLLM}.*", "policy.generation.vllm_kwargs*"),
        lambda config: config.get("policy.generation.backend") == "vllm",
         "policy.generation.backend is not vllm"),
    Gate(("*.reward_shaping.*",), lambda config: config.says(steps.key_of(config, "reward_shaping.enabled")),
         "reward_shaping.enabled is false", but=("*.reward_shaping.enabled",)),
    Gate(("*.reward_scaling.*",), lambda config: config.says(steps.key_of(config, "reward_scaling.enabled")),
         "reward_scaling.enabled is false", but=("*.reward_scaling.enabled",)),
    Gate(("*.async_grpo.*", "*.async_ppo.*"), lambda config: config.says(steps.key_of(config, "async_grpo.enabled"))
         or config.says(steps.key_of(config, "async_ppo.enabled")), "it is not asynchronous",
         but=("*.async_*po.enabled",)),
    Gate((f"{ESTIMATOR}.normalize_rewards", f"{ESTIMATOR}.use_leave_one_out_baseline", "grpo.normalize_rewards",
          "grpo.use_leave_one_out_baseline"), values.compares_responses, "the estimator reads neither"),
    Gate((f"{ESTIMATOR}.minus_baseline",), lambda config: not values.compares_responses(config),
         "reinforce_plus_plus alone reads it"),
    Gate(("loss_fn.positive_example_nll_weight",), lambda config: config.algorithm == "ppo",
         "GRPO's batch has no rewards to choose by"),
)  # fmt: skip

LIBRARY = Library(
    "NeMo RL", "nemo-rl", "7ea279a, August 2026", MAPPED + OTHERS, steps.algorithm, GATES, find_defaults,
    data.find_always, data.find_remarks,
)  # fmt: skip
