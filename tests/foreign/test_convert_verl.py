"""What verl's trainer does beyond single keys: adaptive KL, GSPO's mean, IcePop."""

from __future__ import annotations

from pathlib import Path

import pytest
from conversions import Convert

from lockstep.cli import main
from lockstep.foreign.words import Json, Kind

RUN = "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=4 "
IN_REWARD = "algorithm.use_kl_in_reward=True algorithm.kl_ctrl.type="
CORRECTION = "algorithm.rollout_correction"


def test_adaptive_kl_has_a_target_of_its_own(convert: Convert) -> None:
    adaptive = convert("run.sh", f"{RUN}{IN_REWARD}adaptive").options
    assert (adaptive["grpo.kl.adaptive.target"], adaptive["grpo.kl.placement"]) == (0.1, "reward")
    said = convert("run.sh", f"{RUN}{IN_REWARD}adaptive algorithm.kl_ctrl.target_kl=0.3").options
    assert said["grpo.kl.adaptive.target"] == 0.3
    assert "grpo.kl.adaptive.target" not in convert("run.sh", f"{RUN}{IN_REWARD}fixed").options


@pytest.mark.parametrize("mode", ["", "actor_rollout_ref.actor.loss_agg_mode=token-mean"])
def test_gspo_takes_means_of_responses(mode: str, convert: Convert) -> None:
    gspo = "actor_rollout_ref.actor.policy_loss.loss_mode=gspo"
    for words in (f"{mode} {gspo}", f"{gspo} {mode}"):
        converted = convert("run.sh", RUN + words)
        assert converted.options["grpo.loss_mean"] == "responses"
        assert converted.options["grpo.importance_sampling_level"] == "sequence"
        named = {entry.theirs: entry.kind for entry in converted.entries}
        assert named.get("actor_rollout_ref.actor.loss_agg_mode") == (Kind.IGNORED if mode else None)
    assert convert("run.sh", RUN + mode).options["grpo.loss_mean"] == "tokens"


def test_icepop_is_a_threshold_with_two_bounds(convert: Convert) -> None:
    words = (f"{CORRECTION}.rollout_is=token", f'{CORRECTION}.rollout_is_threshold="0.5_5.0"')
    for order in (words, words[::-1]):
        found = convert("run.sh", RUN + " ".join(order)).options
        assert [found[f"grpo.correction.{name}"] for name in ("kind", "low", "high")] == ["icepop", 0.5, 5.0]


@pytest.mark.parametrize(
    ("kind", "threshold", "says"),
    [("sequence", "0.5_5.0", "icepop masks tokens, not sequences"), ("token", "a_b", "a_b is no number_number")],
)
def test_other_bounds_are_refused(kind: str, threshold: str, says: str, convert: Convert) -> None:
    words = f"{CORRECTION}.rollout_is={kind} {CORRECTION}.rollout_is_threshold={threshold}"
    refused = convert("run.sh", RUN + words).list_kind(Kind.REFUSED)
    assert [entry.reason for entry in refused] == [says]


ACTOR = "actor_rollout_ref.actor"
PPO = "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=gae "
SFT = "torchrun --nproc_per_node=2 -m verl.trainer.fsdp_sft_trainer "
STEPS = "trainer.total_training_steps=3 "
FILTER = "algorithm.filter_groups.enable=True algorithm.filter_groups.max_num_gen_batches=3"
REWARD, LOSS = "reward.custom_reward_function", f"{ACTOR}.policy_loss.loss_mode"
VECTORIZED = "algorithm.adv_estimator=grpo_vectorized"
CLUSTER = "actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.tensor_model_parallel_size=4 trainer.nnodes=2"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (f"{PPO} trainer.critic_warmup=5", {"ppo.critic_warmup_steps": 4}),
        (f"{PPO} trainer.critic_warmup=1", {"ppo.critic_warmup_steps": None}),
        (RUN + FILTER, {"grpo.dynamic_sampling.max_batches": None}),
        (RUN.replace("verl.trainer.main_ppo", "recipe.dapo.main_dapo") + FILTER,
         {"grpo.dynamic_sampling.max_batches": 3}),
        (f"{RUN} data.gen_batch_size=64 data.train_batch_size=512 {ACTOR}.ppo_mini_batch_size=64",
         {"grpo.num_prompts_per_step": 64}),
        (f"{RUN} algorithm.adv_estimator=reinforce_plus_plus_baseline",
         {"grpo.baseline": "mean", "grpo.scale_rewards": "none", "grpo.whiten_advantages": True}),
        (RUN + CLUSTER, {"sampler.replicas": 4, "learner.parallel.dp": 16, "cluster.backend": "ray"}),
        (RUN, {"data.messages": "prompt", "data.answer": "{reward_model.ground_truth}", "cluster.backend": None}),
        (f"{RUN} {REWARD}.path=/home/me/my.py {REWARD}.name=my_fn", {"reward.function": "/home/me/my.py:my_fn"}),
        (f"{RUN} custom_reward_function.path=my.py", {"reward.function": "my.py:compute_score"}),
        (f"{RUN} {REWARD}.path=pkg://mine/rewards", {"reward.function": "mine.rewards:compute_score"}),
        (f"{RUN} {LOSS}=cispo", {"grpo.loss": "cispo", "grpo.dual_clip": None}),
        (f"{RUN} {LOSS}=gspo", {"grpo.importance_sampling_level": "sequence", "grpo.dual_clip": None}),
        (f"{RUN} {LOSS}=vanilla", {"grpo.dual_clip": 3.0}),
        (f"{RUN} {VECTORIZED} algorithm.norm_adv_by_std_in_grpo=False", {"grpo.scale_rewards": "group"}),
        (f"{RUN} algorithm.norm_adv_by_std_in_grpo=False", {"grpo.scale_rewards": "none"}),
        (f"{SFT}{STEPS} data.prompt_key=question optim.lr_warmup_steps_ratio=0.1",
         {"data.prompt": "{question}", "data.chat": True, "data.messages": None, "learner.parallel.dp": 2,
          "optimizer.schedule.warmup_steps": None, "data.max_prompt_tokens": 1024}),
        (f"{SFT}{STEPS} optim.lr_warmup_steps_ratio=0.4", {"optimizer.schedule.warmup_steps": 1}),
    ],
)  # fmt: skip
def test_what_its_trainers_do(command: str, expected: dict[str, Json], convert: Convert) -> None:
    found = convert("run.sh", command).options
    assert {key: found.get(key) for key in expected} == expected


@pytest.mark.parametrize(
    ("words", "kind", "says"),
    [
        (f"{PPO} critic.ppo_epochs=2", Kind.REFUSED, "as often as the policy, by actor.ppo_epochs"),
        (f"{PPO} critic.ppo_epochs=1 {ACTOR}.ppo_epochs=1", Kind.MAPS, "that of the policy"),
        (f"{PPO} algorithm.adv_estimator=gae", Kind.MAPS, "algorithm: ppo"),
        (f"{RUN} trainer.critic_warmup=5", Kind.DIFFERS, "4 steps without a gain"),
        (f"{RUN} {STEPS} trainer.total_epochs=1", Kind.REFUSED, "say run.max_epochs=1"),
        (f"{RUN} {ACTOR}.loss_agg_mode=seq-mean-token-sum-norm {ACTOR}.loss_scale_factor=9", Kind.REFUSED,
         "divides by sampling.max_tokens"),
        (f"{RUN} {ACTOR}.entropy_coeff=0", Kind.MAPS, "off, as it is here"),
        (f"{RUN} {REWARD}.path=my.py {REWARD}.reward_kwargs.scale=2", Kind.LOST, "called without them"),
        (f"{RUN} custom_reward_function.reward_kwargs.scale=2", Kind.IGNORED, "no file with a reward function"),
        (f"{RUN} {LOSS}=cispo", Kind.UNFINISHED, "bounded below, too, at 0.8"),
        (f"{RUN} {ACTOR}.clip_ratio_low=1.0 {LOSS}=cispo", Kind.MAPS, ""),
        (f"{RUN} data.train_batch_size=256 {LOSS}=cispo", Kind.MAPS, ""),
        (f"{RUN} algorithm.use_pf_ppo=True", Kind.LOST, "as they are sampled"),
        (f"{RUN} algorithm.use_pf_ppo=False", Kind.MAPS, "off, as it is here"),
    ],
)  # fmt: skip
def test_what_is_said(words: str, kind: Kind, says: str, convert: Convert) -> None:
    key = words.split()[-1].partition("=")[0] if "critic.ppo_epochs=1" not in words else "critic.ppo_epochs"
    [entry] = [entry for entry in convert("run.sh", words).entries if entry.theirs == key]
    assert (entry.kind, says in entry.reason) == (kind, True), entry.reason


@pytest.mark.parametrize(
    "words", ["algorithm.adv_estimator=remax", f"{ACTOR}.loss_agg_mode=seq-mean-token-sum", "algorithm.use_pf_ppo=True"]
)
def test_another_objective_is_an_exit_code(words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.sh").write_text(f"{RUN} {words}")
    assert main(["convert", str(tmp_path / "run.sh")]) == 2
    named = words.replace("=", " = ")
    assert f"the recipe trains something else than theirs, until you decide on {named}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "lost"),
    [
        ("use_kl_loss=True", [f"{ACTOR}.use_kl_loss"]),  # low_var_kl, which is k3
        ("use_kl_loss=True ACTOR.kl_loss_type=k3+", []),
        ("use_kl_loss=True ACTOR.kl_loss_type=mse", []),
        ("use_kl_loss=True ACTOR.kl_loss_type=kl", [f"{ACTOR}.kl_loss_type"]),
        ("use_kl_loss=False ACTOR.kl_loss_type=kl algorithm.use_kl_in_reward=True", []),
        ("use_kl_loss=False algorithm.use_kl_in_reward=True algorithm.kl_penalty=mse", ["algorithm.kl_penalty"]),
    ],
)
def test_another_gradient_of_the_kl_is_said(words: str, lost: list[str], convert: Convert) -> None:
    converted = convert("run.sh", f"{RUN} ACTOR.{words}".replace("ACTOR", ACTOR))
    assert [one.theirs for kind in (Kind.LOST, Kind.UNFINISHED) for one in converted.list_kind(kind)] == lost


def test_a_horizon_is_a_gain_at_the_size_of_a_step(convert: Convert) -> None:
    step = f"{RUN}{IN_REWARD}adaptive data.train_batch_size=64 actor_rollout_ref.actor.ppo_mini_batch_size=64 "
    words = f"{step}algorithm.kl_ctrl.horizon="
    assert convert("run.sh", f"{words}1000").options["grpo.kl.adaptive.gain"] == 64 * 4 / 1000
    assert convert("run.sh", step).options["grpo.kl.adaptive.gain"] == 64 * 4 / 10_000
    converted = convert("run.sh", f"{words}100 algorithm.kl_ctrl.target_kl=0.1")
    assert "grpo.kl.adaptive.target" not in converted.options
    assert any(key.startswith("algorithm.kl_ctrl.target_kl") for key in converted.list_changes())


@pytest.mark.parametrize("first", [True, False])
def test_steps_of_a_warmup_go_before_a_share(first: bool, convert: Convert) -> None:
    optim = "actor_rollout_ref.actor.optim"
    words = [f"{optim}.lr_warmup_steps_ratio=0.5", f"{optim}.lr_warmup_steps=10"]
    steps = f"{RUN}trainer.total_training_steps=100 "
    converted = convert("run.sh", steps + " ".join(words if first else words[::-1]))
    alone, option = convert("run.sh", steps + words[1]), "policy.schedule.warmup_steps"
    assert converted.options[option] == alone.options[option]
    assert {entry.theirs: entry.kind for entry in converted.entries}[f"{optim}.lr_warmup_steps_ratio"] == Kind.IGNORED


def test_a_critic_has_a_schedule_and_what_ppo_does_not_train_is_said(convert: Convert) -> None:
    words = (
        "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=gae trainer.total_training_steps=100 "
        "critic.optim.lr_scheduler_type=cosine critic.optim.min_lr_ratio=0.1 "
        "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean"
    )
    converted = convert("run.sh", words)
    schedule = [converted.options[f"critic.schedule.{name}"] for name in ("decay", "final_fraction")]
    assert schedule == ["cosine", 0.1]
    assert any(key.startswith("actor_rollout_ref.actor.loss_agg_mode") for key in converted.list_changes())
    discounted = RUN.replace("=grpo", "=reinforce_plus_plus") + "algorithm.gamma=0.9"
    assert any(key.startswith("algorithm.gamma") for key in convert("run.sh", discounted).list_changes())
