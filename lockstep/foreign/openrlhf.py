"""OpenRLHF's flags, without their dashes: `train_ppo_ray`, `train_sft`, `train_dpo` and `train_rm` of version 0.11."""

from __future__ import annotations

from collections.abc import Mapping

from lockstep.foreign import sentences as say
from lockstep.foreign.conversions import (
    Lookup,
    bound,
    column,
    data_file,
    data_ranks,
    distance,
    kl_coefficient,
    model_folder,
    nothing,
    number,
    numbers,
    optional,
    positive,
    refuse,
    section,
    share_of_steps,
    whole,
)
from lockstep.foreign.openrlhf_others import OTHERS
from lockstep.foreign.words import Answer, Config, Gate, Json, Key, Library, Unset

ESTIMATORS: dict[Json, Json | Unset] = {
    "gae": nothing("algorithm: ppo"), "group_norm": "mean", "dr_grpo": "mean", "rloo": "leave_one_out",
    "reinforce": "none", "reinforce_baseline": "mean",
}  # fmt: skip
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


def _always(config: Config) -> Mapping[str, Json]:
    """The schedule's end, which needs the number of steps, is not among them."""
    if config.algorithm == "grpo" and config.get("algo.advantage.estimator") == "reinforce_baseline":
        return {"grpo.whiten_advantages": True, "grpo.scale_rewards": "none"}
    if config.algorithm == "grpo" and config.get("algo.advantage.estimator") == "reinforce":
        return {"grpo.whiten_advantages": True}
    return {}


def _scales(config: Config) -> str:
    estimator = config.get("algo.advantage.estimator")
    return "group" if estimator == "group_norm" and not config.says("algo.advantage.no_std_norm") else "none"


def _estimator(value: Json, config: Config) -> Answer:
    baseline = Lookup(ESTIMATORS)(value, config)
    return section("grpo", baseline=baseline, scale_rewards=_scales(config)) if isinstance(baseline, str) else baseline


def _no_std(value: Json, config: Config) -> Answer:
    return _scales(config)


def _dp(value: Json, config: Config) -> Answer:
    """Ranks that share the data: the actor's GPUs, less what the other axes take."""
    gpus = config.whole("actor.num_nodes", 1) * config.whole("actor.num_gpus_per_node", 8)
    others = config.whole("ds.tensor_parallel_size", 1) * config.whole("ds.ring_attn_size", 1)
    return data_ranks(gpus, others)


def _clips(value: Json, config: Config) -> Answer:
    if not isinstance(value, list) or len(value) != 2:
        return nothing("eps_clip is both")
    return section("ppo", clip=value[0], clip_high=value[1])


def _placement(value: Json, config: Config) -> Answer:
    if not config.number("algo.kl.init_coef"):
        return nothing("there is no KL")
    return "loss" if value is True else "reward"


def _correction(value: Json, config: Config) -> Answer:
    if not config.says("algo.advantage.is_correction_enable"):
        return nothing("algo.advantage.is_correction_enable is off")
    return Lookup({"tis": "token_tis", "icepop": "icepop"})(value, config)


def _bounds(value: Json, config: Config) -> Answer:
    kind = _correction(config.get("algo.advantage.is_correction_type"), config)
    if not isinstance(kind, str):
        return nothing("no such correction")
    if not isinstance(value, list) or len(value) != 2:
        return refuse("two bounds, from below and above")
    return (
        section("ppo.correction", low=value[0], high=value[1])
        if kind == "icepop"
        else section("ppo.correction", high=value[1])
    )


def _dynamic(value: Json, config: Config) -> Answer:
    return 1_000_000 if value is True else nothing("off, as here without a word")


def _range(value: Json, config: Config) -> Answer:
    if not config.says("algo.dynamic_filtering_enable") or value in ([0, 1], [0.0, 1.0]):
        return nothing("groups whose rewards do not differ are left out")
    return refuse("groups are left out where their rewards do not differ, not by a range")


def _no_steps(config: Config) -> float:
    """The number of steps, which no config of theirs says."""
    return 0


def _decay(value: Json, config: Config) -> Answer:
    if value == "constant":
        return nothing("constant")
    return refuse("a decay needs decay_steps, which follow from the rows here: policy.schedule")


def _lora(value: Json, config: Config) -> Answer:
    return value if config.number("ds.lora.rank") else nothing("no LoRA")


def _modules(value: Json, config: Config) -> Answer:
    if value in (None, "all-linear", ["all-linear"]):
        return nothing("all linear maps, as here without a word")
    listed: Json = value if isinstance(value, list) else [value]
    return _lora(listed, config)


def _template(value: Json, config: Config) -> Answer:
    """Their `{}` is the field of the prompt."""
    if not isinstance(value, str) or "{}" not in value:
        return nothing("none")
    if config.says("data.apply_chat_template"):
        return nothing("the chat template goes before")
    return value.replace("\\n", "\n").replace("{}", f"{{{config.get('data.input_key') or 'input'}}}")


def _input(value: Json, config: Config) -> Answer:
    template = config.get("data.input_template")
    if isinstance(template, str) and "{}" in template and not config.says("data.apply_chat_template"):
        return nothing("part of data.prompt")
    if config.says("data.apply_chat_template"):
        return section("data", messages=str(value))
    return f"{{{value}}}"


def _chat(value: Json, config: Config) -> Answer:
    if config.get("data.input_key") is not None and value is True:
        return nothing("messages always go through the chat template")
    return value


def _remote(value: Json, config: Config) -> Answer:
    if not value:
        return nothing("none")
    if str(value).endswith(".py"):
        return section("reward", type="python", function=f"{str(value).rsplit('/', 1)[-1]}:reward_func")
    return refuse("a server with a protocol of theirs: reward.server has its own (docs/guides/rewards.md)")


def _folder(value: Json, config: Config) -> Answer:
    return str(value)


def _tracker_name(value: Json, config: Config) -> Answer:
    return str(value) if config.get("logger.wandb.key") else nothing("without logger.wandb.key there is no W&B")


def _wandb(value: Json, config: Config) -> Answer:
    return section("trackers", wandb={}) if value else nothing("none")


def _whole_answer(value: Json, config: Config) -> Answer:
    """Prompt and response together have this length; without a bound of its own, the response has half of it."""
    if not isinstance(value, int) or config.algorithm not in ("ppo", "grpo"):
        return value
    answer = config.whole("rollout.max_new_tokens", value // 2)
    parts: dict[str, Json] = {"max_tokens": answer}
    return section("sampling", **parts)


BATCHES = ("ppo.global_batch_size", "sft.global_batch_size", "dpo.global_batch_size", "reward_model.global_batch_size")
LENGTHS = ("sft.max_tokens", "dpo.max_tokens", "reward_model.max_tokens", "sampling.max_tokens")

MAPPED = (
    Key("algo.advantage.estimator", ("grpo.baseline",), _estimator, default="gae", page="-"),
    Key("", ("grpo.baseline",), Lookup({"group_norm": "mean", "rloo": "leave_one_out"}),
        page="=algo.advantage.estimator"),
    Key("", ("grpo.scale_rewards",), page="`algo.advantage.estimator=dr_grpo`"),
    Key("actor.model_name_or_path", ("model.path",), model_folder),
    Key("model.model_name_or_path", ("model.path",), model_folder),
    Key("critic.model_name_or_path", ("critic_model.path",), model_folder),
    Key("reward.model_name_or_path", ("reward_model.path",), model_folder),
    Key("ds.param_dtype", ("learner.dtype",), Lookup({"bf16": "bf16", "fp16": refuse("no model is trained in fp16")}),
        default="bf16", page="`ds.param_dtype`"),
    Key("train.seed", ("seed",), default=42),
    Key("data.prompt_dataset", ("data.train",), data_file),
    Key("data.dataset", ("data.train",), data_file),
    Key("eval.dataset", ("data.validation",), data_file),
    Key("data.prompt_probs", ("data.weights",), numbers),
    Key("data.dataset_probs", ("data.weights",), numbers),
    Key("data.input_key", ("data.prompt",), _input),
    Key("data.input_template", ("data.prompt",), _template),
    Key("data.prompt_key", ("data.prompt",), column, page="-"),
    Key("data.label_key", ("data.answer",), column),
    Key("data.output_key", ("data.completion",), column),
    Key("data.apply_chat_template", ("data.chat",), _chat),
    Key("data.max_samples", ("data.limit_train_batches",), lambda value, config:
        nothing("all rows") if isinstance(value, int) and value >= 100_000 else
        refuse("a limit in rows; data.limit_train_batches counts batches"), "rows"),
    Key("reward.remote_url", ("reward.function",), _remote),
    Key("reward.overlong_buffer_len", ("ppo.overlong_penalty.buffer",), optional(whole)),
    Key("reward.overlong_penalty_factor", ("ppo.overlong_penalty.penalty",), lambda value, config:
        value if config.get("reward.overlong_buffer_len") else nothing("overlong_buffer_len is not set")),
    Key("algo.dynamic_filtering_enable", ("ppo.dynamic_sampling.max_batches",), _dynamic),
    Key("algo.dynamic_filtering_range", ("ppo.dynamic_sampling.max_batches",), _range, page="-"),
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
    Key("algo.advantage.gamma", ("ppo.gamma",)),
    Key("algo.advantage.lambd", ("ppo.gae_lambda",), default=1),
    Key("critic.value_clip", ("ppo.value_clip",), distance, default=0.5),
    Key("critic.freezing_steps", ("ppo.critic_warmup_steps",), positive("none")),
    Key("critic.adam.lr", ("critic.lr",), number, default=9e-6),
    Key("critic.adam.betas", ("critic.betas",), default=[0.9, 0.95], page="-"),
    Key("critic.adam.eps", ("critic.eps",), number, page="-"),
    Key("critic.adam.weight_decay", ("critic.weight_decay",), page="-"),
    Key("critic.max_norm", ("critic.max_grad_norm",), bound, page="-"),
    Key("critic.lr_scheduler", ("critic.schedule.decay",), _decay, page="-"),
    Key("critic.lr_warmup_ratio", ("critic.schedule.warmup_steps",), share_of_steps(_no_steps), page="-"),
    Key("algo.advantage.no_std_norm", ("grpo.scale_rewards",), _no_std, page="-"),
    Key("actor.policy_loss_type", ("grpo.importance_sampling_level",), Lookup({"gspo": "sequence",
        "ppo": nothing("of tokens")})),
    Key("algo.kl.init_coef", ("ppo.kl.coef",), kl_coefficient, default=0.01),
    Key("algo.kl.use_loss", ("ppo.kl.placement",), _placement, default=False),
    Key("algo.kl.target", ("ppo.kl.adaptive.target",), lambda value, config:
        nothing("the coefficient is fixed") if value is None else
        refuse("their target is of a whole response; ppo.kl.adaptive.target is per token"), page="-"),
    Key("algo.advantage.is_correction_type", ("ppo.correction.kind",), _correction, default="tis", page="-"),
    Key("", ("ppo.correction.kind",), Lookup({"tis": "token_tis", "icepop": "icepop"}),
        page="=algo.advantage.is_correction_type"),
    Key("algo.advantage.is_correction_enable", ("ppo.correction.kind",), lambda value, config:
        _correction(config.get("algo.advantage.is_correction_type"), config), page="-"),
    Key("algo.advantage.is_correction_threshold", ("ppo.correction.high", "ppo.correction.low"), _bounds, default=[0.5,
        5.0]),
    Key("train.async_enable", ("ppo.one_step_ahead",), lambda value, config:
        refuse("one_step_ahead is one step old, and needs a correction: ppo.correction.kind=token_tis") if value is True
        else nothing("off, as here without a word")),
    Key("data.max_len", LENGTHS, _whole_answer, "in RL of prompt and response together", default=2048,
        page="`data.max_len`"),
    Key("data.chosen_key", ("data.chosen",), column, default="chosen"),
    Key("data.rejected_key", ("data.rejected",), column, default="rejected"),
    Key("model.beta", ("dpo.ref_policy_kl_penalty",)),
    Key("model.ipo_enable", ("dpo.preference_loss",), Lookup({True: "ipo", False: "dpo"}), page="`model.ipo_enable`"),
    Key("model.nll_loss_coef", ("dpo.sft_loss_weight",), optional()),
    Key("model.label_smoothing", ("dpo.label_smoothing",), lambda value, config:
        nothing("ipo does not read it") if config.says("model.ipo_enable") else optional()(value, config)),
    Key("model.margin_loss_enable", ("reward_model.margin",)),
    Key("model.loss_type", ("reward_model.margin",), lambda value, config:
        nothing("the likelihood of the chosen one") if value == "sigmoid" else refuse(f"there is no loss {value}"),
            page="-"),
    Key("actor.adam.lr", ("policy.lr",), number, default=1e-6),
    Key("adam.lr", ("policy.lr",), number),
    Key("actor.adam.betas", ("policy.betas",), default=[0.9, 0.95]),
    Key("adam.betas", ("policy.betas",)),
    Key("actor.adam.eps", ("policy.eps",), number),
    Key("adam.eps", ("policy.eps",), number),
    Key("actor.adam.weight_decay", ("policy.weight_decay",)),
    Key("adam.weight_decay", ("policy.weight_decay",)),
    Key("actor.max_norm", ("policy.max_grad_norm",), bound),
    Key("max_norm", ("policy.max_grad_norm",), bound, page="-"),
    Key("actor.lr_warmup_ratio", ("policy.schedule.warmup_steps",), share_of_steps(_no_steps), "a share"),
    Key("lr_warmup_ratio", ("policy.schedule.warmup_steps",), share_of_steps(_no_steps), page="-"),
    Key("actor.lr_scheduler", ("policy.schedule.decay",), _decay, default="cosine_with_min_lr"),
    Key("lr_scheduler", ("policy.schedule.decay",), _decay, page="-"),
    Key("actor.min_lr_ratio", ("policy.schedule.final_fraction",), lambda value, config: nothing("of a decay")),
    Key("min_lr_ratio", ("policy.schedule.final_fraction",), lambda value, config: nothing("of a decay"), page="-"),
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
    Key("rollout.vllm_generate_batch_size", ("sampler.max_batch_size",)),
    Key("train.colocate_all", ("cluster.placement",), Lookup({True: "colocated", False: "separate"}),
        page="`train.colocate_all`"),
    Key("train.num_episodes", ("run.max_epochs",), default=1),
    Key("eval.steps", ("run.validate_every",), positive("no validation")),
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
    Gate(("critic.*", "algo.advantage.lambd", "*.colocate_critic_reward"), lambda config: config.algorithm == "ppo",
         "there is no critic without algo.advantage.estimator=gae"),
    Gate(("actor.muon.*", "critic.muon.*", "muon.*"), lambda config: "muon" in (config.get("optim"),
        config.get("actor.optim")),
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
         lambda config: not config.get("reward.remote_url"), "reward.remote_url scores the responses"),
    Gate(("logger.wandb.*",), lambda config: bool(config.get("logger.wandb.key")), "logger.wandb.key is not set",
         but=("logger.wandb.key",)),
)  # fmt: skip

_PAIRS: dict[str, Json] = {
    "adam.betas": [0.9, 0.95],
    "lr_scheduler": "cosine_with_min_lr",
    "train.max_epochs": 1,
    "data.max_len": 512,
}
DEFAULTS: dict[str, dict[str, Json]] = {
    "sft": {"adam.lr": 5e-6, "adam.betas": [0.9, 0.95], "lr_scheduler": "cosine_with_min_lr", "train.max_epochs": 2},
    "dpo": {"adam.lr": 1e-5, **_PAIRS}, "reward_model": {"adam.lr": 9e-6, **_PAIRS},
}  # fmt: skip

LIBRARY = Library(
    "OpenRLHF",
    "openrlhf",
    "3c3be62, version 0.11",
    MAPPED + OTHERS,
    _algorithm,
    GATES,
    lambda config: DEFAULTS.get(config.algorithm, {}),
    _always,
)
