"""The distillation loss; the math is in `objectives.distill`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from torch import Tensor

from lockstep.core.batch import Batch
from lockstep.core.metrics import Mean, Metrics
from lockstep.core.types import DivergenceKind
from lockstep.losses.base import Denominator, Outputs
from lockstep.objectives.distill import forward_kl, jensen_shannon, reverse_kl


@dataclass(frozen=True)
class Distillation:
    """Σ_t D(π(· | x_<t), π_T(· | x_<t)) over trainable tokens, nats.

    Reads the columns `top_token`, the teacher's K likeliest tokens at each position, and
    `teacher_logprob`, their log-probabilities, [N, K] each; or `teacher_logprob` alone, over the
    whole vocabulary [N, V].

    Attributes:
        kl_type: D: forward KL, reverse KL, their weighted sum, or Jensen-Shannon divergence.
        weight: Weight of the forward KL in the sum, or of the teacher in the Jensen-Shannon
            mixture; else None.
        outside: True to count the student's probability of all other tokens, which the teacher
            gives no probability; else both distributions are renormalized over the K tokens.
    """

    kl_type: DivergenceKind
    weight: float | None = None
    outside: bool = False

    @property
    def denominator(self) -> Denominator:
        return "tokens"

    def __call__(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Metrics]:
        assert outputs.top_logprob is not None, (
            "distillation needs a head that gives log-probabilities"
        )
        own = batch.mask_indices
        some = "top_token" in batch.token
        student_MK = outputs.top_logprob[own]
        teacher_MK = batch["teacher_logprob"][own].log_softmax(-1)
        named_M = student_MK.detach().exp().sum(-1)
        first_M = student_MK.argmax(-1)
        teachers_M = teacher_MK.argmax(-1)
        if some:
            assert outputs.first_token is not None, (
                "the likeliest token may be outside the teacher's top k"
            )
            first_M = outputs.first_token[own]
            teachers_M = batch["top_token"][own].gather(-1, teachers_M[:, None])[:, 0]
        if outputs.entropy is None:
            logprob_MV = student_MK.detach()
            entropy_M = -(logprob_MV.exp() * logprob_MV).sum(-1)
        else:
            entropy_M = outputs.entropy[own]
        if some and not self.outside:
            student_MK = student_MK.log_softmax(-1)
        total = self._compute_divergence(
            student_MK, teacher_MK, entropy_M if some and self.outside else None
        ).sum()
        count = batch.mask.sum()
        return total, Metrics(
            loss=Mean(total.detach(), count),
            entropy=Mean(entropy_M.detach().sum(), count),
            named_by_teacher=Mean(named_M.sum(), count),
            same_first_choice=Mean((first_M == teachers_M).sum(), count),
        )

    def _compute_divergence(
        self, student_MK: Tensor, teacher_MK: Tensor, entropy_M: Tensor | None
    ) -> Tensor:
        match self.kl_type:
            case "forward":
                return forward_kl(student_MK, teacher_MK)
            case "reverse":
                return reverse_kl(student_MK, teacher_MK, entropy_M)
            case "mixed":
                assert self.weight is not None, "a mixture needs weights"
                reverse_M = reverse_kl(student_MK, teacher_MK, entropy_M)
                return (
                    self.weight * forward_kl(student_MK, teacher_MK)
                    + (1.0 - self.weight) * reverse_M
                )
            case "jsd":
                assert self.weight is not None, "a mixture needs weights"
                return jensen_shannon(student_MK, teacher_MK, self.weight)
            case _:
                assert_never(self.kl_type)
