"""TRL's keys: fields of its configurations and `TrainingArguments`, in YAML, JSON or on a command line."""

from __future__ import annotations

from collections.abc import Mapping

from lockstep.foreign import sentences as say
from lockstep.foreign import trl_steps as steps
from lockstep.foreign import trl_values as values
from lockstep.foreign.conversions import (
    Lookup,
    bound,
    collect,
    data_split,
    distance,
    kl_coefficient,
    model_folder,
    nothing,
    number,
    optional,
    refuse,
    section,
    share_of_steps,
    teacher,
    tokens_left,
)
from lockstep.foreign.trl_others import OTHERS
from lockstep.foreign.trl_values import (
    convert_label_smoothing,
    convert_loss_of_pairs,
    convert_weights,
    has_adamw,
)
from lockstep.foreign.words import Answer, Config, Gate, Json, Key, Library, Several

PROGRAMS = (
    ("grpo", "grpo"), ("gspo", "grpo"), ("rloo", "grpo"), ("ppo", "ppo"), ("sft", "sft"), ("reward", "reward_model"),
    ("gkd", "distill"), ("online_dpo", "online_dpo"), ("onlinedpo", "online_dpo"), ("kto", "kto"), ("orpo", "orpo"),
    ("dpo", "dpo"),
)  # fmt: skip
"""Several of names of scripts and configurations, and the algorithm that each stands for."""
ELSEWHERE = ("xpo", "nash", "bco", "prm", "mpo", "async", "gold")
OF_KEYS = {
    "num_generations": "grpo", "cliprange": "ppo", "kl_coef": "ppo", "center_rewards_coefficient": "reward_model",
    "desirable_weight": "kto", "undesirable_weight": "kto", "simpo_gamma": "simpo",
    "lmbda": "distill", "precompute_ref_log_probs": "dpo", "dataset_text_field": "sft", "packing": "sft",
    "completion_only_loss": "sft", "assistant_only_loss": "sft",
}  # fmt: skip
"""Keys that one configuration alone has."""


OF_LOSSES = {
    "kto": "kto", "apo_zero_unpaired": "kto", "dapo": "grpo", "dr_grpo": "grpo", "bnpo": "grpo",
    "grpo": "grpo", "cispo": "grpo", "simpo": "simpo", "nll": "sft", "chunked_nll": "sft", "dft": "sft",
    "robust": "dpo", "hinge": "dpo",
}  # fmt: skip
"""Losses that one trainer alone has."""


def is_of_trainer(name: str) -> bool:
    """True for the name of a configuration that one of its trainers has."""
    return any(part in name.lower() for part in (*dict(PROGRAMS), *ELSEWHERE, "cpo"))


def _algorithm(config: Config) -> str | None:
    program = config.program.rsplit("/", 1)[-1].lower()
    if any(name in program for name in ELSEWHERE):
        return None
    if "cpo" in program:  # whose other losses are not here
        return "simpo" if config.get("loss_type") == "simpo" else None
    named = next((ours for part, ours in PROGRAMS if part in program), None)
    losses = config.given.get("loss_type")
    loss = OF_LOSSES.get(str(losses[0] if isinstance(losses, list) and losses else losses))
    return named or next((ours for key, ours in OF_KEYS.items() if key in config.given), loss)


def _always(config: Config) -> Mapping[str, Json]:
    """The columns that its trainers read, the one response of PPO, and RLOO's baseline."""
    columns: dict[str, Json] = {"data.prompt": "{prompt}"}
    if config.algorithm == "ppo":
        columns["ppo.num_generations"] = 1
    if config.algorithm in ("sft", "kto"):
        columns["data.completion"] = "{completion}"
    if (config.processes or 1) > 1:
        columns["learner.parallel.dp"] = config.processes
    if steps.is_rloo(config):
        columns |= {"grpo.baseline": "leave_one_out", "grpo.scale_rewards": "none", "grpo.loss_mean": "constant"}
    return columns


_BALANCED = ("grpo", "sft", "dpo", "kto")
"""Algorithms whose trainers add the balance of experts to the loss, unless they are told not to."""


def _remark(config: Config) -> tuple[str, ...]:
    """Facts about a step and a loss of theirs that no key says."""
    remarks: list[str] = []
    if steps.is_rloo(config):
        remarks.append(
            "the loss of their RLOO adds up the tokens of a response, and loss_mean: constant divides the sum by "
            "sampling.max_tokens, as the recipe does max_grad_norm and eps: AdamW's steps are the same"
        )
    if config.algorithm in _BALANCED and "router_aux_loss_coef" not in config.given:
        remarks.append(
            "where the model has experts, 0.001 times their balance is a part of the loss there "
            "(router_aux_loss_coef), and of none here"
        )
    if config.algorithm == "sft" and config.says("packing"):
        remarks.append(
            f"with packing, a step of theirs has {steps.count_rows(config)} sequences of max_length tokens, each of "
            "several rows, and a step here as many rows: raise sft.global_batch_size to the rows that fill them"
        )
    if config.algorithm == "sft" and not config.says("assistant_only_loss"):
        remarks.append(
            "of rows with `messages` they learn all tokens unless assistant_only_loss is true; here the last "
            "answer is learned"
        )
    if config.says("use_peft") and not config.get("lora_target_modules"):
        remarks.append(
            "without lora_target_modules, peft chooses the maps by the model, often q_proj and v_proj alone; "
            "here all linear maps get LoRA: learner.lora.target_modules"
        )
    return tuple(remarks)


def _beta(value: Json, config: Config) -> Answer:
    if config.algorithm == "distill":
        if value in (0, 1):
            return section("distill", kl_type="forward" if value == 0 else "reverse")
        return section("distill", kl_type="jsd", mixed_kl_weight=value)
    return _kl(value, config) if config.algorithm in ("grpo", "ppo") else value


def _kl(value: Json, config: Config) -> Answer:
    """A coefficient of the KL, which PPO and RLOO take from the reward."""
    in_reward = config.algorithm == "ppo" or steps.is_rloo(config)
    return section("ppo.kl", coef=value, placement="reward") if value and in_reward else kl_coefficient(value, config)


def _loss(value: Json, config: Config) -> Answer:
    """The losses of all trainers have one key."""
    match config.algorithm:
        case "grpo":
            return _loss_of_groups(value, config)
        case "dpo":
            return convert_loss_of_pairs(value, config)
        case "online_dpo":
            loss = Lookup({"sigmoid": "dpo", "ipo": "ipo"})(value, config)
            return section("online_dpo", preference_loss=loss) if isinstance(loss, str) else loss
        case "kto" | "simpo":
            return (
                nothing("the algorithm says it") if value == config.algorithm else refuse(f"there is no loss {value}")
            )
        case _:
            return (
                nothing("the likelihood of the answer")
                if value in (None, "nll", "chunked_nll")
                else refuse(f"there is no loss {value}")
            )


_MEAN_OF_PASSES = (
    "a mean over the tokens of each pass and process, and of these means; here over all tokens of a minibatch: "
    "decide between loss_mean tokens and responses"
)


def _loss_of_groups(value: Json, config: Config) -> Answer:
    if value == "cispo":
        unbounded = "" if config.get("epsilon_high") else "say epsilon_high: without it their ratio is at most epsilon"
        return Several({"grpo.loss": "cispo"}, unbounded)
    if value == "bnpo":
        passes = config.whole("gradient_accumulation_steps", 1) * (config.processes or 1)
        return Several({"grpo.loss_mean": "tokens"}, _MEAN_OF_PASSES if passes > 1 else "")
    mean = Lookup({"grpo": "responses", "dr_grpo": "constant", "dapo": "tokens"})(value, config)
    return section("grpo", loss_mean=mean) if isinstance(mean, str) else mean


SIZE = "`per_device_train_batch_size` × `gradient_accumulation_steps` × processes"
BATCHES = (
    "ppo.global_batch_size", "sft.global_batch_size", "dpo.global_batch_size", "reward_model.global_batch_size",
    "distill.global_batch_size", "kto.global_batch_size", "simpo.global_batch_size", "orpo.global_batch_size",
    "online_dpo.num_prompts_per_step",
)  # fmt: skip

MAPPED = (
    Key("model_name_or_path", ("model.path",), model_folder),
    Key("sft_model_path", ("model.path",), model_folder, page="-"),
    Key("reward_model_path", ("reward_model.path",), model_folder, page="PPO: `reward_model_path`"),
    Key("bf16", ("learner.dtype",), values.bf16, default=True),
    Key("dtype", ("learner.dtype",), Lookup(values.DTYPES), page="-"),
    Key("torch_dtype", ("learner.dtype",), Lookup(values.DTYPES), page="-"),
    Key("seed", ("seed",), default=42),
    Key("", ("data.train",), page="the trainer's `train_dataset`"),
    Key("dataset_name", ("data.train",), data_split, page="-"),
    Key("dataset_train_split", ("data.train",), lambda value, config: nothing("behind dataset_name"), page="-"),
    Key("", ("data.prompt",), page="column `prompt`"),
    Key("", ("data.completion",), page="column `completion`"),
    Key("", ("data.label",), page="KTO: column `label`"),
    Key("", ("data.answer",), page="a column, as an argument of the reward function"),
    Key("", ("data.chosen",), page="column `chosen`"),
    Key("", ("data.rejected",), page="column `rejected`"),
    Key("", ("reward_model.margin",), page="column `margin`"),
    Key("shuffle_dataset", ("data.shuffle",)),
    Key("", ("reward.type",), Lookup({"accuracy_reward": "math"}), page="`trl.rewards.accuracy_reward`"),
    Key("", ("reward.function",), page="the trainer's `reward_funcs`"),
    Key("reward_funcs", ("reward.type",), values.rewards, page="-"),
    Key("reward_weights", ("reward.parts",), values.weights, page="several `reward_funcs`, with `reward_weights`"),
    Key("reward_model_name_or_path", ("reward_model.path",), model_folder, page="-"),
    Key("missing_eos_penalty", ("ppo.truncation_penalty",), optional(), page="PPO: `missing_eos_penalty`"),
    Key("mask_truncated_completions", ("ppo.overlong_filtering",)),
    Key("max_completion_length", ("sampling.max_tokens",), values.length, default=512),
    Key("response_length", ("sampling.max_tokens",), page="PPO: `response_length`"),
    Key("max_new_tokens", ("sampling.max_tokens",), page="-"),
    Key("max_prompt_length", ("data.max_prompt_tokens",), page="-"),
    Key("temperature", ("sampling.temperature",), values.temperature),
    Key("top_p", ("sampling.top_p",)),
    Key("top_k", ("sampling.top_k",), tokens_left),
    Key("min_p", ("sampling.min_p",), optional()),
    Key("repetition_penalty", ("sampling.repetition_penalty",)),
    Key("chat_template_kwargs", ("data.template_args",), optional(off=(None, {})), page="`chat_template_kwargs`"),
    Key("chat_template_kwargs.*", ("data.template_args",), collect("chat_template_kwargs."), page="-"),
    Key("num_generations_eval", ("validation_sampling.num_samples",), optional()),
    Key("generation_batch_size", ("ppo.num_prompts_per_step",), steps.convert_generated, "in responses"),
    Key("steps_per_generation", ("ppo.num_prompts_per_step",), steps.convert_generated, page="-"),
    Key("num_generations", ("ppo.num_generations",)),
    Key("per_device_train_batch_size", BATCHES, steps.batch, "of one process",
        "a batch size counts rows or responses, over all ranks", default=8, page=SIZE),
    Key("gradient_accumulation_steps", BATCHES, steps.batch,
        differs="a batch size counts rows or responses, over all ranks", page="-"),
    Key("num_mini_batches", ("ppo.global_batch_size",), steps.batch,
        differs="there a minibatch is an optimizer step where there are more of them than gradient_accumulation_steps",
        page="-"),
    Key("num_iterations", ("ppo.ppo_epochs",), steps.iterations),
    Key("num_ppo_epochs", ("ppo.ppo_epochs",), page="PPO: `num_ppo_epochs`"),
    Key("epsilon", ("ppo.clip",), values.clip),
    Key("cliprange", ("ppo.clip",), page="PPO: `cliprange`"),
    Key("epsilon_high", ("ppo.clip_high",), values.clip_high, "with `loss_type=cispo` less 1"),
    Key("delta", ("ppo.dual_clip",), optional()),
    Key("entropy_coef", ("ppo.entropy_coef",), optional(off=(None, 0, 0.0))),
    Key("normalize_advantages", ("ppo.whiten_advantages",), page="RLOO: `normalize_advantages`"),
    Key("gamma", ("ppo.gamma",), page="PPO: `gamma`"),
    Key("lam", ("ppo.gae_lambda",), page="PPO: `lam`"),
    Key("cliprange_value", ("ppo.value_clip",), distance, page="PPO: `cliprange_value`"),
    Key("", ("grpo.baseline",), Lookup({"GRPOTrainer": "mean"}), page="`GRPOTrainer`"),
    Key("", ("grpo.baseline",), Lookup({"RLOOTrainer": "leave_one_out"}), page="`RLOOTrainer`"),
    Key("scale_rewards", ("grpo.scale_rewards",), Lookup(values.SCALES), page="`scale_rewards`"),
    Key("loss_type", ("grpo.loss_mean", "grpo.loss", "dpo.preference_loss", "online_dpo.preference_loss",
        "kto.max_tokens", "simpo.max_tokens", "sft.max_tokens"), _loss, page="-"),
    Key("", ("grpo.loss_mean", "grpo.loss"), Lookup({"loss_type=dapo": "tokens", "loss_type=grpo": "responses",
        "loss_type=dr_grpo": "constant", "loss_type=cispo": "cispo"}), page="="),
    Key("", ("dpo.preference_loss",), page="`loss_type`, where `sigmoid` is our `dpo`"),
    Key("importance_sampling_level", ("grpo.importance_sampling_level",), Lookup({"token": "token",
        "sequence": "sequence"})),
    Key("beta", ("dpo.ref_policy_kl_penalty", "kto.ref_policy_kl_penalty", "online_dpo.ref_policy_kl_penalty",
        "simpo.beta", "orpo.odds_ratio_weight", "ppo.kl.coef", "distill.mixed_kl_weight"), _beta,
        page="`beta`"),
    Key("simpo_gamma", ("simpo.margin",), page="CPO: `simpo_gamma`"),
    Key("cpo_alpha", ("simpo.sft_loss_weight",), differs="the likelihood of a chosen answer is a mean over its own "
        "tokens, then over pairs", page="CPO: `cpo_alpha`"),
    Key("desirable_weight", ("kto.desirable_weight",)),
    Key("undesirable_weight", ("kto.undesirable_weight",)),
    Key("", ("distill.kl_type",), page="`beta`: 0 is our `forward`, 1 our `reverse`, between them `jsd`"),
    Key("kl_coef", ("ppo.kl.coef",), _kl, page="PPO: `kl_coef`"),
    Key("vllm_importance_sampling_mode", ("ppo.correction.kind",), values.with_vllm(values.correction),
        default="sequence_mask", page="-"),
    Key("vllm_importance_sampling_correction", ("ppo.correction.kind",), values.with_vllm(lambda value, config:
        nothing("no correction" if value is False else "vllm_importance_sampling_mode says which")), page="-"),
    Key("", ("ppo.correction.kind",), Lookup({"token_truncate": "token_tis", "sequence_truncate": "sequence_tis",
        "token_mask": "icepop"}), page="=vllm_importance_sampling_mode"),
    Key("vllm_importance_sampling_clip_max", ("ppo.correction.high",), values.with_vllm(values.correction_bound),
        default=3.0),
    Key("vllm_importance_sampling_cap", ("ppo.correction.high",),
        values.with_vllm(optional(values.correction_bound)), page="-"),
    Key("vllm_importance_sampling_clip_min", ("ppo.correction.low",), values.with_vllm(values.correction_low)),
    Key("max_length", ("sft.max_tokens", "dpo.max_tokens", "reward_model.max_tokens", "kto.max_tokens",
        "simpo.max_tokens", "orpo.max_tokens"), values.length,
        default=1024),
    Key("max_seq_length", ("sft.max_tokens",), values.length, page="-"),
    Key("loss_weights", ("dpo.preference_loss_weight",), convert_weights),
    Key("", ("dpo.sft_loss_weight",), page="`loss_weights`, with `sft` in `loss_type`"),
    Key("center_rewards_coefficient", ("reward_model.center_rewards_coefficient",), optional()),
    Key("teacher_model_name_or_path", ("teachers",), teacher),
    Key("lmbda", ("distill.on_policy",), lambda value, config:
        value == 1 if value in (0, 1) else refuse("a share of the batches; all or none are on-policy here"),
        page="always; of `GKDConfig`: `lmbda`, a share"),
    Key("learning_rate", ("policy.lr",), steps.of_critic_too(number, "lr")),
    Key("adam_beta1", ("policy.betas",), steps.of_critic_too(values.betas, "betas")),
    Key("adam_beta2", ("policy.betas",), steps.of_critic_too(values.betas, "betas")),
    Key("adam_epsilon", ("policy.eps",), steps.of_critic_too(steps.of_gradient(number), "eps")),
    Key("weight_decay", ("policy.weight_decay",), steps.of_critic_too(number, "weight_decay")),
    Key("max_grad_norm", ("policy.max_grad_norm",), steps.of_gradient(bound)),
    Key("warmup_steps", ("policy.schedule.warmup_steps",),
        steps.of_critic_too(steps.warmup, "schedule.warmup_steps")),
    Key("warmup_ratio", ("policy.schedule.warmup_steps",),
        steps.of_critic_too(share_of_steps(steps.count_scheduled), "schedule.warmup_steps"), "a share"),
    Key("lr_scheduler_type", ("policy.schedule.decay",), steps.of_critic_too(steps.decay, "schedule.decay"),
        default="linear"),
    Key("lr_scheduler_kwargs", ("policy.schedule.final_fraction",),
        steps.of_critic_too(steps.final, "schedule.final_fraction"), page="-"),
    Key("lr_scheduler_kwargs.min_lr_rate", ("policy.schedule.final_fraction",), steps.of_critic_too(
        lambda value, config: steps.final({"min_lr_rate": value}, config), "schedule.final_fraction"), page="-"),
    Key("use_peft", ("learner.lora.rank",), values.lora, page="-"),
    Key("lora_r", ("learner.lora.rank",), values.with_lora(optional())),
    Key("lora_alpha", ("learner.lora.alpha",), values.with_lora(optional())),
    Key("lora_target_modules", ("learner.lora.target_modules",), values.with_lora(values.modules)),
    Key("", ("learner.micro_batch_tokens",), page="`per_device_train_batch_size`, in rows"),
    Key("", ("learner.parallel.dp",), page="processes that are launched"),
    Key("gradient_checkpointing", ("learner.activation_checkpointing",), default=True),
    Key("torch_compile", ("learner.compile",)),
    Key("use_vllm", ("sampler.backend",), Lookup({True: "vllm", False: "torch"}), page="`use_vllm`"),
    Key("vllm_tensor_parallel_size", ("sampler.tensor_parallel",), values.with_vllm(optional())),
    Key("vllm_max_model_length", ("sampler.vllm.max_model_len",), values.with_vllm(optional())),
    Key("vllm_max_model_len", ("sampler.vllm.max_model_len",), values.with_vllm(optional()), page="-"),
    Key("vllm_gpu_memory_utilization", ("sampler.kv_cache_gib",), lambda value, config: refuse(say.SHARE), "a share"),
    Key("vllm_enable_sleep_mode", ("cluster.offload_idle",), values.with_vllm(optional())),
    Key("vllm_mode", ("cluster.placement",), values.with_vllm(Lookup({"colocate": "colocated", "server": "separate"})),
        page="`vllm_mode`"),
    Key("max_steps", ("run.max_steps",), steps.max_steps, note="in optimizer steps"),
    Key("num_train_epochs", ("run.max_epochs",), steps.max_epochs, default=3),
    Key("total_episodes", ("run.max_steps",), lambda value, config:
        int(steps.count_steps(config)) if isinstance(value, int) else nothing("num_train_epochs decides"), page="-"),
    Key("eval_steps", ("run.validate_every",), steps.validate_every),
    Key("eval_strategy", ("run.validate_every",), values.strategy, page="-"),
    Key("dataset_test_split", ("data.validation",), values.validation_split, page="-"),
    Key("save_steps", ("run.save_every",), steps.save_every),
    Key("save_total_limit", ("run.keep",), optional()),
    Key("metric_for_best_model", ("run.best.metric",), values.best),
    Key("greater_is_better", ("run.best.mode",), lambda value, config: nothing("of metric_for_best_model")),
    Key("output_dir", ("run.folder",), lambda value, config: str(value)),
    Key("log_completions", ("run.num_logged_samples",), lambda value, config:
        nothing("samples.jsonl has them") if value is True else 0),
    Key("num_completions_to_print", ("run.num_logged_samples",), optional()),
    Key("report_to", ("trackers.tensorboard", "trackers.wandb"), values.tracker, page="`report_to`"),
    Key("run_name", ("trackers.wandb.name",), values.run_name),
    Key("fp16", ("learner.dtype",), lambda value, config: nothing("read with bf16"), page="-"),
    Key("label_smoothing", ("dpo.label_smoothing",), convert_label_smoothing),
    Key("optim", ("policy.name",), steps.optimizer),
)  # fmt: skip

GATES = (
    Gate(("vllm_*",), lambda config: config.says("use_vllm"), "use_vllm is false"),
    Gate(("lora_*", "use_dora", "use_rslora"), lambda config: config.says("use_peft"), "use_peft is false"),
    Gate(("ref_model_mixup_alpha", "ref_model_sync_steps"), lambda config: config.says("sync_ref_model"),
         "sync_ref_model is false"),
    Gate(("adam_*",), has_adamw, "the optimizer is not AdamW"),
    Gate(("num_train_epochs",), lambda config: steps.count_steps(config) <= 0, "the run ends after its steps"),
    Gate(("eval_steps",), lambda config: config.get("eval_strategy") == "steps", "eval_strategy is not steps"),
    Gate(("save_steps",), lambda config: config.get("save_strategy") in (None, "steps"), "save_strategy is not steps"),
    Gate(("bnb_4bit_*", "use_bnb_nested_quant"), lambda config: config.says("load_in_4bit"), "load_in_4bit is false"),
)  # fmt: skip

DEFAULTS: dict[str, dict[str, Json]] = {
    "grpo": {"learning_rate": 1e-6, "temperature": 1.0, "num_generations": 8},
    "ppo": {"learning_rate": 3e-6, "kl_coef": 0.05, "response_length": 53, "num_ppo_epochs": 4, "temperature": 0.7},
    "sft": {"learning_rate": 2e-5}, "dpo": {"learning_rate": 1e-6, "beta": 0.1},
    "reward_model": {"learning_rate": 1e-4},
    "kto": {"learning_rate": 1e-6, "beta": 0.1}, "orpo": {"learning_rate": 1e-6, "beta": 0.1},
    "simpo": {"learning_rate": 1e-6, "beta": 0.1, "simpo_gamma": 0.5, "cpo_alpha": 1.0},
    "online_dpo": {"learning_rate": 5e-7, "beta": 0.1, "max_new_tokens": 64, "temperature": 0.9},
    "distill": {"beta": 0.5, "max_new_tokens": 128, "lmbda": 0.5, "temperature": 0.9},
}  # fmt: skip
OF_RLOO: dict[str, Json] = {
    **DEFAULTS["grpo"], "num_generations": 2, "beta": 0.05, "max_grad_norm": 1.0, "adam_epsilon": 1e-8
}  # fmt: skip


def _defaults(config: Config) -> Mapping[str, Json]:
    return OF_RLOO if steps.is_rloo(config) and config.algorithm == "grpo" else DEFAULTS.get(config.algorithm, {})


LIBRARY = Library("TRL", "trl", "f2cd577, July 2026", MAPPED + OTHERS, _algorithm, GATES, _defaults, _always, _remark)
