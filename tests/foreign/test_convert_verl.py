"""What verl's trainer does beyond single keys: adaptive KL, GSPO's mean, IcePop."""

from __future__ import annotations

import pytest
from conversions import Convert

from lockstep.foreign.words import Kind

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
