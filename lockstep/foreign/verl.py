"""verl's keys: Hydra configs of `main_ppo` and of the two SFT trainers."""

from __future__ import annotations

from lockstep.foreign import sentences as say
from lockstep.foreign.conversions import (
    Lookup,
    bound,
    column,
    context,
    data_file,
    data_ranks,
    distance,
    insist,
    kl_coefficient,
    model_folder,
    nothing,
    number,
    optional,
    positive,
    refuse,
    section,
    share_of_steps,
    tokens_left,
)
from lockstep.foreign.verl_others import OTHERS
from lockstep.foreign.words import Answer, Config, Gate, Json, Key, Library, Unset

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
REF, MODEL = "actor_rollout_ref.ref", "actor_rollout_ref.model"
OVERLONG = "reward_model.reward_kwargs.overlong_buffer_cfg"
OVERLONG_NEW = "reward.reward_kwargs.overlong_buffer_cfg"
CORRECTION = "algorithm.rollout_correction"
SCALED = "algorithm.norm_adv_by_std_in_grpo"

ESTIMATORS: dict[Json, Json | Unset] = {
    "grpo": "mean", "grpo_vectorized": "mean", "rloo": "leave_one_out", "rloo_vectorized": "leave_one_out",
    "reinforce_plus_plus": "none", "gae": nothing("algorithm: ppo"),
}  # fmt: skip


GROUPS = ("grpo", "grpo_vectorized")


def _is_sft(config: Config) -> bool:
    return "sft" in config.program or any(key.startswith(("model.", "optim.")) for key in config.given)


def _algorithm(config: Config) -> str:
    if _is_sft(config):
        return "sft"
    return "ppo" if config.get("algorithm.adv_estimator") == "gae" else "grpo"


def _is_megatron(config: Config) -> bool:
    return config.get(f"{ACTOR}.strategy") == "megatron" or "megatron" in str(config.get("--config-name"))


def _with_critic(config: Config) -> bool:
    return _algorithm(config) == "ppo"


def _estimator(value: Json, config: Config) -> Answer:
    baseline = Lookup(ESTIMATORS)(value, config)
    if not isinstance(baseline, str):
        return baseline
    shared: dict[str, Json] = {"baseline": baseline, "scale_rewards": _scale(config.get(SCALED), config)}
    return section("grpo", **shared, whiten_advantages=baseline == "none")


def _mini_batch(value: Json, config: Config) -> Answer:
    """Prompts become responses."""
    return int(number_of(value)) * config.whole(f"{ROLLOUT}.n", 1)


def number_of(value: Json) -> float:
    """A number, 0 where it is none."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else 0


def _updates(config: Config) -> int:
    """Optimizer steps of one of their steps, which their scheduler counts."""
    if _is_sft(config):
        return 1
    batch, mini = config.whole("data.train_batch_size", 1), config.whole(f"{ACTOR}.ppo_mini_batch_size", 1)
    return max(1, batch // max(1, mini)) * config.whole(f"{ACTOR}.ppo_epochs", 1)


def _steps(config: Config) -> float:
    return config.number("trainer.total_training_steps") * _updates(config)


def _warmup(value: Json, config: Config) -> Answer:
    steps = number_of(value)
    return int(steps) * _updates(config) if steps > 0 else nothing("no warmup of its own")


def _decay(value: Json, config: Config) -> Answer:
    if value == "constant":
        return "constant"
    steps = int(_steps(config))
    if value != "cosine" or steps <= 0:
        return refuse("a decay needs decay_steps, and the config does not say trainer.total_training_steps")
    return section("policy.schedule", decay="cosine", decay_steps=steps)


def _dp(value: Json, config: Config) -> Answer:
    """Ranks that share the data: all GPUs, less what the other axes take."""
    gpus = config.whole("trainer.n_gpus_per_node", 8) * config.whole("trainer.nnodes", 1)
    others = config.whole(f"{ACTOR}.ulysses_sequence_parallel_size", 1)
    for axis in ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"):
        others *= config.whole(f"{ACTOR}.megatron.{axis}", 1) if _is_megatron(config) else 1
    return data_ranks(gpus, others)


def _kl_reward(value: Json, config: Config) -> Answer:
    return refuse(say.ONE_KL) if config.says(f"{ACTOR}.use_kl_loss") else kl_coefficient(value, config)


def _use_kl_loss(value: Json, config: Config) -> Answer:
    if value is True and config.number(f"{ACTOR}.kl_loss_coef"):
        return "loss"
    return nothing("no KL in the loss")


def _use_kl_in_reward(value: Json, config: Config) -> Answer:
    if value is not True or not config.number("algorithm.kl_ctrl.kl_coef"):
        return nothing("no KL in the reward")
    return refuse(say.ONE_KL) if config.says(f"{ACTOR}.use_kl_loss") else "reward"


def _target_kl(value: Json, config: Config) -> Answer:
    return value if config.get("algorithm.kl_ctrl.type") == "adaptive" else nothing("the coefficient is fixed")


def _scale(value: Json, config: Config) -> str:
    return "group" if value is True and config.get("algorithm.adv_estimator") in GROUPS else "none"


def _validation(value: Json, config: Config) -> Answer:
    if not config.number(f"{ROLLOUT}.val_kwargs.temperature"):
        return nothing("temperature 0 takes the likeliest token")
    return tokens_left(value, config)


def _validation_n(value: Json, config: Config) -> Answer:
    if not config.number(f"{ROLLOUT}.val_kwargs.temperature") and number_of(value) > 1:
        return refuse("temperature 0 gives the same response every time")
    return value


def _chat_turns(value: Json, config: Config) -> Answer:
    return (
        refuse("episodes need an environment: environment.class_name; docs/guides/environments.md")
        if value
        else (nothing("none"))
    )


def _overlong(value: Json, config: Config) -> Answer:
    if not (config.says(f"{OVERLONG}.enable") or config.says(f"{OVERLONG_NEW}.enable")):
        return nothing("overlong_buffer_cfg.enable is false")
    return value


def _groups(value: Json, config: Config) -> Answer:
    if value is not True:
        return nothing("off, as here without a word")
    batches = config.whole("algorithm.filter_groups.max_num_gen_batches", 0)
    return batches if batches > 0 else 1_000_000


def _is_range(threshold: Json) -> bool:
    return isinstance(threshold, str) and "_" in threshold


def _correction(value: Json, config: Config) -> Answer:
    if value in (None, "null", "none"):
        return nothing("no correction")
    if _is_range(config.get(f"{CORRECTION}.rollout_is_threshold")):
        return nothing("the threshold says icepop")
    return Lookup({"token": "token_tis", "sequence": "sequence_tis"})(value, config)


def _threshold(value: Json, config: Config) -> Answer:
    if config.get(f"{CORRECTION}.rollout_is") is None:
        return nothing("rollout_is is null")
    if not _is_range(value):
        return number(value, config)
    if config.get(f"{CORRECTION}.rollout_is") != "token":
        return refuse("icepop masks tokens, not sequences")
    low, high = (number(bound, config) for bound in str(value).split("_", 1))
    if not isinstance(low, float) or not isinstance(high, float):
        return refuse(f"{value} is no number_number")
    return section("ppo.correction", kind="icepop", low=low, high=high)


def _logger(value: Json, config: Config) -> Answer:
    names = value if isinstance(value, list) else [value]
    unknown = [str(name) for name in names if name not in ("console", "wandb", "tensorboard", "mlflow")]
    if unknown:
        return refuse(f"there is no tracker {', '.join(unknown)}")
    return section("trackers", **{str(name): {} for name in names if name not in ("console", None)})


def _tracker(value: Json, config: Config) -> Answer:
    loggers = config.get("trainer.logger")
    if "wandb" not in (loggers if isinstance(loggers, list) else [loggers]):
        return nothing("no tracker has a use for it")
    return str(value)


def _reward_function(value: Json, config: Config) -> Answer:
    if not value:
        return nothing("none")
    name = config.get("custom_reward_function.name") or "compute_score"
    return section("reward", type="python", function=f"{str(value).rsplit('/', 1)[-1]}:{name}")


def _lora(value: Json, config: Config) -> Answer:
    return value if config.number(f"{MODEL}.lora_rank") or config.number("model.lora_rank") else nothing("no LoRA")


def _lora_modules(value: Json, config: Config) -> Answer:
    if value == "all-linear":
        return nothing("all linear maps, as here without a word")
    listed: Json = value if isinstance(value, list) else [value]
    return _lora(listed, config)


TRUNCATION: dict[Json, Json | Unset] = {
    "error": "error", "left": "truncate", None: "error",
    "right": refuse("a prompt that is cut keeps its end (truncate), so that the question stays"),
    "middle": refuse("a prompt that is cut keeps its end (truncate), so that the question stays"),
}  # fmt: skip
STRATEGY: dict[Json, Json | Unset] = {"fsdp": "torch", "fsdp2": "torch", "megatron": "megatron"}
MEANS: dict[Json, Json | Unset] = {
    "token-mean": "tokens", "seq-mean-token-mean": "responses", "seq-mean-token-sum-norm": "constant",
    "seq-mean-token-sum": refuse("a mean over responses of sums over tokens weighs by length and has no counterpart"),
}  # fmt: skip


def _loss_mode(value: Json, config: Config) -> Answer:
    if value == "vanilla":
        return nothing("the clipped objective of tokens")
    parts = {
        "gspo": section("grpo", importance_sampling_level="sequence", loss_mean="responses"),
        "cispo": section("grpo", loss="cispo"),
    }
    return parts[value] if isinstance(value, str) and value in parts else refuse(f"there is no loss {value}")


def _overlong_prompts(value: Json, config: Config) -> Answer:
    return "skip" if value is True else nothing("data.truncation decides")


def _truncation(value: Json, config: Config) -> Answer:
    if config.says("data.filter_overlong_prompts"):
        return nothing("data.filter_overlong_prompts drops them before")
    return Lookup(TRUNCATION)(value, config)


def _rows(value: Json, config: Config) -> Answer:
    if number_of(value) <= 0:
        return nothing("all rows")
    return refuse("a limit in rows; data.limit_train_batches counts batches")


def _adapter(value: Json, config: Config) -> Answer:
    return refuse("training of adapters that are there already; merge them first") if value else nothing("none")


MAPPED = (
    Key("algorithm.adv_estimator", ("grpo.baseline",), _estimator, default="gae", page="-"),
    Key("", ("grpo.baseline",), Lookup({"grpo": "mean", "rloo": "leave_one_out", "reinforce_plus_plus": "none"}),
        page="=algorithm.adv_estimator"),
    Key(f"{MODEL}.path", ("model.path",), model_folder, default="~/models/deepseek-llm-7b-chat"),
    Key("model.partial_pretrain", ("model.path",), model_folder, page="-"),
    Key("model.path", ("model.path",), model_folder, page="-"),
    Key("critic.model.path", ("critic_model.path",), model_folder),
    Key("reward_model.model.path", ("reward_model.path",), model_folder, "in newer versions "
        "`reward.reward_model.model_path`"),
    Key("reward.reward_model.model_path", ("reward_model.path",), model_folder, page="-"),
    Key(f"{ACTOR}.fsdp_config.dtype", ("learner.dtype",), Lookup({"bfloat16": "bf16", "float32": "fp32"}),
        default="bfloat16"),
    Key("data.seed", ("seed",), optional()),
    Key(f"{ROLLOUT}.seed", ("seed",), optional()),
    Key("trainer.seed", ("seed",), page="-"),
    Key("data.train_files", ("data.train",), data_file, default="~/data/rlhf/gsm8k/train.parquet"),
    Key("data.val_files", ("data.validation",), data_file, default="~/data/rlhf/gsm8k/test.parquet"),
    Key("data.prompt_key", ("data.messages", "data.prompt"), lambda value, config: column(value,
        config) if _is_sft(config) else value,
        page="`data.prompt_key`", default="prompt"),
    Key("data.response_key", ("data.completion",), column),
    Key("data.messages_key", ("data.messages",)),
    Key("data.multiturn.messages_key", ("data.messages",), lambda value, config:
        value if config.says("data.multiturn.enable") else nothing("data.multiturn.enable is false"), page="-"),
    Key("data.max_prompt_length", ("data.max_prompt_tokens",), default=512),
    Key("data.filter_overlong_prompts", ("data.overlong_prompts",), _overlong_prompts),
    Key("data.truncation", ("data.overlong_prompts",), _truncation),
    Key("data.shuffle", ("data.shuffle",)),
    Key("data.val_max_samples", ("data.max_validation_samples",), positive("all rows")),
    Key("data.train_max_samples", ("data.limit_train_batches",), _rows, "rows"),
    Key("custom_reward_function.path", ("reward.function",), _reward_function,
        "its arguments are others here: docs/guides/rewards.md", page="`reward.custom_reward_function.path`"),
    Key("custom_reward_function.name", ("reward.function",), lambda value, config: nothing("part of reward.function"),
        page="-"),
    Key("reward.custom_reward_function.path", ("reward.function",), _reward_function, page="-"),
    Key("reward.custom_reward_function.name", ("reward.function",), lambda value,
        config: nothing("part of reward.function"), page="-"),
    Key(f"{ROLLOUT}.multi_turn.tool_config_path", ("environment.class_name",), _chat_turns),
    Key(f"{ROLLOUT}.multi_turn.interaction_config_path", ("environment.class_name",), _chat_turns),
    Key(f"{ROLLOUT}.multi_turn.max_assistant_turns", ("environment.max_turns",), _chat_turns),
    *(Key(f"{OVERLONG_NEW}.{name}", (f"ppo.overlong_penalty.{option}",), _overlong)
      for name, option in (("len", "buffer"), ("penalty_factor", "penalty"))),
    Key(f"{OVERLONG_NEW}.enable", ("ppo.overlong_penalty.buffer",),
        lambda value, config: nothing("the buffer's length says it"), page="-"),
    Key(f"{OVERLONG}.len", ("ppo.overlong_penalty.buffer",), _overlong),
    Key(f"{OVERLONG}.penalty_factor", ("ppo.overlong_penalty.penalty",), _overlong),
    Key(f"{OVERLONG}.enable", ("ppo.overlong_penalty.buffer",), lambda value,
        config: nothing("the buffer's length says it"), page="-"),
    Key("algorithm.filter_groups.enable", ("ppo.dynamic_sampling.max_batches",), _groups),
    Key("algorithm.filter_groups.max_num_gen_batches", ("ppo.dynamic_sampling.max_batches",), lambda value, config:
        _groups(config.get("algorithm.filter_groups.enable"), config)),
    Key("data.max_response_length", ("sampling.max_tokens",), default=512),
    Key(f"{ROLLOUT}.temperature", ("sampling.temperature",), default=1.0),
    Key(f"{ROLLOUT}.top_p", ("sampling.top_p",), default=1),
    Key(f"{ROLLOUT}.top_k", ("sampling.top_k",), tokens_left),
    Key(f"{ROLLOUT}.val_kwargs.temperature", ("validation_sampling.temperature",), default=0),
    Key(f"{ROLLOUT}.val_kwargs.top_p", ("validation_sampling.top_p",), _validation),
    Key(f"{ROLLOUT}.val_kwargs.top_k", ("validation_sampling.top_k",), _validation),
    Key(f"{ROLLOUT}.val_kwargs.n", ("validation_sampling.num_samples",), _validation_n),
    Key("data.train_batch_size", ("ppo.num_prompts_per_step", "sft.global_batch_size"), default=1024),
    Key(f"{ROLLOUT}.n", ("ppo.num_generations",), default=1),
    Key(f"{ACTOR}.ppo_mini_batch_size", ("ppo.global_batch_size",), _mini_batch,
        "in prompts: take it times `rollout.n`", "a batch size counts responses, over all ranks", default=256),
    Key(f"{ACTOR}.ppo_epochs", ("ppo.ppo_epochs",)),
    Key(f"{ACTOR}.clip_ratio", ("ppo.clip",), note="unread beside `clip_ratio_low`"),
    Key(f"{ACTOR}.clip_ratio_low", ("ppo.clip",), optional(), default=0.2),
    Key(f"{ACTOR}.clip_ratio_high", ("ppo.clip_high",), optional(), default=0.2),
    Key(f"{ACTOR}.clip_ratio_c", ("ppo.dual_clip",), default=3.0),
    Key(f"{ACTOR}.entropy_coeff", ("ppo.entropy_coef",), distance),
    Key("algorithm.gamma", ("ppo.gamma",), default=1.0),
    Key("algorithm.lam", ("ppo.gae_lambda",), default=1.0),
    Key("critic.cliprange_value", ("ppo.value_clip",), distance, default=0.5),
    Key("trainer.critic_warmup", ("ppo.critic_warmup_steps",)),
    Key("critic.optim.lr", ("critic.lr",), number, default=1e-5),
    Key("critic.optim.weight_decay", ("critic.weight_decay",), default=0.01),
    Key("critic.grad_clip", ("critic.max_grad_norm",), bound),
    Key("critic.optim.betas", ("critic.betas",)),
    Key(SCALED, ("grpo.scale_rewards",), _scale, default=True),
    Key(f"{ACTOR}.loss_agg_mode", ("grpo.loss_mean",), Lookup(MEANS), default="token-mean"),
    Key(f"{ACTOR}.policy_loss.loss_mode", ("grpo.importance_sampling_level", "grpo.loss"), _loss_mode,
        page="-"),
    Key("", ("grpo.importance_sampling_level", "grpo.loss"), Lookup({"gspo": "sequence", "cispo": "cispo"}),
        page="=actor.policy_loss.loss_mode"),
    Key(f"{ACTOR}.kl_loss_coef", ("ppo.kl.coef",), kl_coefficient, default=0.001),
    Key("algorithm.kl_ctrl.kl_coef", ("ppo.kl.coef",), _kl_reward, default=0.001),
    Key(f"{ACTOR}.use_kl_loss", ("ppo.kl.placement",), _use_kl_loss),
    Key("algorithm.use_kl_in_reward", ("ppo.kl.placement",), _use_kl_in_reward),
    Key("algorithm.kl_ctrl.target_kl", ("ppo.kl.adaptive.target",), _target_kl, "with `type: adaptive`",
        default=0.1),
    Key("algorithm.kl_ctrl.type", ("ppo.kl.adaptive.target",), lambda value, config: nothing("the target says it"),
        page="-"),
    Key(f"{CORRECTION}.rollout_is", ("ppo.correction.kind",), _correction,
        page="-"),
    Key("", ("ppo.correction.kind",), Lookup({"token": "token_tis", "sequence": "sequence_tis"}),
        page="=algorithm.rollout_correction.rollout_is"),
    Key(f"{CORRECTION}.rollout_is_threshold", ("ppo.correction.high",), _threshold,
        page="`algorithm.rollout_correction.rollout_is_threshold`"),
    Key("", ("ppo.correction.kind", "ppo.correction.low"), Lookup({"": "icepop"}),
        page="`algorithm.rollout_correction.rollout_is_threshold`, a text with both bounds"),
    Key("data.max_length", ("sft.max_tokens",)),
    Key(f"{ACTOR}.optim.lr", ("policy.lr",), number, default=1e-6),
    Key("optim.lr", ("policy.lr",), number, page="-"),
    Key(f"{ACTOR}.optim.betas", ("policy.betas",)),
    Key("optim.betas", ("policy.betas",), page="-"),
    Key(f"{ACTOR}.optim.weight_decay", ("policy.weight_decay",), default=0.01),
    Key("optim.weight_decay", ("policy.weight_decay",), page="-"),
    Key(f"{ACTOR}.grad_clip", ("policy.max_grad_norm",), bound),
    Key("optim.clip_grad", ("policy.max_grad_norm",), bound, page="-"),
    Key(f"{ACTOR}.optim.clip_grad", ("policy.max_grad_norm",), bound, page="-"),
    Key(f"{ACTOR}.optim.lr_warmup_steps", ("policy.schedule.warmup_steps",), _warmup,
        "in their steps: take it times the updates of a step", "a schedule counts optimizer steps"),
    Key(f"{ACTOR}.optim.lr_warmup_steps_ratio", ("policy.schedule.warmup_steps",), share_of_steps(_steps), "a share"),
    Key("optim.lr_warmup_steps_ratio", ("policy.schedule.warmup_steps",), share_of_steps(_steps), page="-"),
    Key("critic.optim.lr_warmup_steps", ("critic.schedule.warmup_steps",), _warmup),
    Key("critic.optim.lr_warmup_steps_ratio", ("critic.schedule.warmup_steps",), share_of_steps(_steps), page="-"),
    Key(f"{ACTOR}.optim.lr_scheduler_type", ("policy.schedule.decay",), _decay),
    Key(f"{ACTOR}.optim.warmup_style", ("policy.schedule.decay",), _decay, page="-"),
    Key("optim.lr_scheduler", ("policy.schedule.decay",), _decay, page="-"),
    Key(f"{ACTOR}.optim.min_lr_ratio", ("policy.schedule.final_fraction",), optional(off=(None, 0, 0.0))),
    Key(f"{MODEL}.lora_rank", ("learner.lora.rank",), positive("no LoRA")),
    Key(f"{MODEL}.lora_alpha", ("learner.lora.alpha",), _lora),
    Key(f"{MODEL}.target_modules", ("learner.lora.target_modules",), _lora_modules),
    Key("model.lora_rank", ("learner.lora.rank",), positive("no LoRA"), page="-"),
    Key("model.lora_alpha", ("learner.lora.alpha",), _lora, page="-"),
    Key("model.target_modules", ("learner.lora.target_modules",), _lora_modules, page="-"),
    Key(f"{MODEL}.lora_adapter_path", ("learner.lora.rank",), _adapter, page="-"),
    Key(f"{ACTOR}.strategy", ("learner.backend",), Lookup(STRATEGY)),
    Key("--config-name", ("learner.backend",), lambda value, config: "megatron" if _is_megatron(config) else
        nothing("their defaults are those of the table"), page="-"),
    Key("model.strategy", ("learner.backend",), Lookup(STRATEGY), page="-"),
    Key(f"{ACTOR}.ppo_max_token_len_per_gpu", ("learner.micro_batch_tokens",)),
    Key("trainer.n_gpus_per_node", ("learner.parallel.dp",), _dp, default=8),
    Key("trainer.nnodes", ("learner.parallel.dp",), _dp),
    Key(f"{ACTOR}.megatron.tensor_model_parallel_size", ("learner.parallel.tp",)),
    Key(f"{ACTOR}.ulysses_sequence_parallel_size", ("learner.parallel.cp",)),
    Key("ulysses_sequence_parallel_size", ("learner.parallel.cp",), page="-"),
    Key(f"{ACTOR}.megatron.context_parallel_size", ("learner.parallel.cp",)),
    Key(f"{ACTOR}.megatron.pipeline_model_parallel_size", ("learner.parallel.pp",)),
    Key(f"{ACTOR}.fsdp_config.fsdp_size", ("learner.parallel.dp_replicate",), insist(-1,
        "the size of a copy; learner.parallel.dp_replicate counts the copies: GPUs / fsdp_size"), "the size of a copy"),
    Key(f"{MODEL}.enable_gradient_checkpointing", ("learner.activation_checkpointing",), default=True),
    Key("model.enable_gradient_checkpointing", ("learner.activation_checkpointing",), page="-"),
    Key(f"{ACTOR}.use_torch_compile", ("learner.compile",), lambda value, config:
        refuse("theirs compiles single functions, ours whole layers") if value is True else nothing("not compiled"),
        "single functions"),
    Key(f"{ACTOR}.fsdp_config.offload_policy", ("learner.cpu_offload",)),
    Key(f"{ROLLOUT}.name", ("sampler.backend",), Lookup({"vllm": "vllm", "sglang": refuse(
        "SGLang generates as a server alone: docs/guides/servers.md"), "trtllm": refuse("there is no TensorRT-LLM"),
        "hf": "torch"})),
    Key(f"{ROLLOUT}.tensor_model_parallel_size", ("sampler.tensor_parallel",)),
    Key(f"{ROLLOUT}.max_model_len", ("sampler.vllm.max_model_len",), context("data.max_prompt_length",
        "data.max_response_length")),
    Key(f"{ROLLOUT}.max_num_batched_tokens", ("sampler.vllm.max_num_batched_tokens",)),
    Key(f"{ROLLOUT}.enforce_eager", ("sampler.vllm.enforce_eager",)),
    Key(f"{ROLLOUT}.max_num_seqs", ("sampler.max_batch_size",)),
    Key(f"{ROLLOUT}.quantization", ("sampler.vllm.quantization",), optional(), page="-"),
    Key(f"{ROLLOUT}.checkpoint_engine.backend", ("sampler.transfer",), lambda value, config:
        nothing("sampler.transfer=auto chooses by the placement")),
    Key(f"{ROLLOUT}.gpu_memory_utilization", ("sampler.kv_cache_gib",), lambda value, config: refuse(say.SHARE),
        "a share"),
    Key(f"{ROLLOUT}.free_cache_engine", ("cluster.offload_idle",)),
    Key("actor_rollout_ref.hybrid_engine", ("cluster.placement",), Lookup({True: "colocated", False: "separate"}),
        page="`actor_rollout_ref.hybrid_engine`"),
    Key("trainer.total_training_steps", ("run.max_steps",), positive("trainer.total_epochs decides")),
    Key("trainer.total_epochs", ("run.max_epochs",), lambda value, config:
        nothing("total_training_steps ends the run") if config.number("trainer.total_training_steps") else value,
        default=30),
    Key("trainer.test_freq", ("run.validate_every",), positive("no validation")),
    Key("trainer.save_freq", ("run.save_every",), positive("at the end alone; ours saves every 10 steps")),
    Key("trainer.max_actor_ckpt_to_keep", ("run.keep",), optional()),
    Key("trainer.max_ckpt_to_keep", ("run.keep",), optional(), page="-"),
    Key("trainer.default_local_dir", ("run.folder",), lambda value, config:
        nothing("runs/<recipe>-<digest>, which is new for each set of options") if "$" in str(value) else str(value)),
    Key("trainer.log_val_generations", ("run.num_logged_samples",)),
    Key("trainer.rollout_data_dir", ("run.num_logged_samples",), lambda value,
        config: nothing("samples.jsonl in the run's folder")),
    Key("trainer.logger", ("trackers.tensorboard", "trackers.wandb"), _logger, page="`trainer.logger`"),
    Key("trainer.project_name", ("trackers.wandb.project",), _tracker),
    Key("trainer.experiment_name", ("trackers.wandb.name",), _tracker),
    Key("trainer.v1.trainer_mode", ("ppo.one_step_ahead",), Lookup({"sync": False})),
)  # fmt: skip

GATES = (
    Gate((f"{ACTOR}.clip_ratio",), lambda config: config.get(f"{ACTOR}.clip_ratio_low") is None,
         "clip_ratio_low and clip_ratio_high are 0.2 where they are not said, and go before it"),
    Gate((f"{ACTOR}.loss_agg_mode",), lambda config: config.get(f"{ACTOR}.policy_loss.loss_mode") != "gspo",
         "gspo takes means of responses, seq-mean-token-mean, in any case"),
    Gate((f"{ACTOR}.kl_loss_coef", f"{ACTOR}.kl_loss_type"), lambda config: config.says(f"{ACTOR}.use_kl_loss"),
         "actor.use_kl_loss is false"),
    Gate(("algorithm.kl_ctrl.*", "algorithm.kl_penalty"), lambda config: config.says("algorithm.use_kl_in_reward"),
         "algorithm.use_kl_in_reward is false"),
    Gate(("critic.*", "trainer.critic_warmup", "algorithm.lam"), _with_critic, "there is no critic without "
        "adv_estimator=gae"),
    Gate(("algorithm.norm_adv_by_std_in_grpo",), lambda config: config.get("algorithm.adv_estimator") == "grpo",
         "adv_estimator is not grpo"),
    Gate((f"{ACTOR}.ppo_max_token_len_per_gpu",), lambda config: config.says(f"{ACTOR}.use_dynamic_bsz"),
         "actor.use_dynamic_bsz is false"),
    Gate((f"{ACTOR}.ppo_micro_batch_size_per_gpu", f"{ACTOR}.ppo_micro_batch_size"),
         lambda config: not config.says(f"{ACTOR}.use_dynamic_bsz"), "actor.use_dynamic_bsz is true"),
    Gate(("reward_model.model.*", "reward_model.micro_batch_size*", "reward_model.rollout.*",
        "reward_model.max_length"),
         lambda config: config.says("reward_model.enable"), "reward_model.enable is false"),
    Gate((f"{ROLLOUT}.multi_turn.*",), lambda config: config.says(f"{ROLLOUT}.multi_turn.enable"),
         "multi_turn.enable is false", but=(f"{ROLLOUT}.multi_turn.enable", f"{ROLLOUT}.multi_turn.tool_config_path")),
    Gate((f"{ACTOR}.megatron.*",), _is_megatron,
         "actor.strategy is not megatron"),
)  # fmt: skip

SFT_DEFAULTS: dict[str, Json] = {
    "optim.lr": 1e-5, "optim.betas": [0.9, 0.95], "optim.weight_decay": 0.01, "data.train_batch_size": 256,
    "data.max_length": 1024, "data.prompt_key": "question", "data.response_key": "answer", "trainer.total_epochs": 4,
    "trainer.seed": 1, "model.partial_pretrain": "~/models/gemma-1.1-7b-it",
    "data.train_files": "~/data/gsm8k/train.parquet",
    "data.val_files": "~/data/gsm8k/test.parquet", "optim.lr_scheduler": "cosine",
}  # fmt: skip

LIBRARY = Library(
    "verl", "verl", "b178a3c, January 2026", MAPPED + OTHERS, _algorithm, GATES,
    lambda config: SFT_DEFAULTS if config.algorithm == "sft" else {},
    prefix="actor_rollout_ref.",
)  # fmt: skip
