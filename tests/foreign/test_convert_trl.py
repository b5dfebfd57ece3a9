"""What TRL's trainers do: defaults of each, what their steps count, and where the KL goes."""

from __future__ import annotations

import json

import pytest
from conversions import Convert

from lockstep.foreign.words import Json, Kind

PPO = "python ppo.py --model_name_or_path m --per_device_train_batch_size 16"
RLOO = "python rloo.py --model_name_or_path m --per_device_train_batch_size 16"
GRPO = "python grpo.py --model_name_or_path m --per_device_train_batch_size 16"
SCHEDULE = " --lr_scheduler_type linear --warmup_steps 3"
TIMES = " --save_steps 8 --eval_strategy steps --eval_steps 12 --max_steps 40"
REUSED = " --gradient_accumulation_steps 2 --steps_per_generation 4 --num_iterations 2"


def test_ppo_draws_one_response_and_has_defaults_of_its_own(convert: Convert) -> None:
    found = convert("run.sh", PPO).options
    assert (found["ppo.num_generations"], found["ppo.num_prompts_per_step"]) == (1, 16)
    assert (found["ppo.ppo_epochs"], found["sampling.temperature"]) == (4, 0.7)


def test_rloo_and_grpo_have_defaults_of_their_own(convert: Convert) -> None:
    rloo, grpo = convert("rloo.sh", RLOO).options, convert("grpo.sh", GRPO).options
    assert (rloo["grpo.num_generations"], grpo["grpo.num_generations"]) == (2, 8)
    assert (rloo["grpo.num_prompts_per_step"], grpo["grpo.num_prompts_per_step"]) == (8, 2)
    assert (rloo["grpo.kl.coef"], grpo.get("grpo.kl.coef")) == (0.05, None)


def test_gkd_shares_batches_unless_it_is_told_not_to(convert: Convert) -> None:
    text = "python gkd.py --model_name_or_path m --teacher_model_name_or_path t"
    converted = convert("run.sh", text)
    refused = {entry.theirs: entry.is_default for entry in converted.list_kind(Kind.REFUSED)}
    assert refused["lmbda"] is True
    assert converted.options["sampling.temperature"] == 0.9
    assert convert("run.sh", f"{text} --lmbda 1.0").options["distill.on_policy"] is True


@pytest.mark.parametrize(
    ("command", "coefficient", "placement"),
    [(PPO, 0.05, "reward"), (f"{PPO} --kl_coef 0.1", 0.1, "reward"), (f"{RLOO} --beta 0.2", 0.2, "reward"),
     (f"{GRPO} --beta 0.2", 0.2, None), (f"{RLOO} --beta 0", None, None)],
)  # fmt: skip
def test_ppo_and_rloo_take_the_kl_from_the_reward(
    command: str, coefficient: float | None, placement: str | None, convert: Convert
) -> None:
    converted = convert("run.sh", command)
    kl = f"{converted.algorithm}.kl"
    assert [converted.options.get(f"{kl}.{name}") for name in ("coef", "placement")] == [coefficient, placement]


def test_weights_of_several_rewards_are_refused_and_say_where_they_belong(convert: Convert) -> None:
    converted = convert("run.sh", f"{GRPO} --reward_weights 0.5 1.0")
    [reason] = [entry.reason for entry in converted.list_kind(Kind.REFUSED) if entry.theirs == "reward_weights"]
    assert "reward.parts.<name>.weight" in reason


def test_steps_of_grpo_are_optimizer_steps(convert: Convert) -> None:
    found = convert("run.sh", GRPO + REUSED + SCHEDULE + TIMES).options
    assert (found["grpo.num_prompts_per_step"], found["grpo.global_batch_size"]) == (8, 32), "four updates a step"
    assert [found[f"run.{name}"] for name in ("max_steps", "save_every")] == [10, 2]
    schedule = [found[f"policy.schedule.{name}"] for name in ("decay_steps", "warmup_steps")]
    assert schedule == [40, 3], "a schedule counts optimizer steps here and there"


def test_validation_of_grpo_is_counted_likewise(convert: Convert) -> None:
    from_json = '{"model_name_or_path": "m", "num_generations": 8, "num_iterations": 4, "eval_strategy": "steps"%s}'
    converted = convert("grpo.json", from_json % ', "eval_steps": 12')
    entry = next(entry for entry in converted.entries if entry.theirs == "eval_steps")
    assert "run.validate_every" in entry.reason, "there are no rows to validate on"
    converted = convert("grpo.json", from_json % ', "save_steps": 9, "max_steps": 10')
    assert [converted.options[f"run.{name}"] for name in ("save_every", "max_steps")] == [3, 3], "rounded up"


def test_the_schedule_of_ppo_counts_batches(convert: Convert) -> None:
    text = f"{PPO} --num_mini_batches 2 --num_ppo_epochs 3 --total_episodes 160 --save_steps 5{SCHEDULE}"
    found = convert("run.sh", text).options
    assert [found[f"run.{name}"] for name in ("max_steps", "save_every")] == [10, 5]
    assert [found[f"policy.schedule.{name}"] for name in ("decay_steps", "warmup_steps")] == [60, 18]


@pytest.mark.parametrize(
    ("parts", "accumulated", "batch"), [(1, 1, 16), (4, 1, 4), (2, 4, 64), (4, 4, 64), (4, 2, 16), (8, 2, 8)]
)
def test_a_minibatch_of_ppo_is_a_step_where_there_are_more_than_accumulated_passes(
    parts: int, accumulated: int, batch: int, convert: Convert
) -> None:
    counts = f" --num_mini_batches {parts} --gradient_accumulation_steps {accumulated} --num_ppo_epochs 3"
    found = convert("run.sh", f"{PPO}{counts} --max_steps 10{SCHEDULE}").options
    assert (found["ppo.num_prompts_per_step"], found["ppo.global_batch_size"]) == (16 * accumulated, batch)
    assert found["policy.schedule.decay_steps"] == 30 * 16 * accumulated // batch


def test_steps_of_ppo_that_reach_into_the_next_batch_are_refused(convert: Convert) -> None:
    converted = convert("run.sh", f"{PPO} --num_mini_batches 2 --gradient_accumulation_steps 3")
    reasons = {entry.theirs: entry.reason for entry in converted.list_kind(Kind.REFUSED)}
    assert "2 minibatches, and 3 backward passes a step" in reasons["num_mini_batches"]


def test_gradients_of_rloo_are_measured_in_its_scale(convert: Convert) -> None:
    found = convert("run.sh", f"{RLOO} --max_completion_length 256").options
    assert [found[f"policy.{name}"] for name in ("max_grad_norm", "eps")] == [1 / 256, 1e-8 / 256]
    found = convert("run.sh", f"{RLOO} --max_grad_norm 0.5 --adam_epsilon 1e-6").options
    assert [found[f"policy.{name}"] for name in ("max_grad_norm", "eps")] == [0.5 / 512, 1e-6 / 512]
    assert "policy.max_grad_norm" not in convert("run.sh", GRPO).options


AVERAGES = ("preference_average_log_probs", "sft_average_log_probs")


@pytest.mark.parametrize(
    ("loss", "averages"),
    [("ipo", [True, None]), ("ipo sft", [True, True]), ("sigmoid", [None, None]), ("sigmoid sft", [None, True])],
)
def test_ipo_and_the_likelihood_are_of_tokens(loss: str, averages: list[Json], convert: Convert) -> None:
    found = convert("run.sh", f"python dpo.py --model_name_or_path m --loss_type {loss}").options
    assert [found.get(f"dpo.{name}") for name in AVERAGES] == averages


@pytest.mark.parametrize(
    ("command", "algorithm", "expected"),
    [
        ("kto.py --desirable_weight 1.5 --max_length 512", "kto",
         {"kto.desirable_weight": 1.5, "kto.max_tokens": 512, "kto.global_batch_size": 8, "optimizer.lr": 1e-6,
          "data.completion": "{completion}", "kto.ref_policy_kl_penalty": 0.1}),
        ("orpo.py --beta 0.2", "orpo", {"orpo.odds_ratio_weight": 0.2, "orpo.global_batch_size": 8}),
        ("cpo.py --loss_type simpo --beta 2.5 --cpo_alpha 0", "simpo",
         {"simpo.beta": 2.5, "simpo.margin": 0.5, "simpo.sft_loss_weight": 0}),
        ("online_dpo.py --loss_type ipo --reward_model_path r", "online_dpo",
         {"online_dpo.num_prompts_per_step": 8, "online_dpo.preference_loss": "ipo", "sampling.max_tokens": 64,
          "sampling.temperature": 0.9, "optimizer.lr": 5e-7}),
        ("dpo.py --loss_type robust --label_smoothing 0.1", "dpo",
         {"dpo.preference_loss": "robust", "dpo.label_smoothing": 0.1}),
        ("dpo.py --loss_type ipo --label_smoothing 0.1", "dpo", {"dpo.label_smoothing": None}),
        ("sft.py --optim sgd --adam_beta1 0.8", "sft", {"optimizer.name": "SGD", "optimizer.betas": None}),
        ("sft.py --optim adafactor", "sft", {"optimizer.name": None}),
    ],
)  # fmt: skip
def test_losses_and_optimizers_that_papers_name(
    command: str, algorithm: str, expected: dict[str, Json], convert: Convert
) -> None:
    converted = convert("run.sh", f"python {command} --model_name_or_path m")
    assert converted.algorithm == algorithm
    assert {name: converted.options.get(name) for name in expected} == expected


VLLM = f"{GRPO} --use_vllm --vllm_importance_sampling_"
FUNCS = f"{GRPO} --reward_funcs a.b c --reward_weights 1.0 0.5"
HALF = f"{GRPO} --reward_funcs accuracy_reward --reward_weights 0.5"
CLIPPED = f"{VLLM}clip_min 0.5 --vllm_importance_sampling_mode"
ICEPOP: dict[str, Json] = {"grpo.correction.kind": "icepop", "grpo.correction.high": 3.0}
ROLLED = {"grpo.baseline": "leave_one_out", "grpo.loss_mean": "constant"}


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (f"{GRPO} --loss_type cispo --epsilon_high 5.0", {"grpo.loss": "cispo", "grpo.clip_high": 4.0}),
        (f"{GRPO} --loss_type dapo --epsilon_high 0.28", {"grpo.clip_high": 0.28}),
        (RLOO, ROLLED),
        (f"accelerate launch --num_processes 4 {GRPO.removeprefix('python ')}", {"learner.parallel.dp": 4}),
        (f"{VLLM}mode token_truncate", {"grpo.correction.kind": "token_tis", "grpo.correction.high": 3.0}),
        (f"{VLLM}mode token_truncate --vllm_importance_sampling_cap 2.0", {"grpo.correction.high": 2.0}),
        (f"{VLLM}mode token_mask", ICEPOP | {"grpo.correction.low": 0.0}),
        (f"{VLLM}mode token_mask --vllm_importance_sampling_clip_min 0.5", ICEPOP | {"grpo.correction.low": 0.5}),
        (f"{GRPO} --loss_type bnpo", {"grpo.loss_mean": "tokens"}),
        (f"{GRPO} --dataset_name my/rows --dataset_train_split main", {"data.train": "data/rows/main"}),
        (f"{GRPO} --max_completion_length null", {"sampling.max_tokens": 512}),
        (f"{GRPO} --reward_funcs accuracy_reward", {"reward.type": "math", "data.answer": "{solution}"}),
        (HALF, {"reward.type": "sum", "data.answer": "{solution}", "reward.parts": {
            "accuracy_reward": {"type": "math", "weight": 0.5}}}),
        (FUNCS, {"reward.type": "sum", "reward.parts": {
            "b": {"type": "python", "function": "my_rewards.py:b", "weight": 1.0},
            "c": {"type": "python", "function": "my_rewards.py:c", "weight": 0.5}}}),
    ],
)  # fmt: skip
def test_what_its_trainers_mean(command: str, expected: dict[str, Json], convert: Convert) -> None:
    found = convert("run.sh", command).options
    assert {key: found.get(key) for key in expected} == expected


@pytest.mark.parametrize(
    ("command", "changes"),
    [
        (FUNCS, ["reward_funcs = ['a.b', 'c']"]),
        (HALF, []),
        (f"{CLIPPED} token_mask", []),
        (f"{CLIPPED} token_truncate", ["vllm_importance_sampling_clip_min = 0.5"]),
        (f"{CLIPPED} sequence_truncate", ["vllm_importance_sampling_clip_min = 0.5"]),
        (
            f"{VLLM}mode token_mask --vllm_importance_sampling_clip_max null",
            ["vllm_importance_sampling_clip_max = None"],
        ),
        (f"{GRPO} --use_vllm", ["vllm_importance_sampling_mode (their default) = sequence_mask"]),
        (f"{GRPO} --loss_type bnpo", []),
        (f"{GRPO} --loss_type bnpo --gradient_accumulation_steps 2", ["loss_type = bnpo"]),
        (f"{GRPO} --loss_type sapo", ["loss_type = sapo"]),
        (f"{GRPO} --loss_type cispo", ["loss_type = cispo"]),
        (f"{GRPO} --top_entropy_quantile 0.2", ["top_entropy_quantile = 0.2"]),
        (f"{GRPO} --top_entropy_quantile 1.0", []),
        ("python dpo.py --f_divergence_type js_divergence", ["f_divergence_type = js_divergence"]),
        (f"{RLOO} --num_iterations 1 --steps_per_generation 1", []),
        (f"{RLOO} --num_iterations 2", ["num_iterations = 2"]),
        (f"{RLOO} --steps_per_generation 4", ["steps_per_generation = 4"]),
        (f"{RLOO} --generation_batch_size 64", ["generation_batch_size = 64"]),
        (f"{RLOO} --optim sgd", ["optim = sgd"]),
        ("python sft.py --neftune_noise_alpha 5", ["neftune_noise_alpha = 5"]),
    ],
)
def test_what_changes_the_objective_is_listed(command: str, changes: list[str], convert: Convert) -> None:
    assert list(convert("run.sh", command).list_changes()) == changes


def test_generated_responses_of_rloo_are_to_finish(convert: Convert) -> None:
    converted = convert("rloo.py", "RLOOConfig(num_generations=4, steps_per_generation=8)\n", library="trl")
    assert [converted.options[f"grpo.{name}"] for name in ("num_prompts_per_step", "global_batch_size")] == [16, 8]
    assert [entry.theirs for entry in converted.list_kind(Kind.UNFINISHED)] == ["steps_per_generation"]


def test_what_no_key_says_is_noted(convert: Convert) -> None:
    said = {name: " ".join(convert("run.sh", command).remarks) for name, command in
            (("rloo", RLOO), ("packed", "python sft.py --packing true --gradient_accumulation_steps 4"),
             ("sft", "python sft.py --assistant_only_loss true"),
             ("without", "python sft.py --assistant_only_loss true --router_aux_loss_coef 0.0"))}  # fmt: skip
    assert "has 32 sequences of max_length tokens" in said["packed"]
    assert "they learn all tokens" in said["packed"]
    assert "AdamW's steps are the same" in said["rloo"]
    assert "0.001 times their balance" in said["sft"]
    assert said["without"] == ""
    refused = {entry.theirs: entry for entry in convert("run.sh", f"{GRPO} --use_vllm").list_kind(Kind.REFUSED)}
    assert "whole responses are left out there" in refused["vllm_importance_sampling_mode"].reason


def test_a_loss_says_which_trainer_it_is_of(convert: Convert) -> None:
    assert convert("mine.yaml", "beta: 0.2\nloss_type: kto\n", library="trl").algorithm == "kto"


def test_the_critic_of_ppo_shares_the_optimizer_of_the_policy(convert: Convert) -> None:
    words = f"{PPO} --total_episodes 160{SCHEDULE} --learning_rate 3e-6 --weight_decay 0.1 --adam_beta2 0.95"
    found = convert("run.sh", words).options
    for name in ("lr", "weight_decay", "betas", "schedule.warmup_steps", "schedule.decay", "schedule.decay_steps"):
        assert found[f"critic.{name}"] == found[f"policy.{name}"], name
    assert not [
        key for key in convert("run.sh", f"{GRPO}{SCHEDULE} --max_steps 8").options if key.startswith("critic.")
    ]


@pytest.mark.parametrize("name", ["dpo.yaml", "dpo.json"])
def test_arguments_of_a_schedule_are_read_from_every_form(name: str, convert: Convert) -> None:
    text = json.dumps(
        {"model_name_or_path": "m", "beta": 0.2, "max_length": 512, "max_steps": 50, "loss_type": "sigmoid",
         "lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr_rate": 0.1}}
    )  # fmt: skip
    assert convert(name, text).options["optimizer.schedule.final_fraction"] == 0.1
