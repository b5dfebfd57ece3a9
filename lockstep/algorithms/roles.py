"""An algorithm's declarations: the roles of its models, its inference, its largest workload.

Imports no torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from lockstep.config import LearnerSection, Optimizer, RepeatedSampling, SamplerSection, Sampling
from lockstep.config.backends import INFERENCE
from lockstep.core.types import HeadKind, SamplingParams
from lockstep.monitor.options import AgreementSection


@dataclass(frozen=True)
class ModelRole:
    """A model of an algorithm: its initial weights, head, and optimizer if it is trained.

    Attributes:
        name: Name of the role, such as policy or critic, in checkpoints and plans.
        head: Output for each token.
        learner: Parallel layout, dtype and device.
        optimizer: Optimizer; None: the model is frozen.
        path: Folder of the initial weights; None: the run's initial model.
        follows: True if the run copies a learner's weights into this model, which then needs the
            learner's LoRA adapters.
        idle_steps: Number of steps at the beginning of a run that do not train it.
    """

    name: str
    head: HeadKind
    learner: LearnerSection
    optimizer: Optimizer | None = None
    path: str | None = None
    follows: bool = False
    idle_steps: int = 0

    @property
    def is_saved(self) -> bool:
        """True if a run changes the model's weights, so that checkpoints hold them."""
        return self.optimizer is not None or self.follows


@dataclass(frozen=True)
class Inference:
    """The inference of an algorithm: its engine and sampling distributions.

    Attributes:
        sampler: The inference engine.
        agreement: Options of the comparison of learner and sampler.
        sampling: The sampling distribution of training rollouts; None: no training rollouts.
        validation_sampling: The sampling distribution of validation; None: validation does not
            sample.
        one_step_ahead: True if sampler and learner work concurrently.
    """

    sampler: SamplerSection
    agreement: AgreementSection
    sampling: Sampling | None
    validation_sampling: RepeatedSampling | None
    one_step_ahead: bool = False

    @property
    def has_penalties(self) -> bool:
        """True if a sampling penalty requires the engine to track previous tokens."""
        used = filter(None, (self.sampling, self.validation_sampling))
        return any(one.params().penalizes for one in used)

    def explain_inexact(self, learner: LearnerSection) -> str | None:
        """Returns the reason why learner and sampler cannot be bit-identical; None if they can."""
        if self.sampling is None:
            return "it trains on no samples"
        reason = learner.explain_inexact()
        if reason is not None:
            return reason
        if not INFERENCE.find_backend(self.sampler.backend).is_exact:
            return f"sampler.backend={self.sampler.backend} uses its own kernels"
        if self.one_step_ahead:
            return "one_step_ahead samples with older weights than it trains"
        return None


_OWN = SamplingParams(1)
"""The model's distribution, without sampling options."""


@dataclass(frozen=True)
class Load:
    """The largest workload of a learner: every sequence has maximum length.

    Attributes:
        sequence: Number of tokens of the longest sequence.
        group: Number of sequences that must share a forward pass: 2 for pairs.
        shared: Number of tokens of the longest prompt that sequences share.
        sequences_per_prompt: Number of sequences that share a prompt.
        rows: Number of groups per optimizer step.
        updates: Number of optimizer steps per step of the algorithm.
        scored: Number of groups that each frozen model scores per step of the algorithm, before the
            update.
        generated: Number of tokens of the longest generated sequence, including its prompt; 0: no
            sampling.
        sampling: The distribution that tokens are scored under; its `max_tokens` does not matter
            here.
    """

    sequence: int
    group: int
    rows: int
    updates: int = 1
    scored: int = 0
    generated: int = 0
    sampling: SamplingParams = _OWN
    shared: int = 0
    sequences_per_prompt: int = 1

    @property
    def distinct_share(self) -> float:
        """Distinct tokens relative to the tokens of all sequences."""
        paths = self.sequences_per_prompt * self.sequence
        return 1.0 - (self.sequences_per_prompt - 1) * self.shared / paths

    def share_computed(self, learner: LearnerSection) -> float:
        """Computed tokens relative to the tokens of all sequences."""
        if learner.explain_unshared() is not None:
            return 1.0
        return self.distinct_share

    @property
    def tokens_per_group(self) -> int:
        """Number of tokens in one group: the smallest possible micro-batch."""
        return self.group * self.sequence

    def describe_step(self, learner: LearnerSection, unshared: str | None) -> str:
        """Describes a step of the algorithm: its optimizer steps, and the tokens of each.

        Args:
            learner: Computes the step.
            unshared: Reason why prefixes are not computed once; None if they are.
        """
        if self.updates == 1:
            steps = "1 optimizer step"
        else:
            steps = f"{self.updates} optimizer steps"
        unit = "response" if self.generated else "row"
        if self.group == 2:
            unit = "pair"
        found = f"{steps} of {self.rows} {unit}s"
        tokens = self.rows * self.tokens_per_group
        if self.distinct_share < 1.0 and unshared is None:
            computed = round(tokens * self.distinct_share)
            found += f", at most {tokens:,} tokens, {computed:,} computed"
        elif self.distinct_share < 1.0:
            found += f", at most {tokens:,} tokens, shared prefixes computed again: {unshared}"
        if self.tokens_per_group > learner.micro_batch_tokens:
            found += (
                f"; a {unit} of {self.tokens_per_group:,} tokens gets its own pass, above "
                f"learner.micro_batch_tokens={learner.micro_batch_tokens}"
            )
        return found

    def count_micro_batch_groups(self, learner: LearnerSection) -> int:
        """Number of groups in one micro-batch."""
        return learner.rows_per_pass or max(1, learner.micro_batch_tokens // self.tokens_per_group)

    def count_micro_batch_tokens(self, learner: LearnerSection) -> int:
        """Number of tokens in one micro-batch, over all ranks that share it."""
        return (
            min(
                self.count_micro_batch_groups(learner), -(-self.rows // learner.parallel.row_shares)
            )
            * self.tokens_per_group
        )

    def count_micro_batches(self, learner: LearnerSection, groups: int) -> int:
        """Number of micro-batches per rank for `groups` groups."""
        return math.ceil(
            math.ceil(groups / learner.parallel.row_shares) / self.count_micro_batch_groups(learner)
        )
