"""A sentence on each metric, shown above its curve."""

from __future__ import annotations

import re

BY_NAME = {
    "train/reward": "Mean score of the responses sampled in this step.",
    "train/reward_min": "Lowest score of a sampled response.",
    "train/reward_max": "Highest score of a sampled response.",
    "train/shaped_reward": (
        "The objective: the shaped score, minus β·KL if the KL penalty is in the reward."
    ),
    "train/clamped": (
        "Share of responses whose score lies outside reward_scaling.source and is clamped to its "
        "ends."
    ),
    "train/kl": "Mean KL divergence of the policy from its reference, in nats per token.",
    "train/kl_coef": "Coefficient β of the KL penalty, if adaptive.",
    "train/advantage": "Mean advantage of the trained tokens, before whitening.",
    "train/advantage_squared": (
        "Mean squared advantage of the trained tokens: the strength of this step's learning signal."
    ),
    "train/trained_tokens": "Tokens that the loss counts in this step.",
    "train/prompts_drawn": "Prompts drawn for this step, including discarded ones.",
    "train/no_verdict": ("Responses without a score; they are left out of training."),
    "train/truncated": "Share of responses truncated by the token limit.",
    "train/reward_cut_off": "Mean score of the truncated responses.",
    "train/cut_off_as_is": (
        "1: the task scores truncated responses as they are; 0: it gives them a separate reward."
    ),
    "train/best_reward": "Mean reward of the best policy, as declared by the task.",
    "train/reward_error": "Standard error of this step's mean score, over prompts.",
    "train/epoch": "Pass over the training data, counted from 0.",
    "train/iteration": "Self-rewarding iteration of this step, counted from 0.",
    "train/grad_norm": "Norm of the gradient before clipping.",
    "train/environment_faults": "Share of episodes that ended because the environment failed.",
    "train/turns": "Mean number of turns per episode.",
    "train/paths": "Mean number of token sequences per episode of an agent.",
    "train/forks": "Mean number of times that an agent's conversation went on from a changed past.",
    "train/roots": "Mean number of conversations per episode of an agent.",
    "train/turns_dropped": "Turns that agents discarded and asked again; they are not trained on.",
    "train/turns_untrainable": (
        "Turns without a log-probability for each of their tokens; they are not trained on."
    ),
    "train/turns_retokenized": "Trained tokens that differ from the drawn ones; always 0.",
    "train/tool_calls": "Mean number of tool calls per episode.",
    "train/malformed_calls": (
        "Share of tool calls that are malformed: invalid JSON or invalid arguments."
    ),
    "train/judge_pair_share": (
        "Share of preference pairs that compare judgments rather than answers."
    ),
    "train/judge_variance": "Mean disagreement among the judgments of one answer.",
    "train/top_class_share": (
        "Share of the most frequent verdict; near 1, the judge gives everything the same verdict."
    ),
    "validation/accuracy": (
        "Share of held-out questions answered correctly; dotted lines: its 95 % interval."
    ),
    "validation/reward": "Mean score on held-out prompts; dotted lines: its 95 % interval.",
    "validation/loss": "Loss on held-out rows.",
    "validation/perplexity": "Perplexity of held-out rows: e to the mean loss per token.",
    "validation/judge_exact": "Share of known scores that the judge reproduces exactly.",
    "validation/judge_bias": "Mean difference between the judge's scores and the known scores.",
    "validation/meta_judge_accuracy": "Share of known winners that the meta-judge picks.",
    "critic/loss": "Squared error of the critic's values against returns.",
    "critic/explained_variance": (
        "Explained variance of the returns: 1 is perfect, 0 no better than predicting their mean."
    ),
    "critic/vf_clipfrac": "Share of values whose update was clipped.",
    "critic/values_mean": "Mean of the critic's values over trained tokens.",
    "critic/returns_mean": "Mean return, which the critic learns to predict.",
    "policy/loss": (
        "The policy's loss; with sampled rewards, a surrogate that means little by itself."
    ),
    "policy/entropy": (
        "Mean entropy of the policy's next-token distribution, in nats; near 0, it no longer "
        "explores."
    ),
    "policy/approx_entropy": (
        "Entropy estimated from the sampled tokens' log-probabilities, in nats."
    ),
    "policy/approx_kl": (
        "KL divergence by which this step's updates moved the policy, in nats per token."
    ),
    "policy/kl": (
        "Mean KL divergence from the distribution that the loss compares with, in nats per token."
    ),
    "policy/clip_fraction": "Share of tokens whose probability ratio was clipped.",
    "policy/probs_ratio": (
        "Mean ratio of a token's probability after the update to its probability before."
    ),
    "policy/probs_ratio_min": (
        "Smallest ratio of a token's probability after the update to its probability before."
    ),
    "policy/probs_ratio_max": (
        "Largest ratio of a token's probability after the update to its probability before."
    ),
    "policy/same_first_choice": (
        "Share of tokens for which teacher and student have the same likeliest token."
    ),
    "policy/named_by_teacher": ("The student's probability of the teacher's top-k tokens."),
    "agreement/token_mult_prob_error": (
        "Mean of e^|Δ| over tokens, with Δ the gap between learner and sampler; 1 is agreement; "
        "dashed: its bound."
    ),
    "agreement/max_abs_logprob_diff": (
        "Largest gap between learner and sampler on a token, in nats."
    ),
    "agreement/sampler_kl_k1": (
        "KL(sampler ‖ learner) estimated by k1, in nats per token; it may be below 0."
    ),
    "agreement/sampler_kl_k3": "KL(sampler ‖ learner) estimated by k3, in nats per token.",
    "agreement/sequence_ess": (
        "Effective sample size under importance weights, as a share of sequences; 1 if both sides "
        "agree."
    ),
    "agreement/tokens": "Tokens with log-probabilities from both sampler and learner.",
    "agreement/mismatches": (
        "Tokens whose log-probabilities are not bitwise equal; logged if both sides are exact."
    ),
    "agreement/not_recomputed": (
        "Tokens with a log-probability from the sampler only; logged if both sides are exact."
    ),
    "agreement/bound": "The bound on the mean of e^|Δ|.",
    "agreement/breach": "1 in a step that exceeded the bound.",
    "agreement/weights_age": (
        "Number of versions by which the sampler's weights lag the learner's."
    ),
    "agreement/weight": (
        "Mean importance weight that corrects for the sampler-learner mismatch of a token."
    ),
    "agreement/sequences_masked": (
        "Responses left out of training because sampler and learner disagreed on them."
    ),
    "weight_sync/version": "Version of the weights that the sampler attested.",
    "weight_sync/attested": "Tensors that the sampler attested after the weight sync.",
    "weight_sync/read_whole": "Tensors read back in full from the sampler.",
    "weight_sync/read_in_part": "Tensors read back in part from the sampler.",
    "weight_sync/received_only": (
        "Tensors that cannot be read back; their received bytes were compared instead."
    ),
    "weight_sync/probe_gap": (
        "Mean log-probability difference on fixed sequences that both sides score."
    ),
    "weight_sync/probe_gap_max": "Largest log-probability difference on those fixed sequences.",
    "watch/mismatch": "Mean of e^|Δ| used by the drift test.",
    "watch/bound": "Upper bound of a healthy mismatch, learned from the first steps.",
    "watch/e_value": (
        "Evidence (e-value) of the drift test; it raises an alarm above 1 / false-alarm rate."
    ),
    "watch/rescored": (
        "At the alarm: mismatch of this step's tokens when the sampler rescores them."
    ),
    "watch/resent": "At the alarm: the same mismatch after the weights were sent again.",
    "watch/kept_then": "At the alarm: mismatch of the saved sequences when they were saved.",
    "watch/kept_now": "At the alarm: mismatch of the saved sequences now.",
    "watch/alarm": "1 from the step in which the drift test raised its alarm.",
    "prompts/attempts": "Attempts to write new prompts.",
    "prompts/made": "New prompts that were kept.",
    "prompts/empty": "New prompts discarded because they were empty.",
    "prompts/known": "New prompts discarded because the data already has them.",
    "prompts/repeated": "New prompts discarded as duplicates of other new prompts.",
    "prompts/request_too_long": "Requests for a new prompt that did not fit the context.",
    "prompts/too_long": "New prompts discarded because they were too long.",
    "prompts/unfinished": "New prompts discarded because they were truncated.",
    "meta_judge/consistent": "Share of comparisons with the same winner in both orders.",
    "meta_judge/consistent_by_chance": (
        "Share of comparisons expected to be consistent by chance in this iteration."
    ),
    "meta_judge/left_out": (
        "Pairs of judgments left out because the meta-judge is not yet better than chance."
    ),
    "meta_judge/luck": (
        "Probability that a judge without skill is as consistent; above .01, its pairs are left "
        "out."
    ),
    "meta_judge/elo_gap": "Mean Elo difference within a pair of judgments.",
    "meta_judge/first_wins": (
        "Share of comparisons won by the judgment shown first; 0.5 is unbiased."
    ),
    "meta_judge/too_long": (
        "Answers left out because the meta-judge prompts for their judgments are too long."
    ),
    "meta_judge/undecided": "Share of answers without a pair of judgments.",
}
"""Sentences by full metric name."""

BY_LAST_WORD = {
    "loss": "Loss of this step.",
    "lr": "Learning rate.",
    "grad_norm": "Norm of the gradient before clipping.",
    "updates_skipped": "Updates skipped because their batch had nothing to train on.",
    "updates_overflowed": (
        "Updates skipped because a gradient overflowed fp16; the loss scale was halved."
    ),
    "loss_scale": "Loss scale in the backward pass, in fp16.",
    "acc": "Share of pairs ranked correctly: the chosen answer above the rejected one.",
    "preference_loss": "Preference term of the loss.",
    "sft_loss": "Supervised term of the loss, on chosen answers.",
    "rewards_all_mean": "Mean reward over all answers of the pairs.",
    "rewards_all_std": "Standard deviation of rewards over all answers of the pairs.",
    "rewards_chosen_mean": "Mean reward of the chosen answers.",
    "rewards_rejected_mean": "Mean reward of the rejected answers.",
    "reference_point": (
        "KTO's reference point: the KL from the reference policy over mismatched answers."
    ),
    "rewards_desirable": "Mean reward of the answers labeled good.",
    "rewards_undesirable": "Mean reward of the answers labeled bad.",
    "lengths_desirable": "Mean number of tokens of the answers labeled good.",
    "lengths_undesirable": "Mean number of tokens of the answers labeled bad.",
    "chosen_lengths": "Mean number of tokens of the chosen answers.",
    "reject_lengths": "Mean number of tokens of the rejected answers.",
    "response_lengths": "Mean number of tokens per answer.",
    "response_length": "Mean number of tokens per response.",
    "response_length_max": "Tokens of the longest response.",
    "generated_rewards": "Mean score that the model, as a judge, gives its answers.",
    "generated_rewards_std": (
        "Standard deviation of the scores that the model, as a judge, gives its answers."
    ),
    "chosen_generated_rewards": "Mean score of the answers used as chosen.",
    "rejected_generated_rewards": "Mean score of the answers used as rejected.",
    "bad_samples_per_GBS": "Share of prompts without a preference pair.",
    "bad_ends_per_GBS": "Share of truncated answers.",
    "parse_failures": "Share of the judge's replies without a readable verdict.",
    "truncated_judge_prompts": "Share of answers shown truncated to the judge.",
    "no_verdict": "Share of judgments without a verdict.",
    "ok": "Share of prompts whose answers form a pair.",
    "tie": "Share of prompts whose answers all have the same score.",
    "identical": "Share of prompts whose best and worst answers are the same text.",
    "unfinished": "Share of prompts with too few finished answers.",
    "unscored": "Share of prompts with too few scored answers.",
}
"""Sentences by a name's last word, for names without their own sentence."""

BY_PATTERN = (
    (
        re.compile(r"(?:validation/)?reward/(?P<part>\w+)"),
        "Mean unweighted reward of the sum's part {part}, over responses with a verdict.",
    ),
    (
        re.compile(r"agreement/gap_from_(?P<low>\d+)"),
        "Mean |Δ| of tokens from position {low} of their sequence to the next range, in nats.",
    ),
    (
        re.compile(r"reward_no_verdict/(?P<part>\w+)"),
        "Responses for which the sum's part {part} has no verdict.",
    ),
    (
        re.compile(r".*/no_verdict_(?P<why>\w+)"),
        "Judgments without a verdict because of: {why}.",
    ),
    (
        re.compile(r".*/pass@(?P<k>\w+)"),
        "Probability that at least one of {k} responses to a held-out prompt is correct.",
    ),
    (
        re.compile(r".*/maj@(?P<k>\w+)"),
        "Share of held-out prompts whose majority answer of {k} is correct.",
    ),
    (re.compile(r"(?P<of>.*)_low"), "Lower end of the 95 % interval of {of}."),
    (re.compile(r"(?P<of>.*)_high"), "Upper end of the 95 % interval of {of}."),
)


def describe_metric(name: str) -> str | None:
    """A sentence on a metric; None if it is not from Lockstep's own algorithms."""
    epoch = re.fullmatch(r"epoch_(\d+)/(.+)", name)
    if epoch:
        sentence = describe_metric(epoch[2])
        return (
            sentence
            and f"In pass {epoch[1]} over the step's batch: {sentence[0].lower()}{sentence[1:]}"
        )
    aside = re.fullmatch(r"staleness/(.+)", name)
    if aside:
        return "As under agreement/, between the current policy and the older one that sampled."
    held = re.fullmatch(r"(?:val|validation)/(.+)", name)
    found = (
        BY_NAME.get(name)
        or (held and BY_NAME.get(held[1]))
        or BY_LAST_WORD.get(name.rsplit("/", 1)[-1])
    )
    if not found and held:
        found = BY_NAME.get(f"train/{held[1]}")
    if found:
        return found
    for pattern, sentence in BY_PATTERN:
        match = pattern.fullmatch(name)
        if match:
            words = {key: text.replace("_", " ") for key, text in match.groupdict().items()}
            return sentence.format(**words)
    return None
