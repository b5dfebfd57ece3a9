"""What NeMo RL's trainers do beyond single keys: estimators, runs, templates, lengths, penalties, defaults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conversions import Convert

from lockstep import yaml12
from lockstep.config.foreign_recipe import describe_changes, validate
from lockstep.foreign.convert import Converted, list_lines
from lockstep.foreign.words import Kind, flatten

GRPO = """
grpo: {num_prompts_per_step: 32, num_generations_per_prompt: 16, max_num_epochs: 1, max_num_steps: 100}
policy:
  model_name: m
  train_global_batch_size: 512
  max_total_sequence_length: 512
  tokenizer: {name: "${policy.model_name}"}
  optimizer: {name: torch.optim.AdamW, kwargs: {lr: 1.0e-6}}
  generation: {backend: vllm, max_new_tokens: 512, top_k: null, val_top_k: "${.top_k}"}
data: {max_input_seq_length: 512, train: {dataset_name: OpenMathInstruct-2}, default: {env_name: math}}
"""
PPO = GRPO.replace("grpo:", "ppo:").replace("_steps: 100}", "_steps: 100, ppo_epochs: 1}") + """
value: {model_name: m, max_grad_norm: 1.0, optimizer: {name: torch.optim.AdamW, kwargs: {lr: 1.0e-5, eps: 1.0e-8}}}
"""  # fmt: skip
SFT = """
policy: {model_name: m, train_global_batch_size: 32, max_total_sequence_length: 512}
data: {train: {dataset_name: ResponseDataset, data_path: a.jsonl}}
sft.seed: 1
"""
WARMUP = "policy.scheduler: [{name: a.LinearLR, kwargs: {start_factor: 0.1, total_iters: 50}}, {milestones: [50]}]"
SHAPED = "ppo.reward_shaping: {enabled: true, overlong_buffer_length: 2048, overlong_buffer_penalty: 1"
OTHERS = {"grpo.baseline": "leave_one_out", "grpo.scale_rewards": "others"}

OPTIONS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "the deviation of the others, by default": (GRPO, "", OTHERS),
    "that of the group": (
        GRPO,
        "grpo.adv_estimator: {use_leave_one_out_baseline: false, normalize_rewards: true}",
        {"grpo.baseline": "mean", "grpo.scale_rewards": "group"},
    ),
    "keys above the estimator that nothing reads": (GRPO, "grpo.normalize_rewards: false", OTHERS),
    "REINFORCE++ reads neither": (
        GRPO,
        "grpo.adv_estimator: {name: reinforce_plus_plus, use_leave_one_out_baseline: true, minus_baseline: false}",
        {"grpo.baseline": "none", "grpo.scale_rewards": "none", "grpo.whiten_advantages": True},
    ),
    "steps end the run": (GRPO, "", {"run.max_steps": 100, "run.max_epochs": None}),
    "no steps that someone chose": (
        GRPO,
        "grpo: {max_num_steps: 1000000, num_prompts_per_step: 8, num_generations_per_prompt: 64}",
        {"run.max_steps": None, "run.max_epochs": 1},
    ),
    "dynamic sampling takes more rows": (
        GRPO,
        "grpo: {use_dynamic_sampling: true, use_leave_one_out_baseline: false, batch_multiplier: 3, "
        "num_prompts_per_step: 512, max_num_steps: 10000}",
        {"run.max_steps": None, "run.max_epochs": 1, "grpo.dynamic_sampling.max_batches": 30},
    ),
    "rows that they learn": (
        GRPO,
        "policy: {max_total_sequence_length: 4096, generation.max_new_tokens: 3072}\n"
        "data.max_input_seq_length: 2048",
        {"data.max_prompt_tokens": 2048, "sampling.max_tokens": 3072},
    ),
    "arguments of the template": (
        GRPO, "policy.tokenizer.chat_template_kwargs: {a: 1, b: c}", {"data.template_args": {"a": 1, "b": "c"}}
    ),
    "passes end it": (GRPO, "grpo.max_num_steps: 1000000", {"run.max_steps": None, "run.max_epochs": 1}),
    "the fields of a set, and the chat template": (
        GRPO,
        "",
        {"data.prompt": "{problem}", "data.answer": "{expected_answer}", "data.chat": True},
    ),
    "fields that the set does not read": (GRPO, "data.train.input_key: other", {"data.prompt": "{problem}"}),
    "a set of messages": (
        GRPO,
        "data.train.dataset_name: DAPOMath17K",
        {"data.messages": "prompt", "data.answer": "{reward_model.ground_truth}", "data.chat": None},
    ),
    "a template that leaves texts as they are": (GRPO, "policy.tokenizer.chat_template: null", {"data.chat": None}),
    "null, by another key": (GRPO, "", {"validation_sampling.top_k": 0}),
    "a KL by default": (GRPO, "", {"grpo.kl.coef": 0.01}),
    "a KL that nothing reads": (GRPO, "loss_fn.use_kl_in_reward: true", {"grpo.kl.coef": None}),
    "k1 in the reward": (
        PPO,
        "loss_fn: {use_kl_in_reward: true, reference_policy_kl_type: k1}",
        {"ppo.kl.coef": 0.01, "ppo.kl.placement": "reward"},
    ),
    "weights without a bound": (
        GRPO,
        "loss_fn.use_importance_sampling_correction: true",
        {"grpo.correction.kind": "token_tis", "grpo.correction.high": 1e30},
    ),
    "weights of responses": (
        GRPO,
        "loss_fn: {use_importance_sampling_correction: true, truncated_importance_sampling_type: tis, "
        "truncated_importance_sampling_ratio: 2.0, sequence_level_importance_ratios: true, token_level_loss: false}",
        {"grpo.correction.kind": "sequence_tis", "grpo.correction.high": 2.0, "grpo.loss_mean": "responses"},
    ),
    "CISPO without a lower bound": (
        GRPO,
        "loss_fn: {use_cispo: true, ratio_clip_min: 1.0, ratio_clip_max: 5.0}\npolicy.train_global_batch_size: 256",
        {"grpo.loss": "cispo", "grpo.clip": None, "grpo.clip_high": 5.0},
    ),
    "a penalty on the same line": (
        PPO,
        SHAPED + ", max_response_length: 14336}\npolicy.generation.max_new_tokens: 16384",
        {"ppo.overlong_penalty.buffer": 4096, "ppo.overlong_penalty.penalty": 2.0},
    ),
    "no penalty beside a factor": (
        PPO,
        SHAPED + ", max_response_length: 512, stop_properly_penalty_coef: 1.0}",
        {"ppo.overlong_penalty.buffer": None, "ppo.overlong_penalty.penalty": None},
    ),
    "a critic's loss with a factor": (
        PPO, "value_loss_fn.scale: 0.4", {"critic.max_grad_norm": 2.5, "critic.eps": 2.5e-8, "critic.lr": 1e-5}
    ),
    "their scheduler steps once a pass": (
        PPO,
        WARMUP + "\nppo.ppo_epochs: 4\npolicy.train_global_batch_size: 256",
        {"policy.schedule.warmup_steps": 100, "critic.schedule.warmup_steps": None},
    ),
    "a cosine behind the warmup": (
        GRPO,
        "policy.scheduler: [{name: a.LinearLR, kwargs: {total_iters: 10}}, {name: a.CosineAnnealingLR, kwargs: "
        "{T_max: 90, eta_min: 1.0e-7}}, {milestones: [10]}]",
        {"policy.schedule.decay": "cosine", "policy.schedule.decay_steps": 100, "policy.schedule.final_fraction": 0.1},
    ),
    "a critic that Megatron trains": (
        PPO,
        "value.megatron_cfg: {enabled: true, optimizer: {lr: 2.0e-6, adam_eps: 1.0e-8}}",
        {"critic.lr": 2e-6},
    ),
    "defaults that a config does not say": (
        PPO.replace(", ppo_epochs: 1", ""),
        "",
        {"ppo.ppo_epochs": 4, "ppo.gae_lambda": 0.95, "policy.weight_decay": 0.01, "critic.weight_decay": 0.01},
    ),
    "SFT's fields and steps": (
        SFT,
        "",
        {"run.max_steps": 60, "data.prompt": "{input}", "data.completion": "{output}", "data.chat": True},
    ),
    "SFT's own field": (SFT, "data.train.output_key: solution", {"data.completion": "{solution}"}),
}  # fmt: skip


CHANGES: dict[str, tuple[str, str, str, str]] = {
    "bounds on advantages": (GRPO, "grpo.advantage_clip_low: -2.0", "grpo.advantage_clip_low", "have no bounds"),
    "a penalty for forms": (
        GRPO, "reward_penalties.penalize_empty_final_answer: true", "reward_penalties.penal", "have no penalties"
    ),
    "right answers are learned besides": (
        PPO, "loss_fn.positive_example_nll_weight: 0.1", "loss_fn.positive_example_nll_weight", "as in SFT"
    ),
    "a lower bound of TIS": (
        GRPO,
        "loss_fn: {use_importance_sampling_correction: true, truncated_importance_sampling_type: tis, "
        "truncated_importance_sampling_ratio: 2.0, truncated_importance_sampling_ratio_min: 0.5}",
        "ratio_min = 0.5", "raises smaller weights to 0.5",
    ),
    "a lower bound of CISPO": (
        GRPO, "loss_fn.use_cispo: true\npolicy.train_global_batch_size: 256", "ratio_clip_min", "also below, at 1 − 0.2"
    ),
    "no ratio in several optimizer steps": (
        GRPO, "loss_fn.disable_ppo_ratio: true\npolicy.train_global_batch_size: 256", "disable_ppo_ratio", "is clipped"
    ),
    "k2 in the loss": (GRPO, "loss_fn.reference_policy_kl_type: k2", "policy_kl_penalty", "does not have the"),
    "k3 in the reward": (PPO, "loss_fn.use_kl_in_reward: true", "policy_kl_penalty", "another penalty than k1"),
    "the KL of REINFORCE++ in the reward": (
        GRPO, "grpo.adv_estimator.name: reinforce_plus_plus\nloss_fn.use_kl_in_reward: true", "kl_penalty", "its own KL"
    ),
    "several rewards": (GRPO, "grpo.adv_estimator.name: gdpo", "adv_estimator.name = gdpo", "no counterpart of gdpo"),
    "responses that leave": (GRPO, "grpo.use_dynamic_sampling: true", "dynamic_sampling", "as the only right one does"),
    "a factor of truncated rewards": (
        PPO, SHAPED + ", max_response_length: 512, stop_properly_penalty_coef: 0.0}", "stop_properly", "is multiplied"
    ),
    "a reward that compares texts": (
        GRPO, "env.math.math_verify_impl: dapo_math_verify", "math_verify_impl", "in the last 300 characters"
    ),
    "a prompt of a file": (GRPO, "data.default.prompt_file: cot.txt", "data.default.prompt_file", "into data.prompt"),
    "a template of its own": (SFT, "policy.tokenizer.chat_template: '{{ x }}'", "chat_template", "chat_template.jinja"),
    "a tokenizer of another model": (GRPO, "policy.tokenizer.name: other", "tokenizer.name", "of another folder"),
    "answers before the last": (SFT, "data.train.dataset_name: tulu3_sft_mixture", "unmask_final", "the last one here"),
    "a loss across tokenizers": (
        "distillation.seed: 1\nteachers: [{model_name: m}]\nloss_fn: {ce_loss_scale: 0.1, kd_loss_mode: sum}\n",
        "", "loss_fn.ce_loss_scale = 0.1", "one tokenizer",
    ),
    "a critic with steps of its own": (
        PPO, "value.train_global_batch_size: 128", "value.train_global_batch_size = 128", "as many as the policy here"
    ),
    "responses behind long prompts": (
        GRPO, "policy: {max_total_sequence_length: 4096, generation.max_new_tokens: 3072}\n"
        "data.max_input_seq_length: 2048", "data.max_input_seq_length = 2048", "= 4096 tokens together there"
    ),
    "adapters of Megatron": (
        GRPO, "policy.megatron_cfg: {enabled: true, peft: {enabled: true}}", "peft.enabled", "of the torch backend"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_what_trains_something_else(name: str, convert: Convert) -> None:
    base, more, key, reason = CHANGES[name]
    converted = convert("mine.yaml", lay(base, more))
    assert key in describe_changes(converted, validate(converted))
    assert reason in table(converted)


NOTES = {
    "5% of the rows are validated on there": (GRPO, ""),
    "together there; here a response may have sampling.max_tokens = 512": (GRPO, ""),
    "with fewer than 8,000,000 rows max_num_epochs ends the run there; where": (
        GRPO,
        "grpo: {max_num_steps: 1000000, num_prompts_per_step: 8, num_generations_per_prompt: 64}",
    ),
    "begins at 0.1 of the learning rate there, and at 1/50 of it": (GRPO, WARMUP),
    "rows of HelpSteer3 are made by a class of theirs": ("dpo.seed: 1\ndata.train.dataset_name: HelpSteer3\n", ""),
}


@pytest.mark.parametrize("note", NOTES)
def test_what_no_option_says_is_a_note(note: str, convert: Convert) -> None:
    assert note in " ".join(convert("mine.yaml", lay(*NOTES[note])).remarks)


def test_one_optimizer_step_has_the_gradient_without_a_ratio(convert: Convert) -> None:
    converted = convert("mine.yaml", lay(GRPO, "loss_fn: {disable_ppo_ratio: true, use_cispo: true}"))
    assert not describe_changes(converted, validate(converted))


def test_a_section_may_replace_that_of_its_base(tmp_path: Path, convert: Convert) -> None:
    (tmp_path / "base.yaml").write_text(
        lay(GRPO, "").replace("data.", "") + "data: {default: {prompt_file: cot.txt}}\n"
    )
    own = "data: {_override_: true, max_input_seq_length: 64, train: {dataset_name: GSM8K}}\n"
    converted = convert("mine.yaml", f"defaults: base.yaml\n{own}")
    assert [converted.options[f"data.{key}"] for key in ("prompt", "max_prompt_tokens")] == ["{question}", 64]
    assert not converted.list_kind(Kind.LOST)


def test_ppo_does_not_call_its_dynamic_sampling(convert: Convert) -> None:
    found = convert("mine.yaml", lay(PPO, "ppo.use_dynamic_sampling: true"))
    assert "ppo.use_dynamic_sampling" in [entry.theirs for entry in found.list_kind(Kind.IGNORED)]


def test_many_ignored_keys_of_a_section_are_counted(convert: Convert) -> None:
    names = "lr weight_decay clip_grad bf16 fp16 params_dtype sgd_momentum adam_eps adam_beta1"
    more = "".join(f"policy.megatron_cfg.optimizer.{name}: 1\n" for name in names.split())
    converted = convert("mine.yaml", lay(GRPO, more + "policy.megatron_cfg.enabled: false"))
    assert "  policy.megatron_cfg.optimizer.* (9 keys): policy.megatron_cfg.enabled is false" in table(converted)


def test_a_set_of_theirs_is_a_placeholder(convert: Convert) -> None:
    assert "placeholder: put OpenMathInstruct-2 there" in convert("mine.yaml", lay(GRPO, "")).notes["data.train"]


def lay(base: str, more: str) -> str:
    """A config with other values of some keys."""
    flat = dict(flatten(yaml12.parse(base))) | dict(flatten(yaml12.parse(more or "{}")))
    return "".join(f"{key}: {json.dumps(value)}\n" for key, value in flat.items())


def table(converted: Converted) -> str:
    """What the command says of each key."""
    return "\n".join(list_lines(converted))


@pytest.mark.parametrize("name", OPTIONS)
def test_options(name: str, convert: Convert) -> None:
    base, more, expected = OPTIONS[name]
    converted = convert("mine.yaml", lay(base, more))
    assert {key: converted.options.get(key) for key in expected} == expected
    assert not name.startswith("steps") or "with fewer than 3,200 rows, say run.max_epochs=1" in table(converted)
