"""Divergences of a student from its teacher over the teacher's tokens.

Hinton et al. 2015; Agarwal et al. 2024, §3. M positions, K tokens at each: the teacher's likeliest,
or the full vocabulary. s and t are the log-probabilities of student and teacher, nats, fp32 [M, K].
The teacher's probabilities sum to 1 over these tokens; the student's may sum to less, with the rest
on other tokens.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

LOG_OUTSIDE = -100.0
"""Stand-in for the teacher's log-probability of all other tokens; finite, so it has a gradient."""


def forward_kl(student_MK: Tensor, teacher_MK: Tensor) -> Tensor:
    """KL(t ‖ s) = Σ_k p_t (t − s), nats [M]: mode-covering, the student covers the teacher."""
    return (teacher_MK.exp() * (teacher_MK - student_MK)).sum(-1)


def reverse_kl(student_MK: Tensor, teacher_MK: Tensor, entropy_M: Tensor | None = None) -> Tensor:
    """KL(s ‖ t) = Σ_k p_s (s − t), nats [M]: mode-seeking, the student stays within the teacher.

    Args:
        student_MK: s.
        teacher_MK: t.
        entropy_M: H of the student over its full vocabulary. The other tokens then count as well:
            over them Σ p_s s is −H − Σ_k p_s s, and t is `LOG_OUTSIDE`. None: no other tokens.
    """
    chosen_MK = student_MK.exp()
    if entropy_M is None:
        return (chosen_MK * (student_MK - teacher_MK)).sum(-1)
    return -(chosen_MK * teacher_MK).sum(-1) - entropy_M - LOG_OUTSIDE * (1.0 - chosen_MK.sum(-1))


def jensen_shannon(student_MK: Tensor, teacher_MK: Tensor, weight: float) -> Tensor:
    """w·KL(t ‖ m) + (1 − w)·KL(s ‖ m) with the mixture m = w·p_t + (1 − w)·p_s, nats [M].

    Agarwal et al. 2024, eq. 1. At all other tokens m = (1 − w)·p_s, so they add −(1 − w)·log(1 − w)
    times their probability under the student.
    """
    mixture_MK = torch.logaddexp(teacher_MK + math.log(weight), student_MK + math.log(1.0 - weight))
    rest_M = (1.0 - student_MK.exp().sum(-1)).clamp(min=0.0)
    named_M = weight * forward_kl(mixture_MK, teacher_MK) + (1.0 - weight) * forward_kl(
        mixture_MK, student_MK
    )
    return named_M - (1.0 - weight) * math.log(1.0 - weight) * rest_M
