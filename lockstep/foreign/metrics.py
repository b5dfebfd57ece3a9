"""The metrics of other libraries, and what each is called here; docs/coming_from.md is made of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """A metric of another library.

    Attributes:
        theirs: Its name there, without what its library puts before all names.
        ours: Its name here.
        of: The trainers that log it, where others of that library do not.
        note: In what it differs.
    """

    theirs: str
    ours: str
    of: str = ""
    note: str = ""


METRICS: Mapping[str, Mapping[str, tuple[Metric, ...]]] = {
    "PPO and GRPO": {
        "NeMo RL": (
            Metric("reward", "train/shaped_reward", note="shaped"),
            Metric("advantages/mean", "train/advantage", note="after it"),
            Metric("mean_gen_tokens_per_sample", "train/response_length"),
            Metric("max_gen_tokens_per_sample", "train/response_length_max"),
            Metric("truncation_rate", "train/truncated"),
            Metric("loss", "policy/loss"),
            Metric("kl_penalty", "policy/kl"),
            Metric("probs_ratio", "policy/probs_ratio"),
            Metric("probs_ratio_min", "policy/probs_ratio_min"),
            Metric("probs_ratio_max", "policy/probs_ratio_max"),
            Metric("approx_entropy", "policy/approx_entropy"),
            Metric("grad_norm", "policy/grad_norm"),
            Metric("lr", "policy/lr"),
            Metric("critic/loss", "critic/loss"),
            Metric("critic/vf_clipfrac", "critic/vf_clipfrac"),
            Metric("critic/values_mean", "critic/values_mean"),
            Metric("critic/returns_mean", "critic/returns_mean"),
            Metric("critic/explained_var", "critic/explained_variance"),
            Metric("token_mult_prob_error", "agreement/token_mult_prob_error"),
            Metric("gen_kl_error", "agreement/sampler_kl_k3"),
            Metric("sampling_importance_ratio", "agreement/weight"),
            Metric("num_masked_seqs_by_logprob_error", "agreement/sequences_masked"),
            Metric("avg_trajectory_age", "agreement/weights_age"),
            Metric("validation/accuracy", "validation/accuracy"),
        ),
        "verl": (
            Metric("critic/score/mean", "train/reward"),
            Metric("critic/rewards/mean", "train/shaped_reward"),
            Metric("critic/advantages/mean", "train/advantage", note="after it"),
            Metric("response_length/mean", "train/response_length"),
            Metric("response_length/max", "train/response_length_max"),
            Metric("response_length/clip_ratio", "train/truncated"),
            Metric("actor/pg_loss", "policy/loss"),
            Metric("actor/kl_loss", "policy/kl"),
            Metric("actor/pg_clipfrac", "policy/clip_fraction"),
            Metric("actor/ppo_kl", "policy/approx_kl"),
            Metric("actor/entropy", "policy/entropy"),
            Metric("actor/grad_norm", "policy/grad_norm"),
            Metric("actor/lr", "policy/lr"),
            Metric("critic/vf_loss", "critic/loss"),
            Metric("critic/vf_clipfrac", "critic/vf_clipfrac"),
            Metric("critic/vpred_mean", "critic/values_mean"),
            Metric("critic/returns/mean", "critic/returns_mean"),
            Metric("critic/vf_explained_var", "critic/explained_variance"),
            Metric("rollout_corr/kl", "agreement/sampler_kl_k1"),
            Metric("rollout_corr/k3_kl", "agreement/sampler_kl_k3"),
            Metric("rollout_corr/rollout_is_eff_sample_size", "agreement/sequence_ess"),
            Metric("rollout_corr/rollout_is_mean", "agreement/weight"),
            Metric("rollout_corr/rollout_rs_masked_fraction", "agreement/sequences_masked", note="a share"),
            Metric("mean@N", "validation/accuracy"),
            Metric("mean@N", "validation/reward"),
        ),
        "TRL": (
            Metric("reward", "train/reward"),
            Metric("objective/scores", "train/reward", of="PPO"),
            Metric("objective/rlhf_reward", "train/shaped_reward", of="PPO"),
            Metric("objective/kl", "train/kl", of="PPO", note="summed over a response"),
            Metric("completions/mean_length", "train/response_length"),
            Metric("completions/max_length", "train/response_length_max"),
            Metric("completions/clipped_ratio", "train/truncated"),
            Metric("loss", "policy/loss"),
            Metric("loss/policy_avg", "policy/loss", of="PPO"),
            Metric("kl", "policy/kl"),
            Metric("clip_ratio/region_mean", "policy/clip_fraction"),
            Metric("policy/clipfrac_avg", "policy/clip_fraction", of="PPO"),
            Metric("policy/approxkl_avg", "policy/approx_kl", of="PPO"),
            Metric("val/ratio", "policy/probs_ratio", of="PPO"),
            Metric("entropy", "policy/entropy"),
            Metric("policy/entropy_avg", "policy/entropy", of="PPO"),
            Metric("objective/entropy", "policy/approx_entropy", of="PPO", note="summed over a response"),
            Metric("grad_norm", "policy/grad_norm"),
            Metric("learning_rate", "policy/lr"),
            Metric("lr", "policy/lr", of="PPO"),
            Metric("loss/value_avg", "critic/loss", of="PPO"),
            Metric("val/clipfrac_avg", "critic/vf_clipfrac", of="PPO"),
            Metric("sampling/sampling_logp_difference/max", "agreement/max_abs_logprob_diff"),
            Metric("sampling/importance_sampling_ratio/mean", "agreement/weight"),
        ),
        "OpenRLHF": (
            Metric("reward", "train/reward"),
            Metric("response_length", "train/response_length"),
            Metric("dynamic_filtering_pass_rate", "train/prompts_drawn", note="the share kept"),
            Metric("policy_loss", "policy/loss"),
            Metric("kl", "policy/kl"),
            Metric("ppo_clip_ratio", "policy/clip_fraction"),
            Metric("ppo_kl", "policy/approx_kl"),
            Metric("entropy_loss", "policy/entropy"),
            Metric("actor_lr", "policy/lr"),
            Metric("critic_loss", "critic/loss"),
            Metric("values", "critic/values_mean"),
        ),
        "NeMo-Aligner": (
            Metric("rewards_with_kl", "train/shaped_reward"),
            Metric("init_policy_kl", "train/kl"),
            Metric("grad_norm", "policy/grad_norm"),
            Metric("lr", "policy/lr"),
            Metric("val_global_rewards", "validation/reward"),
            Metric("val_rewards", "validation/reward"),
        ),
    },
    "SFT, preferences and reward models": {
        "NeMo RL": (
            Metric("loss", "policy/loss"),
            Metric("val_loss", "validation/loss"),
            Metric("loss", "train/loss"),
            Metric("preference_loss", "train/preference_loss"),
            Metric("sft_loss", "train/sft_loss"),
            Metric("accuracy", "train/acc"),
            Metric("rewards_chosen_mean", "train/rewards_chosen_mean"),
            Metric("rewards_rejected_mean", "train/rewards_rejected_mean"),
        ),
        "verl": (
            Metric("train/loss", "policy/loss"),
            Metric("val/loss", "validation/loss"),
        ),
        "TRL": (
            Metric("loss", "policy/loss"),
            Metric("eval_loss", "validation/loss"),
            Metric("loss", "train/loss"),
            Metric("rewards/accuracies", "train/acc"),
            Metric("accuracy", "train/acc", of="of reward models"),
            Metric("rewards/chosen", "train/rewards_chosen_mean"),
            Metric("rewards/rejected", "train/rewards_rejected_mean"),
            Metric("mean_reward", "train/rewards_all_mean", of="of reward models"),
        ),
        "OpenRLHF": (
            Metric("eval/eval_loss", "validation/loss"),
            Metric("loss", "train/loss"),
            Metric("nll_loss", "train/sft_loss"),
            Metric("acc", "train/acc"),
            Metric("chosen_reward", "train/rewards_chosen_mean"),
            Metric("reject_reward", "train/rewards_rejected_mean"),
            Metric("eval/reward_mean", "train/rewards_all_mean"),
            Metric("eval/reward_std", "train/rewards_all_std"),
        ),
        "NeMo-Aligner": (
            Metric("loss", "policy/loss"),
            Metric("val_loss", "validation/loss"),
            Metric("loss", "train/loss"),
            Metric("preference_loss", "train/preference_loss"),
            Metric("sft_loss", "train/sft_loss"),
            Metric("acc", "train/acc"),
            Metric("rewards_chosen_mean", "train/rewards_chosen_mean", note="without β"),
            Metric("rewards_rejected_mean", "train/rewards_rejected_mean", note="without β"),
            Metric("rewards_all_mean", "train/rewards_all_mean"),
            Metric("rewards_all_std", "train/rewards_all_std"),
        ),
    },
}
"""Tables by heading of the page, then by library, as people write its name."""
