"""What OpenRLHF's programs do with a flag, or without it: a row for each way to be silently something else."""

from __future__ import annotations

from typing import Any

import pytest
from conversions import Convert

from lockstep.foreign.shell import find_command
from lockstep.foreign.words import Kind

A = "algo.advantage."
RL = "python -m openrlhf.cli.train_ppo_ray --actor.model_name_or_path m --data.prompt_dataset a.jsonl"
BOUNDED = f"{RL} --rollout.max_new_tokens 128 --data.max_len 512"
PPO = f"{BOUNDED} --reward.model_name_or_path r"
GRPO = f"{BOUNDED} --reward.remote_url https://a --rollout.n_samples_per_prompt 8 --algo.kl.init_coef 0 --{A}estimator"
LEARNED = f"{BOUNDED} --reward.model_name_or_path r --rollout.n_samples_per_prompt 8 --algo.kl.use_loss "
LEARNED += f"--algo.kl.estimator k2 --{A}estimator"
GROUP, BASELINE = f"{LEARNED} group_norm", f"{LEARNED} reinforce_baseline"
IN_REWARD = BASELINE.replace("--algo.kl.use_loss --algo.kl.estimator k2 ", "")
TIS = f"--{A}is_correction_enable"
SFT = "deepspeed --module openrlhf.cli.train_sft --model.model_name_or_path m --data.dataset a.jsonl"
SFT += " --data.input_key question --data.output_key answer"
DPO = "deepspeed --module openrlhf.cli.train_dpo --model.model_name_or_path m --data.dataset a.jsonl"
RM = "deepspeed --module openrlhf.cli.train_rm --model.model_name_or_path m --data.dataset a.jsonl"
TEN, ONE = [-10, 10], [-1, 1]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (PPO, {"critic_model.path": "models/r", "ppo.reward_scaling.source": TEN, "ppo.reward_scaling.target": TEN}),
        (f"{PPO} --critic.model_name_or_path ./c", {"critic_model.path": "./c"}),
        (f"{RL} --reward.remote_url f.py", {"critic_model.path": None, "data.answer": "", "data.prompt": "{input}"}),
        (f"{PPO} --reward.clip_range -1 1", {"ppo.reward_scaling.source": ONE}),
        (f"{GROUP} --reward.clip_range -10 10", {"grpo.reward_scaling.source": None, "grpo.scale_rewards": "group"}),
        (f"{GROUP} --{A}no_std_norm", {"grpo.scale_rewards": "group"}),
        (BASELINE, {"grpo.whiten_advantages": True, "grpo.scale_rewards": "none", "grpo.baseline": "mean"}),
        (f"{BASELINE} --{A}no_std_norm", {"grpo.whiten_advantages": False, "grpo.scale_rewards": "none"}),
        (f"{GROUP} --actor.policy_loss_type gspo {TIS}",
         {"grpo.importance_sampling_level": "sequence", "grpo.loss_mean": "responses", "grpo.correction.kind": None}),
        (f"{PPO} {TIS}", {"ppo.correction.kind": "token_tis", "ppo.correction.high": 5.0, "ppo.correction.low": None}),
        (f"{PPO} {TIS} --{A}is_correction_type icepop", {"ppo.correction.kind": "icepop", "ppo.correction.low": 0.5}),
        (f"{PPO} --algo.kl.target 6 --rollout.batch_size 512 --rollout.n_samples_per_prompt 2",
         {"ppo.kl.adaptive.target": 6, "ppo.kl.adaptive.gain": 0.1024}),
        (PPO, {"data.max_prompt_tokens": 384, "data.overlong_prompts": "truncate", "sampling.max_tokens": 128}),
        (f"{PPO} --critic.freezing_steps 5", {"ppo.critic_warmup_steps": 6}),
        (f"{PPO} --actor.max_norm 0", {"policy.max_grad_norm": None}),
        (f"{PPO} --data.max_samples 4096", {"data.limit_train_batches": 4}),
        (f"{PPO} --eval.dataset ./b.jsonl,c/d@e", {"data.validation": ["./b.jsonl", "data/d"]}),
        (f"{PPO} --train.agent_func_path a.py", {"reward.type": None, "environment.max_tokens": 128}),
        (SFT, {"data.prompt": "User: {question}\nAssistant: ", "data.completion": "{answer}"}),
        (f"{SFT} --data.input_template 'Q: {{}}\\nA: '", {"data.prompt": "Q: {question}\\nA: "}),  # as it stands there
        (f"{SFT} --data.input_template $'Q: {{}}\\nA: '", {"data.prompt": "Q: {question}\nA: "}),
        (f"{SFT} --data.apply_chat_template", {"data.messages": "question", "data.prompt": None}),
        (f"{DPO} --model.nll_loss_coef 0.2", {"dpo.sft_loss_weight": 0.2, "dpo.sft_average_log_probs": True}),
        (f"{DPO} --data.apply_chat_template", {"data.messages": "chosen", "data.chat": None}),
        (f"{DPO} --data.prompt_key q --data.input_template 'Q: {{}}'", {"data.prompt": "Q: {q}"}),
        (DPO, {"data.prompt": ""}),
        (f"{DPO} --ds.param_dtype fp16", {"learner.dtype": "fp16"}),
    ],
)  # fmt: skip
def test_what_its_programs_mean(command: str, expected: dict[str, Any], convert: Convert) -> None:
    found = convert("run.sh", command).options
    assert {key: found.get(key) for key in expected} == expected


AGENT = f"{BASELINE} --train.agent_func_path a.py"
THRESHOLD = f"{A}is_correction_threshold (their default) = [0.5, 5.0]"


@pytest.mark.parametrize(
    ("command", "changes"),
    [
        (PPO, []),
        (GROUP, []),
        (BASELINE, []),
        (f"{GRPO} rloo --reward.clip_range -1 1", ["reward.remote_url = https://a", "reward.clip_range = [-1, 1]"]),
        (f"{PPO} --reward.clip_range -1 1", []),
        (f"{PPO} --reward.clip_range -1 1 --reward.overlong_buffer_len 8", ["reward.clip_range = [-1, 1]"]),
        (f"{PPO} --reward.normalize_enable", ["reward.normalize_enable = True"]),
        (f"{PPO} --reward.stop_properly_penalty_coef 0.0", ["reward.stop_properly_penalty_coef = 0.0"]),
        (f"{RL} --reward.remote_url a/f.py", ["reward.remote_url = a/f.py", "data.max_len (their default) = 2048"]),
        (f"{PPO} {TIS}", [THRESHOLD]),
        (f"{PPO} {TIS} --{A}is_correction_threshold 0 5", []),
        (f"{PPO} {TIS} --{A}is_correction_type icepop", []),
        (f"{GROUP} {TIS} --{A}is_correction_type seq-mask-tis",
         [f"{A}is_correction_enable = True", f"{A}is_correction_type = seq-mask-tis"]),
        (f"{GROUP} {TIS} --actor.policy_loss_type gspo",
         [f"{A}is_correction_enable = True", "actor.policy_loss_type = gspo"]),
        (f"{GRPO} group_norm --actor.policy_loss_type gspo", ["reward.remote_url = https://a"]),
        (f"{PPO} --actor.policy_loss_type gspo", ["actor.policy_loss_type = gspo"]),
        (f"{BASELINE} --{A}no_std_norm", [f"{A}no_std_norm = True"]),
        (f"{PPO} --{A}no_std_norm", [f"{A}no_std_norm = True"]),
        (f"{GROUP} --{A}no_std_norm", []),
        (f"{LEARNED} reinforce --{A}gamma 0.9", [f"{A}gamma = 0.9"]),
        (f"{GROUP} --{A}gamma 0.9", []),
        (IN_REWARD, ["algo.kl.use_loss (their default) = False"]),
        (f"{IN_REWARD} --algo.kl.init_coef 0", []),
        (f"{PPO} --algo.kl.use_loss", ["algo.kl.use_loss = True"]),
        (f"{PPO} --algo.kl.use_loss --algo.kl.estimator k3", ["algo.kl.estimator = k3"]),
        (f"{PPO} --algo.kl.estimator k2", ["algo.kl.estimator = k2"]),
        (f"{PPO} --algo.kl.target 6 --rollout.n_samples_per_prompt 16", ["algo.kl.target = 6"]),
        (AGENT, ["train.agent_func_path = a.py"]),
        (f"{GROUP} --algo.dynamic_filtering_enable", []),
        (f"{GROUP} --algo.dynamic_filtering_enable --algo.dynamic_filtering_range 0.1 0.9",
         ["algo.dynamic_filtering_range = [0.1, 0.9]"]),
        (f"{PPO} --actor.optim muon --critic.optim adam", ["actor.optim = muon"]),
        (f"{PPO} --actor.aux_loss_coef 0.01", ["actor.aux_loss_coef = 0.01"]),
        (f"{PPO} --train.enable_ema", ["train.enable_ema = True"]),
        (f"{PPO} --critic.value_clip 0", ["critic.value_clip = 0"]),
        (f"{GROUP} --critic.freezing_steps 3", ["critic.freezing_steps = 3"]),
        (f"{PPO} --rollout.vllm_generate_batch_size 64", ["rollout.vllm_generate_batch_size = 64"]),
        (f"{PPO} --ds.load_in_4bit", ["ds.load_in_4bit = True"]),
        (SFT, []),
        (f"{SFT} --data.input_template $TEMPLATE", ["data.input_template = $TEMPLATE"]),
        (f"{SFT} --model.pretrain_mode_enable", ["model.pretrain_mode_enable = True"]),
        (f"{SFT} --data.multiturn --data.apply_chat_template", ["data.multiturn = True"]),
        (f"{DPO} --ref.model_name_or_path other", ["ref.model_name_or_path = other"]),
        (f"{DPO} --ref.model_name_or_path m", []),
        (f"{RM} --model.margin_loss_enable", ["model.margin_loss_enable = True"]),
        (f"{RM} --model.margin_loss_enable --model.loss_type logexp", []),
    ],
)  # fmt: skip
def test_what_trains_something_else_is_listed(command: str, changes: list[str], convert: Convert) -> None:
    assert list(convert("run.sh", command).list_changes()) == changes


def test_schedules_are_said_with_their_length(convert: Convert) -> None:
    converted = convert("run.sh", f"{PPO} --critic.lr_scheduler constant_with_warmup --train.num_episodes 3")
    said = {entry.theirs: entry.reason for entry in converted.list_kind(Kind.REFUSED) if entry.is_default}
    steps = "STEPS = rows × 1 // 128 × 3"
    decay = "{decay: cosine, decay_steps: STEPS, final_fraction: 0.1}"
    assert said == {
        "actor.lr_scheduler": f"policy.schedule: {decay}, where {steps}",
        "actor.lr_warmup_ratio": f"policy.schedule.warmup_steps is 0.03 × STEPS, rounded up, where {steps}",
        "critic.lr_warmup_ratio": f"critic.schedule.warmup_steps is 0.03 × STEPS, rounded up, where {steps}",
    }
    found = {entry.theirs: entry.kind for entry in convert("run.sh", f"{SFT} --lr_scheduler constant").entries}
    assert "lr_warmup_ratio" not in found, "a constant rate has none there"
    assert "actor.lr_scheduler" not in found, "a flag of another program"


def test_rows_are_counted_or_left_to_cut(convert: Convert) -> None:
    [entry] = [entry for entry in convert("run.sh", f"{PPO} --data.max_samples 100000").entries
               if entry.theirs == "data.max_samples"]  # fmt: skip
    assert (entry.kind, "batches of 1024 rows" in entry.reason) == (Kind.REFUSED, True)


def test_a_text_may_become_a_message_there(convert: Convert) -> None:
    said = convert("run.sh", f"{SFT} --data.apply_chat_template").render_recipe(())
    assert "of a text, say data.prompt='{question}' and data.chat=true" in said
    assert "of a text" not in convert("run.sh", f"{DPO} --data.apply_chat_template").render_recipe(())


def test_the_recipe_itself_says_what_is_to_finish(convert: Convert) -> None:
    recipe = convert("run.sh", f"{PPO} {TIS}").render_recipe(())
    assert "# To finish: algo.advantage.is_correction_threshold: [0.5, 5.0]: weights below 0.5 are raised" in recipe
    assert "User: {} Assistant:" in convert("run.sh", SFT).render_recipe(()), "a comment is one line"


def test_a_command_in_the_text_that_a_shell_is_given_is_read() -> None:
    script = 'lr=5e-7\nsrun -w "$node" bash -c \\\n"pip install ray \\\n&& ray job submit --env=\'{\\"a\\": \\"b\\"}\' '
    script += '-- python3 -m openrlhf.cli.train_ppo_ray \\\n --actor.adam.lr $lr --train.seed 7" &>> log &\n'
    assert find_command(script).read() == {"actor.adam.lr": 5e-7, "train.seed": 7}
