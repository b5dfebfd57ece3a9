"""KTO (Ethayarajh et al. 2024): unpaired answers, each labeled desirable or undesirable.

With r = log π(y | x) − log π_ref(y | x) and a reference point z0 ≥ 0, a desirable answer has the
value σ(β·(r − z0)), an undesirable one σ(β·(z0 − r)): both flatten far from z0, like Kahneman and
Tversky's curve of gains and losses.

Legend: B answers; all in nats, in the precision of the inputs.
"""

from __future__ import annotations

from torch import Tensor


def estimate_reference_point(mismatched_B: Tensor) -> float:
    """z0 = max(0, mean of log π(y')/π_ref(y')) over prompts with another prompt's answer y'.

    The estimate of KL(π ‖ π_ref) from §4.1 over a full batch. It is a plain number, so no gradient
    passes through it.
    """
    return max(0.0, float(mismatched_B.detach().double().mean()))


def kto_loss(
    ratio_B: Tensor, desirable_B: Tensor, beta: float, point: float, weights: tuple[float, float]
) -> Tensor:
    """λ_D·(1 − σ(β·(r − z0))) for desirable answers, λ_U·(1 − σ(β·(z0 − r))) for others (eq. 8).

    Args:
        ratio_B: r.
        desirable_B: True for desirable answers.
        beta: β.
        point: z0.
        weights: λ_D and λ_U.

    Returns:
        [B]; λ/2 at r = z0.
    """
    gain_B = beta * (ratio_B - point)
    desired_B = weights[0] * (-gain_B).sigmoid()
    undesired_B = weights[1] * gain_B.sigmoid()
    return desired_B.where(desirable_B, undesired_B)
