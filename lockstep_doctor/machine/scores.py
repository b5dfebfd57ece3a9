"""Log-probabilities by the kernels of a device, compared with float64 on the host."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from lockstep.config.machinery import DType
from lockstep.distributed.sampling import token_scores
from lockstep.errors import BrokenPromiseError
from lockstep.types import SamplingParams
from lockstep_doctor.machine.trial import TYPES, Trial

_SPREAD = 4.0
_BOUNDS: Mapping[DType, Mapping[str, float]] = {
    "fp32": {"log p": 1e-4, "entropy": 1e-4, "gradient": 1e-5},
    "bf16": {"log p": 1e-4, "entropy": 1e-4, "gradient": 2.0**-7},
}
"""Largest errors; in bf16 a gradient is rounded."""


def measure_scores(trial: Trial, dtype: DType) -> dict[str, float]:
    """Scores random logits, and returns the largest errors of log p, the entropy and the gradient of Σ log p.

    Raises:
        BrokenPromiseError: An error is above its bound.
    """
    draw = torch.Generator().manual_seed(0)
    logits_MV = (_SPREAD * torch.randn(trial.scale.rows, trial.scale.vocabulary, generator=draw)).to(TYPES[dtype])
    here = logits_MV.to(trial.device).requires_grad_()
    token_M = logits_MV.argmax(-1)
    logprob_M, entropy_M = token_scores(here, token_M.to(trial.device), SamplingParams(1))
    logprob_M.sum().backward()
    assert entropy_M is not None, "it is asked for"
    assert here.grad is not None, "logits are a leaf"
    true_MV = logits_MV.double().log_softmax(-1)
    gradient_MV = torch.nn.functional.one_hot(token_M, logits_MV.shape[1]) - true_MV.exp()
    found = {
        "log p": _find_gap(logprob_M, true_MV.gather(1, token_M[:, None])[:, 0]),
        "entropy": _find_gap(entropy_M, -(true_MV.exp() * true_MV).sum(-1)),
        "gradient": _find_gap(here.grad, gradient_MV),
    }
    bounds = _BOUNDS[dtype]
    wrong = [f"{name} {gap:.2g} (at most {bounds[name]:.2g})" for name, gap in found.items() if not gap <= bounds[name]]
    if wrong:
        raise BrokenPromiseError(f"kernels of log-probabilities differ from float64 on the host: {', '.join(wrong)}")
    return found


def _find_gap(found: Tensor, true: Tensor) -> float:
    return float((found.detach().cpu().double() - true.detach()).abs().max())
