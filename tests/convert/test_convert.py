"""Configs of other libraries, as they are published: each key is accounted for, and the recipe
loads.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lockstep.cli import main
from lockstep.core.errors import InputError
from lockstep.system import yaml12
from lockstep_convert.command import convert_words
from lockstep_convert.convert import ConvertedConfig, convert_config, detect_library
from lockstep_convert.read import flatten_tree, read_config
from lockstep_convert.report import check_recipe, list_lines, render_recipe
from lockstep_convert.table import KeyVerdict

VERL = r"""#!/bin/bash
set -x
python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=grpo \
    data.train_files=$HOME/data/gsm8k/train.parquet \
    data.train_batch_size=512 data.max_prompt_length=512 data.max_response_length=1024 \
    data.filter_overlong_prompts=True data.truncation='error' \
    +data.apply_chat_template_kwargs.enable_thinking=False \
    actor_rollout_ref.model.path=Qwen/Qwen3-0.6B \
    actor_rollout_ref.actor.optim.lr=1e-6 \
    actor_rollout_ref.actor.ppo_mini_batch_size=128 \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8 \
    actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_type=k3+ \
    actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=4 \
    actor_rollout_ref.rollout.gpu_memory_utilization=0.6 \
    custom_reward_function.path=my_rewards.py \
    trainer.logger='["console","wandb"]' trainer.project_name=mine \
    trainer.n_gpus_per_node=1 trainer.nnodes=1 trainer.total_epochs=3
"""
OPENRLHF = r"""python3 -m openrlhf.cli.train_ppo_ray \
   --actor.model_name_or_path OpenRLHF/Llama-3-8b --data.prompt_dataset ./prompts.jsonl \
   --data.input_key question --data.label_key answer \
   --algo.advantage.estimator group_norm --algo.kl.init_coef 0 \
   --rollout.batch_size 64 --rollout.n_samples_per_prompt 8 --rollout.max_new_tokens 512 \
   --train.batch_size 128 --train.micro_batch_size 4 --actor.adam.lr 5e-7 --ds.zero_stage 3 \
   --vllm.num_engines 1 --actor.num_gpus_per_node 1 --ds.packing_samples
"""
NEMO_RL = """
grpo: {num_prompts_per_step: 32, num_generations_per_prompt: 16, max_num_epochs: 1, max_num_steps: 1000000}
loss_fn: {reference_policy_kl_penalty: 0.01, reference_policy_kl_type: k3, ratio_clip_min: 0.2, ratio_clip_max: 0.28}
policy:
  model_name: Qwen/Qwen2.5-1.5B
  train_global_batch_size: 512
  max_total_sequence_length: 512
  precision: bfloat16
  tokenizer: {name: "${policy.model_name}"}
  optimizer: {name: torch.optim.AdamW, kwargs: {lr: 5.0e-6, betas: [0.9, 0.999], eps: 1e-8, foreach: false}}
  scheduler: [{name: torch.optim.lr_scheduler.LinearLR, kwargs: {total_iters: 50}}, {milestones: [50]}]
  generation: {backend: vllm, max_new_tokens: "${policy.max_total_sequence_length}", top_k: null}
  dynamic_batching: {enabled: true, train_mb_tokens: "${mul:${policy.max_total_sequence_length}, 4}"}
data:
  max_input_seq_length: "${policy.max_total_sequence_length}"
  train: {dataset_name: ResponseDataset, data_path: rows.jsonl, input_key: problem, output_key: answer}
  default: {env_name: math}
cluster: {gpus_per_node: 1, num_nodes: 1}
"""
NEMO_ALIGNER = """
trainer: {devices: 8, num_nodes: 1, precision: bf16, dpo: {max_epochs: 1, max_steps: -1, save_interval: 100}}
pretrained_checkpoint: {restore_from_path: /models/llama.nemo}
model:
  micro_batch_size: 1
  global_batch_size: 64
  tensor_model_parallel_size: 1
  dpo: {ref_policy_kl_penalty: 0.2, preference_loss: dpo}
  data: {data_prefix: /data/pairs.jsonl, seq_length: 2048}
  optim: {name: distributed_fused_adam, lr: 1e-6, sched: {name: CosineAnnealing, warmup_steps: 10}}
"""
TRL = """
model_name_or_path: Qwen/Qwen3-0.6B
dataset_name: ./pairs.jsonl
learning_rate: 5.0e-7
per_device_train_batch_size: 4
gradient_accumulation_steps: 8
max_steps: 500
lr_scheduler_type: cosine
warmup_ratio: 0.1
loss_type: sigmoid
beta: 0.1
logging_steps: 10
report_to: [tensorboard]
"""
CONFIGS = {
    "verl": ("run.sh", VERL, ""),
    "openrlhf": ("run.sh", OPENRLHF, ""),
    "nemo-rl": ("grpo.yaml", NEMO_RL, ""),
    "nemo-aligner": ("dpo.yaml", NEMO_ALIGNER, ""),
    "trl": ("dpo.yaml", TRL, "dpo"),
}


def converted(
    folder: Path, name: str, text: str, algorithm: str = "", *words: str
) -> ConvertedConfig:
    """Converts a config by the library that its keys are of."""
    (folder / name).write_text(text)
    config = read_config([str(folder / name), *words])
    return convert_config(config, detect_library(config.tree), algorithm or None)


def recipe(found: ConvertedConfig) -> dict[str, Any]:
    """The recipe as it loads, by dotted options."""
    resolved, wrong = check_recipe(found)
    assert not wrong
    return dict(resolved)


@pytest.mark.parametrize("library", CONFIGS)
def test_converted_config_accounts_for_every_key_and_loads_as_recipe(
    library: str, tmp_path: Path
) -> None:
    found = converted(tmp_path, *CONFIGS[library])
    assert found.table.name.lower().replace(" ", "-") == library
    given = dict(flatten_tree(read_config([str(tmp_path / CONFIGS[library][0])]).tree))
    accounted = {entry.theirs for entry in found.entries}
    assert {
        key for key in given if not any(f"{key}.".startswith(f"{other}.") for other in accounted)
    } == set()
    assert not found.select_entries(KeyVerdict.UNKNOWN)
    recipe(found)


def test_verl_config_is_converted_to_expected_options(tmp_path: Path) -> None:
    options = recipe(converted(tmp_path, *CONFIGS["verl"]))
    assert options["model.path"] == "hf:Qwen/Qwen3-0.6B"
    assert options["data.messages"] == "prompt"
    assert options["data.template_args.enable_thinking"] is False
    assert options["reward.function"] == "my_rewards.py:compute_score"
    assert options["grpo.global_batch_size"] == 512
    assert (options["grpo.kl.coef"], options["grpo.kl.placement"]) == (0.001, "loss")
    assert options["trackers.wandb.project"] == "mine"


def test_openrlhf_nemo_rl_and_trl_configs_are_converted_to_expected_options(tmp_path: Path) -> None:
    options = recipe(converted(tmp_path, *CONFIGS["openrlhf"]))
    assert (options["grpo.baseline"], options["grpo.scale_rewards"]) == ("mean", "group")
    assert (options["policy.lr"], options["data.prompt"], options["data.answer"]) == (
        5e-7,
        "{question}",
        "{answer}",
    )
    options = recipe(converted(tmp_path, *CONFIGS["nemo-rl"]))
    assert options["sampling.max_tokens"] == options["data.max_prompt_tokens"] == 512
    assert (options["grpo.clip"], options["grpo.clip_high"], options["run.max_epochs"]) == (
        0.2,
        0.28,
        1,
    )
    options = recipe(converted(tmp_path, *CONFIGS["trl"]))
    assert options["dpo.global_batch_size"] == 32


ACTOR = "actor_rollout_ref.actor"
SCHEDULES = {
    "trl": ("", {"decay": "cosine", "warmup_steps": 0.1, "decay_steps": None}),
    "trl: its default": ("lr_scheduler_type: cosine", {"decay": "linear"}),
    "trl: WSD": (
        "lr_scheduler_type=warmup_stable_decay lr_scheduler_kwargs.num_decay_steps=50",
        {"decay": "cosine", "cooldown_steps": 50},
    ),
    "verl": (
        f"{ACTOR}.optim.lr_warmup_steps_ratio=0.05 {ACTOR}.optim.lr_scheduler_type=cosine "
        f"{ACTOR}.optim.min_lr_ratio=0.2",
        {"decay": "cosine", "warmup_steps": 0.05, "final_fraction": 0.2},
    ),
    "openrlhf: its default": (
        "",
        {"decay": "cosine", "warmup_steps": 0.03, "final_fraction": 0.1},
    ),
    "nemo-rl": ("", {"decay": "constant", "warmup_steps": 50}),
    "nemo-aligner": ("", {"decay": "cosine", "warmup_steps": 10}),
}


@pytest.mark.parametrize("case", SCHEDULES)
def test_schedule_of_other_library_is_converted(case: str, tmp_path: Path) -> None:
    words, expected = SCHEDULES[case]
    name, text, usual = CONFIGS[case.partition(":")[0]]
    given = words.split() if "=" in words else []
    text = text if given else text.replace(words, "")
    options = recipe(converted(tmp_path, name, text, usual, *given))
    [section] = [key.removesuffix(".lr") for key in options if key.endswith(".lr")]
    assert expected == {key: options[f"{section}.schedule.{key}"] for key in expected}


def test_command_of_a_trl_script_names_hub_data_and_functions(tmp_path: Path) -> None:
    command = (
        "python grpo.py --model_name_or_path Qwen/Qwen3-0.6B --dataset_name trl-lib/tldr "
        "--eval_strategy steps --eval_steps 10 --reward_funcs my_lib.rewards.brief "
        "--per_device_train_batch_size 8 --max_completion_length 64 --beta 0.04\n"
    )
    options = recipe(converted(tmp_path, "run.sh", command, "grpo"))
    assert options["data.train"] == "hf:datasets/trl-lib/tldr"
    assert options["data.validation"] == "hf:datasets/trl-lib/tldr/test"
    assert (options["reward.type"], options["reward.function"]) == (
        "python",
        "my_lib.rewards:brief",
    )
    assert options["grpo.kl.estimator"] == "k3"


def test_local_file_of_a_trl_script_holds_out_rows_and_skips_over_long_ones(tmp_path: Path) -> None:
    command = "python sft.py --dataset_name ./rows.jsonl --eval_strategy steps --max_length 512\n"
    options = recipe(converted(tmp_path, "run.sh", command, "sft"))
    assert (options["data.train"], options["data.validation"]) == ("./rows.jsonl", 0.05)
    assert options["data.overlong_prompts"] == "skip"


def test_several_reward_functions_of_trl_are_the_parts_of_a_sum(tmp_path: Path) -> None:
    command = "python grpo.py --reward_funcs accuracy_reward think_format_reward mine.brief\n"
    options = recipe(converted(tmp_path, "run.sh", command, "grpo"))
    assert options["reward.type"] == "sum"
    assert options["reward.parts.accuracy_reward.type"] == "math"
    assert options["reward.parts.brief.function"] == "mine:brief"
    name = "think_format_reward"
    assert options[f"reward.parts.{name}.function"] == f"trl.rewards:{name}"


@pytest.mark.parametrize("word", [f"{ACTOR}.kl_loss_type=low_var_kl", ""])
def test_low_var_kl_of_verl_is_k3_whether_set_or_its_default(word: str, tmp_path: Path) -> None:
    name, text, _ = CONFIGS["verl"]
    text = text.replace(f"{ACTOR}.kl_loss_type=k3+", word)
    assert recipe(converted(tmp_path, name, text))["grpo.kl.estimator"] == "k3"


def test_reference_to_key_of_section_above_is_followed(tmp_path: Path) -> None:
    name, text, _ = CONFIGS["nemo-rl"]
    above = text.replace('new_tokens: "${policy.', 'new_tokens: "${..')
    assert "${..max_total_sequence_length}" in above
    assert recipe(converted(tmp_path, name, above)) == recipe(converted(tmp_path, name, text))


def test_prompt_file_of_nemo_rl_is_read_if_it_is_there(in_tmp: Path) -> None:
    name, text, _ = CONFIGS["nemo-rl"]
    word = "data.default.prompt_file=cot.txt"
    missing = converted(in_tmp, name, text, "", word)
    assert [entry.theirs for entry in missing.select_entries(KeyVerdict.LOOK)] == [
        "data.default.prompt_file"
    ]
    Path("cot.txt").write_text("In \\boxed{{}}:\n{}")
    assert recipe(converted(in_tmp, name, text, "", word))["data.prompt"] == (
        "In \\boxed{{}}:\n{problem}"
    )


def test_aliases_and_merges_of_a_config_are_read(tmp_path: Path) -> None:
    text = """
a: &base {x: 1, y: &inner {z: 2, w: 3}}
b: {<<: *base, x: 4, y: {<<: *inner, w: 5}}
c: *inner
"""
    (tmp_path / "c.yaml").write_text(text)
    tree = read_config([str(tmp_path / "c.yaml")]).tree
    assert tree["b"] == {"x": 4, "y": {"z": 2, "w": 5}}
    assert tree["c"] == {"z": 2, "w": 3}


@pytest.mark.parametrize("text", ["a: &x [*x]", "a: &x 1\nb: [" + "*x, " * 17 + "]"])
def test_alias_of_itself_and_many_aliases_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(InputError, match="aliases are not supported"):
        read_config([str(tmp_path / "c.yaml")])


LOOK = {
    "a loss that is not here": ("trl", "", "loss_type=sapo", "loss_type"),
    "a KL of another gradient": ("verl", "", f"{ACTOR}.kl_loss_type=k1", "actor.kl_loss_type"),
    "an estimator that is not here": (
        "verl",
        "grpo",
        "algorithm.adv_estimator=opo",
        "algorithm.adv_estimator",
    ),
    "a function that returns one": (
        "trl",
        "grpo",
        "reward_funcs=[accuracy_reward, get_soft_overlong_punishment]",
        "reward_funcs",
    ),
    "a variable": ("verl", "", "trainer.total_epochs=$EPOCHS", "trainer.total_epochs"),
    "an engine that is not here": (
        "verl",
        "",
        "actor_rollout_ref.rollout.name=sglang",
        "rollout.name",
    ),
    "another schedule of torch": (
        "nemo-rl",
        "",
        "policy.scheduler=[{name: torch.optim.lr_scheduler.StepLR, kwargs: {step_size: 9}}]",
        "policy.scheduler",
    ),
    "arguments of a reward function": (
        "verl",
        "",
        "custom_reward_function.reward_kwargs.scale=0.5",
        "reward_kwargs.scale",
    ),
    "experts": ("openrlhf", "", "actor.aux_loss_coef=0.01", "actor.aux_loss_coef"),
}


@pytest.mark.parametrize("case", LOOK)
def test_inconvertible_key_is_listed_for_review_and_left_out_of_recipe(
    case: str, tmp_path: Path
) -> None:
    library, algorithm, word, key = LOOK[case]
    name, text, usual = CONFIGS[library]
    found = converted(tmp_path, name, text, algorithm or usual, *filter(None, [word]))
    [entry] = [
        entry for entry in found.select_entries(KeyVerdict.LOOK) if entry.theirs.endswith(key)
    ]
    assert entry.sentence
    assert not entry.options
    assert f"Look at this: {entry.theirs}" in render_recipe(found)
    recipe(found)


def test_differing_defaults_of_other_library_are_reported(tmp_path: Path) -> None:
    text = VERL.replace("actor_rollout_ref.actor.optim.lr=1e-6", "").replace(
        "actor.kl_loss_type=k3+", "actor.ppo_epochs=1"
    )
    found = converted(tmp_path, "run.sh", text)
    lines = "\n".join(list_lines(found, recipe(found)))
    assert (
        "policy.lr: theirs is 1e-06 (actor_rollout_ref.actor.optim.lr), ours has no default"
        in lines
    )
    assert (
        "policy.weight_decay: theirs is 0.01 (actor_rollout_ref.actor.optim.weight_decay), ours "
        "is 0.0" in lines
    )
    assert "validation_sampling.temperature: theirs is 0" in lines
    assert "kl_loss_type (their default) = low_var_kl" in lines
    text = NEMO_RL.replace("reference_policy_kl_penalty: 0.01, ", "")
    found = converted(tmp_path, "grpo.yaml", text)
    lines = "\n".join(list_lines(found, recipe(found)))
    assert (
        "grpo.kl.coef: theirs is 0.01 (loss_fn.reference_policy_kl_penalty), ours is null" in lines
    )
    found = converted(
        tmp_path,
        "dpo.yaml",
        TRL.replace("beta: 0.1", "").replace("lr_scheduler_type: cosine", ""),
        "dpo",
    )
    lines = "\n".join(list_lines(found, recipe(found)))
    assert (
        "dpo.max_tokens: theirs is 1024 (max_length), ours has no default: the recipe has theirs"
        in lines
    )
    assert "lr_scheduler_type (their default) = linear → optimizer.schedule.decay: linear" in lines


def test_unknown_keys_and_two_keys_of_one_option_are_listed(tmp_path: Path) -> None:
    found = converted(
        tmp_path, *CONFIGS["verl"], "trainer.total_epoch=3", "data.seed=1", "trainer.seed=2"
    )
    assert [entry.theirs for entry in found.select_entries(KeyVerdict.UNKNOWN)] == [
        "trainer.total_epoch"
    ]
    [clash] = [
        entry for entry in found.select_entries(KeyVerdict.LOOK) if entry.theirs == "trainer.seed"
    ]
    assert clash.sentence == "seed is already 1, from data.seed"


def test_conversion_report_hides_api_key(tmp_path: Path) -> None:
    _, report, _ = convert_words(
        [
            str(write(tmp_path, OPENRLHF.rstrip() + " --logger.wandb.key abc")),
        ],
        None,
        None,
    )
    assert "logger.wandb.key = …" in report
    assert "abc" not in report


def write(folder: Path, text: str, name: str = "run.sh") -> Path:
    path = folder / name
    path.write_text(text)
    return path


REFUSED = {
    "two commands": ("echo a\npython x.py a=1\n", "run.sh", "has 2 commands"),
    "a pipe": ("python x.py a=1 | tee log\n", "run.sh", "uses shell syntax"),
    "not YAML": ("x: [1\n", "a.yaml", "a.yaml: line"),
    "no keys": ("[1]", "a.json", "has no keys"),
    "keys of nobody": ("x: 1\n", "a.yaml", "no library knows its keys"),
    "a program": (
        "import trl\n",
        "sft.py",
        "save its training command, such as the one in its doc",
    ),
    "no algorithm": ("model_name_or_path: m\nlearning_rate: 1e-6\n", "a.yaml", "set --algorithm"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_unreadable_config_is_rejected_with_reason(case: str, tmp_path: Path) -> None:
    text, name, said = REFUSED[case]
    with pytest.raises(InputError, match=said):
        convert_words([str(write(tmp_path, text, name))], None, None)


def test_convert_command_writes_loadable_recipe_and_refuses_to_overwrite_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "mine.yaml"
    assert main(["convert", str(write(tmp_path, VERL)), "--from", "verl", "--out", str(out)]) == 0
    assert "rollout.n = 4 → grpo.num_generations: 4" in capsys.readouterr().out
    assert yaml12.parse_yaml(out.read_text())["algorithm"] == "grpo"
    assert main(["config", str(out)]) == 0
    capsys.readouterr()
    assert main(["convert", str(tmp_path / "run.sh"), "--out", str(out)]) == 2
    assert "already exists" in capsys.readouterr().err
    assert main(["convert", str(tmp_path / "run.sh"), "trainer.total_training_steps=9"]) == 2
    assert "look at trainer.total_epochs" in capsys.readouterr().err


def test_convert_command_reads_flags_of_other_library_as_words(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [
        "--model_name_or_path",
        "m",
        "--learning_rate",
        "1e-6",
        "--max_steps",
        "3",
        "--bf16",
        "False",
    ]
    assert main(["convert", "--from", "trl", "--algorithm", "sft", "--", *words]) == 2
    said = capsys.readouterr()
    assert "dtype: fp32" in said.out
    assert "data.train" in said.err
