"""A sentence on each metric, which stands above its curve."""

from __future__ import annotations

import re

BY_NAME = {
    "train/reward": "Mean score of the responses that were sampled for this step.",
    "train/reward_min": "Lowest score of a sampled response.",
    "train/reward_max": "Highest score of a sampled response.",
    "train/shaped_reward": (
        "The reward that is maximized: the score after shaping, less β·KL where that is part of it."
    ),
    "train/clamped": (
        "Share of responses whose score lies outside reward_scaling.source and "
        "becomes one of its ends."
    ),
    "train/kl": "Mean KL divergence of the policy from its reference, in nats per token.",
    "train/kl_coef": "Coefficient β of the KL penalty, where it is adapted.",
    "train/advantage": "Mean advantage of the trained tokens, before whitening.",
    "train/advantage_squared": (
        "Mean squared advantage of the trained tokens: how strongly this step pulls."
    ),
    "train/trained_tokens": "Tokens that the loss counts in this step.",
    "train/prompts_drawn": "Prompts drawn for this step, those that were thrown away included.",
    "train/no_verdict": (
        "Responses to which the reward could give no score; they are left out of training."
    ),
    "train/truncated": "Share of responses cut off by the token limit before their end.",
    "train/reward_cut_off": "Mean score of the responses that were cut off.",
    "train/cut_off_as_is": (
        "1: the task declares that cut-off responses are scored as they are; 0: another reward."
    ),
    "train/best_reward": "What the best policy earns on average, as the task declares it.",
    "train/reward_error": "Standard error of this step's mean score, over prompts.",
    "train/epoch": "The pass over the training data, counted from 0.",
    "train/iteration": "The iteration of self-rewarding that this step belongs to, counted from 0.",
    "train/grad_norm": "Norm of the gradient before it is clipped.",
    "train/environment_faults": "Share of episodes that ended because the environment failed.",
    "train/turns": "Mean number of turns of an episode.",
    "train/tool_calls": "Mean number of calls of tools in an episode.",
    "train/malformed_calls": (
        "Share of those calls that could not be made: no JSON, or not what the tool takes."
    ),
    "train/judge_pair_share": (
        "Share of preference pairs that are about judgements rather than about answers."
    ),
    "train/judge_variance": "Mean disagreement of the judgements of one answer.",
    "train/top_class_share": (
        "Share of the verdict given most often: near 1 the judge says the same of everything."
    ),
    "validation/accuracy": (
        "Share of held-out questions answered right; dotted lines end its 95 % interval."
    ),
    "validation/reward": "Mean score on held-out prompts; dotted lines end its 95 % interval.",
    "validation/loss": "Loss on held-out rows.",
    "validation/perplexity": "Perplexity of held-out rows: e to the mean loss of a token.",
    "validation/judge_exact": "Share of known scores that the judge gives exactly.",
    "validation/judge_bias": "How much higher the judge scores than the known scores, on average.",
    "validation/meta_judge_accuracy": "Share of known winners that the meta-judge names.",
    "critic/loss": "Squared error of the critic's values against returns.",
    "critic/explained_variance": (
        "Share of the returns' variance that the values explain: 1 is perfect, 0 no better than "
        "their mean."
    ),
    "critic/vf_clipfrac": "Share of values whose update was clipped.",
    "critic/values_mean": "Mean of the critic's values over trained tokens.",
    "critic/returns_mean": "Mean return, which the critic learns to predict.",
    "policy/loss": (
        "The policy's loss; with sampled rewards a surrogate that means little by itself."
    ),
    "policy/entropy": (
        "Mean entropy of the policy's next-token distribution, in nats: near 0 it "
        "no longer explores."
    ),
    "policy/approx_entropy": (
        "Entropy estimated from the sampled tokens' log-probabilities, in nats."
    ),
    "policy/approx_kl": (
        "KL divergence that this step's updates moved the policy, in nats per token."
    ),
    "policy/kl": (
        "Mean KL divergence from the other distribution that the loss compares with, in "
        "nats per token."
    ),
    "policy/clip_fraction": "Share of tokens whose probability ratio was clipped.",
    "policy/probs_ratio": (
        "Mean ratio of the updated policy's probability of a token to that before the update."
    ),
    "policy/probs_ratio_min": (
        "Smallest ratio of a token's probability after the update to that before."
    ),
    "policy/probs_ratio_max": (
        "Largest ratio of a token's probability after the update to that before."
    ),
    "policy/same_first_choice": (
        "Share of tokens where the teacher's likeliest token is the student's, too."
    ),
    "policy/named_by_teacher": (
        "The student's probability of the tokens that the teacher named, its top k."
    ),
    "agreement/token_mult_prob_error": (
        "Mean of e^|Δ| over tokens, Δ the gap between learner and sampler: 1 is agreement; "
        "dashed: its bound."
    ),
    "agreement/max_abs_logprob_diff": (
        "Largest gap of a token between learner and sampler, in nats."
    ),
    "agreement/sampler_kl_k1": (
        "KL(sampler ‖ learner) estimated by k1, in nats per token; it may be below 0."
    ),
    "agreement/sampler_kl_k3": "KL(sampler ‖ learner) estimated by k3, in nats per token.",
    "agreement/sequence_ess": (
        "Effective share of sequences under importance weights: 1 if both sides agree."
    ),
    "agreement/tokens": "Tokens that both sides scored.",
    "agreement/mismatches": (
        "Tokens whose log-probabilities differ in a bit; logged where both sides are exact."
    ),
    "agreement/not_recomputed": (
        "Tokens that only the sampler scored; logged where both sides are exact."
    ),
    "agreement/bound": "The bound on the mean of e^|Δ|.",
    "agreement/breach": "1 in a step that broke the bound.",
    "agreement/weights_age": (
        "Versions by which the sampler's weights are older than the learner's."
    ),
    "agreement/weight": (
        "Mean importance weight that corrects a token for the difference of the two sides."
    ),
    "agreement/sequences_masked": (
        "Responses left out of training because the two sides disagreed on them."
    ),
    "refit/version": "Version of the weights that the sampler attested.",
    "refit/attested": "Tensors that the sampler attested after the weights were sent.",
    "refit/read_whole": "Tensors that were read back whole from the sampler.",
    "refit/read_in_part": "Tensors that were read back in part from the sampler.",
    "refit/received_only": (
        "Tensors that cannot be read back, so that the bytes which arrived were compared."
    ),
    "refit/probe_gap": (
        "Mean difference of log-probabilities of fixed sequences that both sides score."
    ),
    "refit/probe_gap_max": "Largest difference of such a log-probability.",
    "watch/mismatch": "Mean of e^|Δ| as the drift test reads it.",
    "watch/bound": "The most that a healthy mismatch reaches, learned from the first steps.",
    "watch/e_value": (
        "Evidence of the drift test: an alarm is raised once it exceeds one over the "
        "false-alarm rate."
    ),
    "watch/rescored": (
        "At the alarm: the mismatch of this step's tokens when the sampler reads them."
    ),
    "watch/resent": "At the alarm: the same after the same weights were sent again.",
    "watch/kept_then": "At the alarm: the mismatch of the kept sequences when they were kept.",
    "watch/kept_now": "At the alarm: the mismatch of the kept sequences now.",
    "watch/alarm": "1 from the step on in which the drift test raised its alarm.",
    "prompts/attempts": "Attempts at making new prompts.",
    "prompts/made": "New prompts that were kept.",
    "prompts/empty": "New prompts thrown away because they were empty.",
    "prompts/known": "New prompts thrown away because they are in the data already.",
    "prompts/repeated": "New prompts thrown away because they were made twice.",
    "prompts/request_too_long": "Requests for a new prompt that did not fit the context.",
    "prompts/too_long": "New prompts thrown away because they are too long.",
    "prompts/unfinished": "New prompts thrown away because they were cut off.",
    "meta_judge/consistent": "Share of comparisons with the same winner in both orders.",
    "meta_judge/consistent_by_chance": (
        "Share that would be consistent by chance, from this iteration's comparisons."
    ),
    "meta_judge/left_out": (
        "Pairs of judgements left out because the meta-judge has shown no skill yet."
    ),
    "meta_judge/luck": (
        "Chance that a judge without skill is as consistent; above .01 its pairs are left out."
    ),
    "meta_judge/elo_gap": "Mean difference of the Elo ratings of a pair of judgements.",
    "meta_judge/first_wins": (
        "Share of comparisons that the judgement shown first wins; one half is fair."
    ),
    "meta_judge/too_long": (
        "Answers left out because the questions about their judgements are too long."
    ),
    "meta_judge/undecided": "Share of answers that gave no pair of judgements.",
}
"""Sentences by whole names."""

BY_LAST_WORD = {
    "loss": "Loss of this step.",
    "lr": "Learning rate.",
    "grad_norm": "Norm of the gradient before it is clipped.",
    "updates_skipped": "Updates that were skipped because their batch held nothing to train on.",
    "updates_overflowed": (
        "Updates that were skipped because a gradient overflowed fp16; the loss's scale was halved."
    ),
    "loss_scale": "Factor of the mean loss in the backward pass, in fp16.",
    "acc": "Share of pairs ranked right: the chosen answer above the rejected one.",
    "preference_loss": "The part of the loss that prefers chosen answers to rejected ones.",
    "sft_loss": "The part of the loss that imitates chosen answers.",
    "rewards_all_mean": "Mean of the rewards of all answers of the pairs.",
    "rewards_all_std": "Standard deviation of the rewards of all answers of the pairs.",
    "rewards_chosen_mean": "Mean reward of the chosen answers.",
    "rewards_rejected_mean": "Mean reward of the rejected answers.",
    "reference_point": (
        "The KL from the reference policy over mismatched answers, from which KTO counts gains."
    ),
    "rewards_desirable": "Mean reward of the answers that are labeled good.",
    "rewards_undesirable": "Mean reward of the answers that are labeled bad.",
    "lengths_desirable": "Mean tokens of the answers that are labeled good.",
    "lengths_undesirable": "Mean tokens of the answers that are labeled bad.",
    "chosen_lengths": "Mean tokens of the chosen answers.",
    "reject_lengths": "Mean tokens of the rejected answers.",
    "response_lengths": "Mean tokens of the answers.",
    "response_length": "Mean tokens of a response.",
    "response_length_max": "Tokens of the longest response.",
    "generated_rewards": "Mean score that the model as a judge gives its answers.",
    "generated_rewards_std": (
        "Standard deviation of the scores that the model as a judge gives its answers."
    ),
    "chosen_generated_rewards": "Mean score of the answers that became chosen ones.",
    "rejected_generated_rewards": "Mean score of the answers that became rejected ones.",
    "bad_samples_per_GBS": "Share of prompts without a pair to learn from.",
    "bad_ends_per_GBS": "Share of answers that were cut off.",
    "parse_failures": "Share of the judge's replies from which no verdict could be read.",
    "truncated_judge_prompts": "Share of answers that the judge saw only in part.",
    "no_verdict": "Share of judgements without a verdict.",
    "ok": "Share of prompts whose answers make a pair.",
    "tie": "Share of prompts whose answers all have the same score.",
    "identical": "Share of prompts whose best and worst answer are the same text.",
    "unfinished": "Share of prompts with too few finished answers.",
    "unscored": "Share of prompts with too few scored answers.",
}
"""Sentences by the last word of a name, where the whole name has none."""

BY_PATTERN = (
    (
        re.compile(r"(?:validation/)?reward/(?P<part>\w+)"),
        "Mean reward of a sum's part {part}, before its weight, where it has a verdict.",
    ),
    (
        re.compile(r"agreement/gap_from_(?P<low>\d+)"),
        "Mean |Δ| of tokens from position {low} of their sequence up to the next range, in nats.",
    ),
    (
        re.compile(r"reward_no_verdict/(?P<part>\w+)"),
        "Responses on which a sum's part {part} has no verdict.",
    ),
    (
        re.compile(r".*/no_verdict_(?P<why>\w+)"),
        "Judgements without a verdict, for this cause: {why}.",
    ),
    (
        re.compile(r".*/pass@(?P<k>\w+)"),
        "Chance that at least one of {k} responses to a held-out prompt is right.",
    ),
    (
        re.compile(r".*/maj@(?P<k>\w+)"),
        "Share of held-out prompts whose most frequent answer of {k} is right.",
    ),
    (re.compile(r"(?P<of>.*)_low"), "Lower end of the 95 % interval of {of}."),
    (re.compile(r"(?P<of>.*)_high"), "Upper end of the 95 % interval of {of}."),
)


def describe_metric(name: str) -> str | None:
    """A sentence on a metric; None on one that is not of Lockstep's own algorithms."""
    epoch = re.fullmatch(r"epoch_(\d+)/(.+)", name)
    if epoch:
        sentence = describe_metric(epoch[2])
        return (
            sentence
            and f"In pass {epoch[1]} over the step's batch: {sentence[0].lower()}{sentence[1:]}"
        )
    aside = re.fullmatch(r"staleness/(.+)", name)
    if aside:
        return "As under agreement/, between the policy of now and the older one that sampled."
    held = re.fullmatch(r"(?:val|validation)/(.+)", name)
    found = (
        BY_NAME.get(name)
        or (held and BY_NAME.get(held[1]))
        or BY_LAST_WORD.get(name.rsplit("/", 1)[-1])
    )
    if not found and held:
        found = BY_NAME.get(f"train/{held[1]}")
    return found or _match(name)


def _match(name: str) -> str | None:
    matches = ((pattern.fullmatch(name), sentence) for pattern, sentence in BY_PATTERN)
    return next(
        (
            sentence.format(
                **{key: text.replace("_", " ") for key, text in match.groupdict().items()}
            )
            for match, sentence in matches
            if match
        ),
        None,
    )
