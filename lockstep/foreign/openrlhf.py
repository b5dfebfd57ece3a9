"""OpenRLHF's flags, without their dashes: `train_ppo_ray`, `train_sft`, `train_dpo` and `train_rm` of version 0.11."""

from __future__ import annotations

from collections.abc import Mapping

from lockstep.foreign import openrlhf_values as values
from lockstep.foreign import sentences as say
from lockstep.foreign.conversions import (
    Lookup,
    column,
    data_names,
    data_ranks,
    kl_coefficient,
    model_folder,
    nothing,
    number,
    numbers,
    optional,
    positive,
    refuse,
    section,
)
from lockstep.foreign.openrlhf_others import OTHERS
from lockstep.foreign.words import Answer, Config, Gate, Json, Key, Library

PROGRAMS = (("sft", "sft"), ("dpo", "dpo"), ("rm", "reward_model"))
"""Ends of names of programs, and the algorithm that each stands for; `train_ppo_ray` asks the estimator."""


def _algorithm(config: Config) -> str | None:
    program = config.program.removesuffix(".py").rsplit(".", 1)[-1].removeprefix("train_")
    named = next((ours for part, ours in PROGRAMS if part == program), None)
    if named is not None:
        return named
    if not any(key.startswith(("actor.", "rollout.", "algo.")) for key in config.given):
        kinds = (("dpo", "model.beta"), ("reward_model", "model.loss_type"), ("sft", "data.output_key"))
        return next((ours for ours, key in kinds if key in config.given), None)
    return "ppo" if config.get("algo.advantage.estimator") == "gae" else "grpo"


def _dp(value: Json, config: Config) -> Answer:
    """Ranks that share the data: the actor's GPUs, less what the other axes take."""
    gpus = config.whole("actor.num_nodes", 1) * config.whole("actor.num_gpus_per_node", 8)
    others = config.whole("ds.tensor_parallel_size", 1) * config.whole("ds.ring_attn_size", 1)
    return data_ranks(gpus, others)


def _clips(value: Json, config: Config) -> Answer:
    if not isinstance(value, list) or len(value) != 2:
        return nothing("eps_clip is both")
    return section("ppo", clip=value[0], clip_high=value[1])


def _dynamic(value: Json, config: Config) -> Answer:
    return 1_000_000 if value is True else nothing("off, as here without a word")


def _lora(value: Json, config: Config) -> Answer:
    return value if config.number("ds.lora.rank") else nothing("no LoRA")


def _modules(value: Json, config: Config) -> Answer:
    if value in (None, "all-linear", ["all-linear"]):
        return nothing("all linear maps, as here without a word")
    listed: Json = value if isinstance(value, list) else [value]
    return _lora(listed, config)


def _folder(value: Json, config: Config) -> Answer:
    return str(value)


def _tracker_name(value: Json, config: Config) -> Answer:
    return str(value) if config.get("logger.wandb.key") else nothing("without logger.wandb.key there is no W&B")


def _wandb(value: Json, config: Config) -> Answer:
    return section("trackers", wandb={}) if value else nothing("none")


BATCHES = ("ppo.global_batch_size", "sft.global_batch_size", "dpo.global_batch_size", "reward_model.global_batch_size")
LENGTHS = (
    "sft.max_tokens", "dpo.max_tokens", "reward_model.max_tokens", "data.max_prompt_tokens", "sampling.max_tokens"
)  # fmt: skip

MAPPED = (
    Key("algo.advantage.estimator", ("grpo.baseline",), values.estimator, default="gae", page="-"),
    Key("", ("grpo.baseline",), Lookup({"group_norm": "mean", "rloo": "leave_one_out"}),
        page="=algo.advantage.estimator"),
    Key("", ("grpo.scale_rewards",), page="`algo.advantage.estimator=dr_grpo`"),
    Key("actor.model_name_or_path", ("model.path",), model_folder),
    Key("model.model_name_or_path", ("model.path",), model_folder),
    Key("critic.model_name_or_path", ("critic_model.path",), model_folder),
    Key("reward.model_name_or_path", ("reward_model.path",), model_folder),
    Key("ds.param_dtype", ("learner.dtype",), Lookup({"bf16": "bf16", "fp16": "fp16"}),
        default="bf16", page="`ds.param_dtype`"),
    Key("train.seed", ("seed",), default=42),
    Key("data.prompt_dataset", ("data.train",), data_names),
    Key("data.dataset", ("data.train",), data_names),
    Key("eval.dataset", ("data.validation",), data_names),
    Key("data.prompt_probs", ("data.weights",), numbers),
    Key("data.dataset_probs", ("data.weights",), numbers),
    Key("data.input_key", ("data.prompt",), values.prompt),
    Key("data.input_template", ("data.prompt",), values.template),
    Key("data.prompt_key", ("data.prompt",), values.prompt, page="-"),
    Key("data.label_key", ("data.answer",), column),
    Key("data.output_key", ("data.completion",), column),
    Key("data.apply_chat_template", ("data.chat",), values.chat),
    Key("data.max_samples", ("data.limit_train_batches",), values.rows, "rows"),
    Key("reward.remote_url", ("reward.function",), values.remote,
        "[wrapped](guides/rewards.md#functions-of-openrlhf)"),
    Key("reward.overlong_buffer_len", ("ppo.overlong_penalty.buffer",), optional(values.overlong)),
    Key("reward.overlong_penalty_factor", ("ppo.overlong_penalty.penalty",), lambda value, config:
        value if config.get("reward.overlong_buffer_len") else nothing("overlong_buffer_len is not set")),
    Key("train.agent_func_path", ("environment.class_name",), values.agent),
    Key("reward.clip_range", ("ppo.reward_scaling.source",), values.reward_range, default=[-10, 10]),
    Key("reward.normalize_enable", ("reward_model.path",), values.normalize, page="-"),
    Key("reward.stop_properly_penalty_coef", ("ppo.truncation_penalty",), values.stop_properly, page="-"),
    Key("algo.dynamic_filtering_enable", ("ppo.dynamic_sampling.max_batches",), _dynamic, differs="a prompt is "
        "kept where its mean score is between 0 and 1 there, and where its rewards differ here: alike for 0 and 1"),
    Key("algo.dynamic_filtering_range", ("ppo.dynamic_sampling.max_batches",), values.filter_range, page="-"),
    Key("rollout.max_new_tokens", ("sampling.max_tokens",), optional()),
    Key("rollout.temperature", ("sampling.temperature",)),
    Key("rollout.top_p", ("sampling.top_p",)),
    Key("eval.temperature", ("validation_sampling.temperature",), default=0.6),
    Key("eval.n_samples_per_prompt", ("validation_sampling.num_samples",), default=4),
    Key("rollout.batch_size", ("ppo.num_prompts_per_step",), default=1024),
    Key("rollout.n_samples_per_prompt", ("ppo.num_generations",), default=1),
    Key("train.batch_size", BATCHES, default=128),
    Key("train.max_epochs", ("ppo.ppo_epochs", "run.max_epochs"), note="of SFT, DPO and reward models: "
        "`run.max_epochs`",
        page="`train.max_epochs`"),
    Key("actor.eps_clip", ("ppo.clip",)),
    Key("actor.eps_clip_low_high", ("ppo.clip_high", "ppo.clip"), _clips, "both bounds",
        page="`actor.eps_clip_low_high`"),
    Key("actor.dual_clip", ("ppo.dual_clip",), optional()),
    Key("actor.entropy_coef", ("ppo.entropy_coef",), optional(off=(None, 0, 0.0))),
    Key("algo.advantage.gamma", ("ppo.gamma",), values.discount),
    Key("algo.advantage.lambd", ("ppo.gae_lambda",), default=1),
    Key("critic.value_clip", ("ppo.value_clip",), values.value_clip, default=0.5),
    Key("critic.freezing_steps", ("ppo.critic_warmup_steps",), values.freezing, "and one more"),
    Key("critic.adam.lr", ("critic.lr",), number, default=9e-6),
    Key("critic.adam.betas", ("critic.betas",), default=[0.9, 0.95], page="-"),
    Key("critic.adam.eps", ("critic.eps",), number, page="-"),
    Key("critic.adam.weight_decay", ("critic.weight_decay",), page="-"),
    Key("critic.max_norm", ("critic.max_grad_norm",), values.gradient_bound, page="-"),
    Key("critic.lr_scheduler", ("critic.schedule.decay",), values.decay("critic.", "critic.schedule"),
        default=values.FLOORED, page="-"),
    Key("critic.lr_warmup_ratio", ("critic.schedule.warmup_steps",), values.warmup("critic.", "critic.schedule"),
        default=0.03, page="-"),
    Key("critic.min_lr_ratio", ("critic.schedule.final_fraction",), values.floor("critic.", "critic.schedule"),
        page="-"),
    Key("algo.advantage.no_std_norm", ("ppo.whiten_advantages",), values.no_std, page="-"),
    Key("actor.policy_loss_type", ("grpo.importance_sampling_level",), values.policy_loss,
        page="-"),
    Key("", ("grpo.importance_sampling_level", "grpo.loss_mean"), Lookup({"gspo": "sequence"}),
        page="=actor.policy_loss_type"),
    Key("", ("grpo.loss_mean",), Lookup({"gspo": "responses"}), page="=actor.policy_loss_type"),
    Key("algo.kl.init_coef", ("ppo.kl.coef",), kl_coefficient, default=0.01),
    Key("algo.kl.use_loss", ("ppo.kl.placement",), values.placement, default=False),
    Key("algo.kl.estimator", ("ppo.kl.coef",), values.kl_estimator, page="-"),
    Key("algo.kl.target", ("ppo.kl.adaptive.target",), values.kl_target, "with the KL in the reward, a mean over "
        "responses of means over tokens; here over all tokens", page="`algo.kl.target`"),
    Key("algo.kl.horizon", ("ppo.kl.adaptive.gain",), lambda value, config: nothing("ppo.kl.adaptive.gain, the "
        "responses of a step divided by it"), page="-"),
    Key("algo.advantage.is_correction_type", ("ppo.correction.kind",), values.correction, default="tis", page="-"),
    Key("", ("ppo.correction.kind",), Lookup({"tis": "token_tis", "icepop": "icepop"}),
        page="=algo.advantage.is_correction_type"),
    Key("algo.advantage.is_correction_enable", ("ppo.correction.kind",), values.enable_correction, page="-"),
    Key("algo.advantage.is_correction_threshold", ("ppo.correction.high", "ppo.correction.low"),
        values.bounds, default=[0.5, 5.0]),
    Key("train.async_enable", ("ppo.one_step_ahead",), lambda value, config:
        refuse("rollouts are of weights that may be older than a step there; one_step_ahead is one step, and needs a "
            "correction") if value is True
        else nothing("off, as here without a word")),
    Key("data.max_len", LENGTHS, values.longest, "in RL of prompt and response together", default=2048,
        page="`data.max_len`"),
    Key("data.chosen_key", ("data.chosen",), column, default="chosen"),
    Key("data.rejected_key", ("data.rejected",), column, default="rejected"),
    Key("model.beta", ("dpo.ref_policy_kl_penalty",)),
    Key("model.ipo_enable", ("dpo.preference_loss",), Lookup({True: "ipo", False: "dpo"}), page="`model.ipo_enable`"),
    Key("model.nll_loss_coef", ("dpo.sft_loss_weight",), values.likelihood),
    Key("model.label_smoothing", ("dpo.label_smoothing",), lambda value, config:
        nothing("ipo does not read it") if config.says("model.ipo_enable") else optional()(value, config)),
    Key("ref.model_name_or_path", ("dpo.ref_policy_kl_penalty",), values.reference, page="-"),
    Key("model.margin_loss_enable", ("reward_model.margin",), values.margin),
    Key("model.loss_type", ("reward_model.margin",), lambda value, config: nothing("the likelihood of the chosen one: "
        "log(1 + exp(-Δ)) is -log σ(Δ)"), page="-"),
    Key("actor.adam.lr", ("policy.lr",), number, default=1e-6),
    Key("adam.lr", ("policy.lr",), number),
    Key("actor.adam.betas", ("policy.betas",), default=[0.9, 0.95]),
    Key("adam.betas", ("policy.betas",)),
    Key("actor.adam.eps", ("policy.eps",), number),
    Key("adam.eps", ("policy.eps",), number),
    Key("actor.adam.weight_decay", ("policy.weight_decay",)),
    Key("adam.weight_decay", ("policy.weight_decay",)),
    Key("actor.max_norm", ("policy.max_grad_norm",), values.gradient_bound),
    Key("max_norm", ("policy.max_grad_norm",), values.gradient_bound, page="-"),
    Key("actor.lr_warmup_ratio", ("policy.schedule.warmup_steps",), values.warmup("actor.", "policy.schedule"),
        "a share", default=0.03),
    Key("lr_warmup_ratio", ("policy.schedule.warmup_steps",), values.warmup("", "optimizer.schedule"), page="-"),
    Key("actor.lr_scheduler", ("policy.schedule.decay",), values.decay("actor.", "policy.schedule"),
        default=values.FLOORED),
    Key("lr_scheduler", ("policy.schedule.decay",), values.decay("", "optimizer.schedule"), page="-"),
    Key("actor.min_lr_ratio", ("policy.schedule.final_fraction",), values.floor("actor.", "policy.schedule")),
    Key("min_lr_ratio", ("policy.schedule.final_fraction",), values.floor("", "optimizer.schedule"), page="-"),
    Key("ds.lora.rank", ("learner.lora.rank",), positive("no LoRA")),
    Key("ds.lora.alpha", ("learner.lora.alpha",), _lora),
    Key("ds.lora.target_modules", ("learner.lora.target_modules",), _modules),
    Key("train.max_tokens_per_gpu", ("learner.micro_batch_tokens",)),
    Key("actor.num_gpus_per_node", ("learner.parallel.dp",), _dp),
    Key("actor.num_nodes", ("learner.parallel.dp",), _dp),
    Key("ds.tensor_parallel_size", ("learner.parallel.tp",)),
    Key("ds.ring_attn_size", ("learner.parallel.cp",)),
    Key("actor.gradient_checkpointing_enable", ("learner.activation_checkpointing",)),
    Key("model.gradient_checkpointing_enable", ("learner.activation_checkpointing",), page="-"),
    Key("ds.deepcompile", ("learner.compile",)),
    Key("ds.adam_offload", ("learner.cpu_offload",), lambda value, config:
        refuse("the moments alone; learner.cpu_offload moves the weights, too") if value is True else nothing("off"),
            "moments"),
    Key("", ("sampler.backend",), page="vLLM"),
    Key("vllm.num_engines", ("sampler.replicas",), lambda value, config: section("sampler", backend="vllm",
        replicas=value)
        if value else section("sampler", backend="torch")),
    Key("vllm.tensor_parallel_size", ("sampler.tensor_parallel",)),
    Key("vllm.enforce_eager", ("sampler.vllm.enforce_eager",)),
    Key("vllm.gpu_memory_utilization", ("sampler.kv_cache_gib",), lambda value, config: refuse(say.SHARE), "a share"),
    Key("vllm.sync_backend", ("sampler.transfer",), lambda value, config: nothing("sampler.transfer=auto chooses "
        "by the placement")),
    Key("vllm.enable_sleep", ("cluster.offload_idle",)),
    Key("rollout.vllm_generate_batch_size", ("ppo.num_prompts_per_step",), values.prompts_at_once, page="-"),
    Key("train.colocate_all", ("cluster.placement",), Lookup({True: "colocated", False: "separate"}),
        page="`train.colocate_all`"),
    Key("train.num_episodes", ("run.max_epochs",), default=1),
    Key("eval.steps", ("run.validate_every",), values.validation),
    Key("ckpt.save_steps", ("run.save_every",), positive("at the end alone; ours saves every 10 steps")),
    Key("ckpt.max_num", ("run.keep",)),
    Key("ckpt.best_metric_key", ("run.best.metric",), lambda value, config:
        refuse(f"the metric {value} has another name here; docs/coming_from.md") if value not in (None, "",
            "none") else nothing("none")),
    Key("ckpt.output_dir", ("run.folder",), _folder),
    Key("ckpt.path", ("run.folder",), lambda value, config: nothing("checkpoints are in run.folder, too")),
    Key("logger.tensorboard_dir", ("trackers.tensorboard",), lambda value, config:
        section("trackers", tensorboard={}) if value else nothing("none")),
    Key("logger.wandb.key", ("trackers.wandb",), _wandb, page="-"),
    Key("logger.wandb.project", ("trackers.wandb.project",), _tracker_name),
    Key("logger.wandb.run_name", ("trackers.wandb.name",), _tracker_name),
)  # fmt: skip

GATES = (
    Gate(("actor.*", "algo.*", "critic.*", "reward.*", "rollout.*", "vllm.*", "train.agent_func_path",
        "eval.temperature", "eval.n_samples_per_prompt"),
        lambda config: config.algorithm in values.RL, "train_ppo_ray alone has it"),
    Gate(("critic.*", "algo.advantage.lambd", "*.colocate_critic_reward"), lambda config: config.algorithm == "ppo",
         "there is no critic without algo.advantage.estimator=gae", but=("critic.freezing_steps",)),
    Gate(("algo.advantage.gamma",), lambda config: values.read_estimator(config) not in values.GROUPS,
         "their program sets it to 1 for estimators that compare the responses to a prompt"),
    Gate(("algo.advantage.no_std_norm",), lambda config: values.read_estimator(config) in values.WHITENED,
         "of this estimator advantages are not whitened, and group_norm divides by the deviation in any case"),
    Gate(("algo.kl.estimator", "algo.kl.use_loss"), lambda config: config.number("algo.kl.init_coef") > 0,
         "algo.kl.init_coef is 0"),
    Gate(("algo.kl.horizon",), lambda config: bool(config.get("algo.kl.target")), "algo.kl.target is not set"),
    Gate(("algo.dynamic_filtering_range",), lambda config: config.says("algo.dynamic_filtering_enable"),
         "algo.dynamic_filtering_enable is off"),
    Gate(("algo.advantage.is_correction_threshold", "algo.advantage.is_correction_type"),
         lambda config: config.get("actor.policy_loss_type") != "gspo", "gspo has no weights"),
    Gate(("reward.remote_url",), lambda config: not config.get("train.agent_func_path"),
         "train.agent_func_path scores the responses"),
    Gate(("actor.muon.*", "critic.muon.*", "muon.*"), lambda config: "muon" in (config.get("optim"),
        config.get("actor.optim"), config.get("critic.optim")),
         "the optimizer is adam"),
    Gate(("algo.advantage.is_correction_threshold", "algo.advantage.is_correction_type"),
         lambda config: config.says("algo.advantage.is_correction_enable"), "is_correction_enable is off"),
    Gate(("train.max_tokens_per_gpu", "rollout.max_tokens_per_gpu"),
        lambda config: config.says("train.dynamic_batch_enable"),
         "train.dynamic_batch_enable is off"),
    Gate(("train.micro_batch_size", "rollout.micro_batch_size"),
        lambda config: not config.says("train.dynamic_batch_enable"),
         "train.dynamic_batch_enable is on"),
    Gate(("actor.eps_clip",), lambda config: config.get("actor.eps_clip_low_high") is None,
        "eps_clip_low_high goes before it"),
    Gate(("vllm.enable_sleep",), lambda config: config.says("train.colocate_all"), "train.colocate_all is off"),
    Gate(("train.ema_beta",), lambda config: config.says("train.enable_ema"), "train.enable_ema is off"),
    Gate(("reward.model_name_or_path", "reward.num_nodes", "reward.num_gpus_per_node"),
         lambda config: not config.get("reward.remote_url") and not config.get("train.agent_func_path"),
         "reward.remote_url or train.agent_func_path scores the responses"),
    Gate(("logger.wandb.*",), lambda config: bool(config.get("logger.wandb.key")), "logger.wandb.key is not set",
         but=("logger.wandb.key",)),
)  # fmt: skip

_ONE_MODEL: dict[str, Json] = {
    "adam.betas": [0.9, 0.95], "lr_scheduler": values.FLOORED, "lr_warmup_ratio": 0.03, "train.max_epochs": 1
}  # fmt: skip
_PAIRS: dict[str, Json] = {**_ONE_MODEL, "data.max_len": 512}
DEFAULTS: dict[str, dict[str, Json]] = {
    "ppo": {"data.input_key": "input"}, "grpo": {"data.input_key": "input"},
    "sft": {**_ONE_MODEL, "adam.lr": 5e-6, "train.max_epochs": 2, "data.input_key": "input",
        "data.input_template": "User: {}\nAssistant: "},
    "dpo": {"adam.lr": 1e-5, **_PAIRS}, "reward_model": {"adam.lr": 9e-6, **_PAIRS},
}  # fmt: skip


def _defaults(config: Config) -> Mapping[str, Json]:
    """Defaults of a program; that of the critic is the reward model that scores, if there is one."""
    critic = values.find_critic(config) if config.algorithm == "ppo" else None
    found = DEFAULTS.get(config.algorithm, {})
    return found if critic is None else {**found, "critic.model_name_or_path": critic}


LIBRARY = Library(
    "OpenRLHF",
    "openrlhf",
    "3c3be62, version 0.11",
    MAPPED + OTHERS,
    _algorithm,
    GATES,
    _defaults,
    values.find_always,
    values.find_remarks,
)
