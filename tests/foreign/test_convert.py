"""`lockstep convert`: a config of each library becomes a recipe that loads, and every key is answered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lockstep import yaml12
from lockstep.cli import main
from lockstep.config.foreign_recipe import convert_file, validate
from lockstep.foreign.convert import Converted
from lockstep.foreign.words import Kind

VERL = """
set -x
n=4
prompts=$((16 * 2))
MODEL=${MODEL:-"$HOME/models/mine"}
# data.seed=7 is no argument, but a comment
python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=rloo \\
    data.train_files="['$HOME/a.parquet', '$HOME/b.parquet']" \\
    data.train_batch_size=$prompts data.max_prompt_length=$((prompts * (n + 4))) data.max_response_length=64 \\
    data.return_raw_input_ids=True \\
    actor_rollout_ref.model.path=$MODEL \\
    actor_rollout_ref.actor.ppo_mini_batch_size=16 \\
    actor_rollout_ref.actor.clip_ratio=0.3 \\
    actor_rollout_ref.actor.kl_loss_coef=0.5 \\
    actor_rollout_ref.actor.optim.lr_warmup_steps=10 \\
    actor_rollout_ref.rollout.n=$n \\
    actor_rollout_ref.rollout.temprature=0.7 \\
    actor_rollout_ref.rollout.name=sglang \\
    trainer.n_gpus_per_node=2 trainer.logger='["console","wandb"]' \\
    +trainer.val_before_train=False trainer.total_training_steps=100 "$@" 2>&1 | tee log
"""
NEMO_RL = """
defaults: base.yaml
grpo:
  num_prompts_per_step: 8
  num_generations_per_prompt: 4
  max_num_steps: 50
  normalize_rewards: false
  use_leave_one_out_baseline: true
  reward_shaping: {enabled: false, overlong_buffer_length: 10}
loss_fn: {ratio_clip_min: 0.2, ratio_clip_max: 0.28, reference_policy_kl_penalty: 0.01, use_kl_in_reward: false}
policy:
  train_global_batch_size: ${mul:${grpo.num_prompts_per_step}, 2}
  generation: {backend: vllm, max_new_tokens: 128, temperature: 0.9, top_k: null, val_temperature: "${.temperature}",
    stop_strings: ["</answer>"]}
  tokenizer: {chat_template_kwargs: {enable_thinking: false, style: short}}
"""
NEMO_RL_BASE = """
shared: &precision
  precision: bfloat16
policy:
  <<: *precision
  model_name: Qwen/Qwen3-0.6B
  megatron_cfg: {enabled: false, tensor_model_parallel_size: 4}
  optimizer: {name: torch.optim.AdamW, kwargs: {lr: 3.0e-7, betas: [0.9, 0.98]}}
  scheduler:
  - {name: torch.optim.lr_scheduler.LinearLR, kwargs: {start_factor: 0.1, total_iters: 13}}
  - {name: torch.optim.lr_scheduler.ConstantLR, kwargs: {factor: 1.0}}
  - {milestones: [13]}
data: {max_input_seq_length: 256, train: {dataset_name: gsm8k}}
cluster: {gpus_per_node: 4, num_nodes: 1}
"""
TRL = """
accelerate launch --num_processes 2 examples/scripts/dpo.py --model_name_or_path mine --dataset_name my/pairs \\
    --loss_type sigmoid sft --loss_weights 1.0 0.2 --beta 0.2 --per_device_train_batch_size 4 \\
    --gradient_accumulation_steps 2 --max_steps 30 --lr_scheduler_type cosine --no_gradient_checkpointing \\
    --vllm_mode colocate --logging_steps 5 --min_p 0.1
"""
OPENRLHF = """
read -r -d '' training_commands <<EOF
openrlhf.cli.train_ppo_ray \\
   --actor.model_name_or_path /models/a --reward.remote_url /code/reward_func.py \\
   --algo.advantage.estimator gae --algo.kl.init_coef 0.02 --algo.kl.use_loss \\
   --actor.eps_clip 0.1 --actor.eps_clip_low_high 0.2 0.27 --critic.adam.lr 5e-6 \\
   --data.prompt_dataset /data/a.jsonl --data.max_len 512 --rollout.max_new_tokens 128 \\
   --rollout.batch_size 32 --rollout.n_samples_per_prompt 2 --train.batch_size 64 \\
   --algo.advantage.is_correction_enable --ds.packing_samples --train.enable_ema
EOF
deepspeed --module $training_commands
"""


def convert(tmp_path: Path, name: str, text: str, **words: str) -> Converted:
    path = tmp_path / name
    path.write_text(text)
    converted = convert_file(path, **words)
    validate(converted)
    return converted


def kinds(converted: Converted) -> dict[str, Kind]:
    return {entry.theirs: entry.kind for entry in converted.entries if not entry.is_default}


def options(converted: Converted, *keys: str) -> list[Any]:
    return [converted.options.get(key) for key in keys]


def test_verl(tmp_path: Path) -> None:
    converted = convert(tmp_path, "run.sh", VERL)
    assert (converted.library.name, converted.algorithm) == ("verl", "grpo")
    assert converted.options["data.train"] == ["$HOME/a.parquet", "$HOME/b.parquet"]
    assert converted.options["model.path"] == "$HOME/models/mine"
    assert options(converted, "data.max_prompt_tokens", "grpo.num_prompts_per_step", "grpo.global_batch_size") == [
        256,
        32,
        64,
    ]
    assert options(converted, "grpo.baseline", "grpo.scale_rewards") == ["leave_one_out", "none"]
    assert options(converted, "grpo.clip", "grpo.clip_high", "grpo.kl.coef") == [0.2, 0.2, None], (
        "what verl would train"
    )
    assert options(converted, "policy.schedule.warmup_steps", "learner.parallel.dp") == [20, 2]
    expected = {
        "data.return_raw_input_ids": Kind.IGNORED, "actor_rollout_ref.actor.clip_ratio": Kind.IGNORED,
        "actor_rollout_ref.actor.kl_loss_coef": Kind.IGNORED, "actor_rollout_ref.rollout.temprature": Kind.UNKNOWN,
        "actor_rollout_ref.rollout.name": Kind.REFUSED, "trainer.val_before_train": Kind.DIFFERS,
        "actor_rollout_ref.actor.ppo_mini_batch_size": Kind.DIFFERS, "trainer.logger": Kind.MAPS,
    }  # fmt: skip
    found = kinds(converted)
    assert {key: found[key] for key in expected} == expected
    assert len(found) == 18, "each argument, and no comment and nothing behind the command"


def test_nemo_rl(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(NEMO_RL_BASE)
    converted = convert(tmp_path, "mine.yaml", NEMO_RL)
    assert (converted.library.name, converted.algorithm, converted.missing) == ("NeMo RL", "grpo", ())
    assert options(converted, "grpo.global_batch_size", "policy.lr", "policy.betas") == [16, 3.0e-7, [0.9, 0.98]]
    assert converted.options["policy.schedule.warmup_steps"] == 26, "their steps have two updates"
    assert options(converted, "grpo.baseline", "grpo.scale_rewards", "grpo.kl.placement") == [
        "leave_one_out",
        "none",
        "loss",
    ]
    assert options(converted, "validation_sampling.temperature", "sampling.top_k", "learner.dtype") == [0.9, 0, "bf16"]
    assert options(converted, "learner.parallel.dp", "learner.parallel.tp") == [4, None]
    assert options(converted, "sampling.stop", "data.template_args") == [
        ["</answer>"],
        {"enable_thinking": False, "style": "short"},
    ]
    found = kinds(converted)
    assert found["policy.megatron_cfg.tensor_model_parallel_size"] is Kind.IGNORED
    assert found["grpo.reward_shaping.overlong_buffer_length"] is Kind.IGNORED
    assert found["shared.precision"] is Kind.UNKNOWN


def test_a_base_that_is_not_there_is_named(tmp_path: Path) -> None:
    converted = convert(tmp_path, "mine.yaml", NEMO_RL)
    assert converted.missing == ("base.yaml",)
    assert "placeholder" in converted.notes["model.path"]


def test_trl(tmp_path: Path) -> None:
    converted = convert(tmp_path, "run.sh", TRL)
    assert (converted.library.name, converted.algorithm) == ("TRL", "dpo")
    names = (
        "preference_loss",
        "preference_loss_weight",
        "sft_loss_weight",
        "ref_policy_kl_penalty",
        "global_batch_size",
    )
    assert options(converted, *(f"dpo.{name}" for name in names)) == ["dpo", 1.0, 0.2, 0.2, 16]
    assert options(converted, "optimizer.schedule.decay", "optimizer.schedule.decay_steps") == ["cosine", 30]
    assert converted.options["learner.activation_checkpointing"] is False
    found = kinds(converted)
    assert (found["vllm_mode"], found["logging_steps"]) == (Kind.IGNORED, Kind.DIFFERS)
    assert found["min_p"] is Kind.NONE, "DPO samples nothing"


def test_trl_in_python_and_json(tmp_path: Path) -> None:
    text = "a = 1\nconfig = GRPOConfig(learning_rate=2e-6, beta=0.1, num_generations=4, output_dir=f'{a}', min_p=0.1)\n"
    converted = convert(tmp_path, "mine.py", text)
    assert options(converted, "policy.lr", "grpo.kl.coef", "grpo.num_generations") == [2e-6, 0.1, 4]
    found = kinds(converted)
    assert (found["output_dir"], found["min_p"]) == (Kind.REFUSED, Kind.MAPS)
    assert options(converted, "sampling.min_p") == [0.1]
    sizes = '{"model_name_or_path": "m", "per_device_train_batch_size": 2, "max_steps": 5}'
    converted = convert(tmp_path, "args.json", sizes, algorithm="sft")
    assert options(converted, "sft.global_batch_size", "run.max_steps", "data.completion") == [2, 5, "{completion}"]


def test_openrlhf(tmp_path: Path) -> None:
    converted = convert(tmp_path, "run.sh", OPENRLHF)
    assert (converted.library.name, converted.algorithm) == ("OpenRLHF", "ppo")
    assert options(converted, "ppo.clip", "ppo.clip_high", "ppo.kl.placement", "critic.lr") == [0.2, 0.27, "loss", 5e-6]
    assert options(converted, "reward.type", "reward.function") == ["python", "my_rewards.py:from_openrlhf"]
    assert options(converted, "ppo.correction.kind", "ppo.correction.high") == ["token_tis", 5.0]
    assert converted.notes["policy.betas"] == "actor.adam.betas, their default"
    found = kinds(converted)
    assert (found["actor.eps_clip"], found["train.enable_ema"]) == (Kind.IGNORED, Kind.LOST)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.yaml", "x: 1\n", "none of its keys is known; say whose config it is: --from nemo-rl or --from verl"),
        ("a.yaml", "model_name_or_path: m\nlearning_rate: 1\n", "nothing in it says what is trained"),
        ("a.sh", "echo hello\n", "no command of verl, TRL or OpenRLHF is in it"),
        ("a.py", "print(1)\n", "no configuration such as GRPOConfig"),
        ("a.toml", "x = 1\n", "the name must end in .yaml"),
        ("a.yaml", "defaults: a.yaml\n", "builds on more than 20 files, or on itself"),
        ("a.json", "[1]", "holds no keys with values"),
    ],
)
def test_what_cannot_be_read_gets_a_sentence(
    name: str, text: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text(text)
    assert main(["convert", str(tmp_path / name)]) == 2
    message = capsys.readouterr().err
    assert says in message
    assert message.count("\n") == 1


def test_the_command_prints_a_recipe_and_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.sh").write_text(VERL)
    assert main(["convert", str(tmp_path / "run.sh")]) == 0
    recipe, table = capsys.readouterr()
    assert yaml12.parse(recipe)["grpo"]["num_generations"] == 4
    assert "# Left out: actor_rollout_ref.rollout.name: sglang" in recipe
    assert "temprature = 0.7: no key of verl" in table
    written = tmp_path / "mine.yaml"
    assert main(["convert", str(tmp_path / "run.sh"), "--from", "verl", "--out", str(written)]) == 0
    assert (written.read_text(), capsys.readouterr().out) == (recipe, table)
    assert main(["config", str(written)]) == 0


def test_a_recipe_that_does_not_load_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.sh").write_text(VERL.replace("ppo_mini_batch_size=16", "ppo_mini_batch_size=7"))
    assert main(["convert", str(tmp_path / "run.sh")]) == 2
    printed, message = capsys.readouterr()
    assert "128 responses do not divide into global_batch_size = 28" in message
    assert "global_batch_size: 28" in printed, "it is there to mend"


def test_secrets_are_not_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secrets = "--logger.wandb.key hush-1 --my.hub_token hush-2 --my.password hush-3"
    (tmp_path / "run.sh").write_text(OPENRLHF.replace("--train.enable_ema", secrets))
    assert main(["convert", str(tmp_path / "run.sh")]) == 2, "its reward has to be wrapped"
    recipe, table = capsys.readouterr()
    assert "hush" not in recipe + table
    assert "logger.wandb.key = …" in table
