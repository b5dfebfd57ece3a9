"""Log-probabilities by the kernels of a device, compared with float64 on the host."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from lockstep.config.machinery import DType
from lockstep.distributed.sampling import hidden_scores, token_scores
from lockstep.errors import BrokenPromiseError
from lockstep.gpu_check.trial import TYPES, Trial
from lockstep.types import SamplingParams

_PLAIN, _TOP_K, _TOP_P = SamplingParams(1), SamplingParams(1, top_k=50), SamplingParams(1, top_p=0.9)
_SPREAD, _WIDTH = 4.0, 256
_BOUNDS: Mapping[DType, Mapping[str, float]] = {
    "fp32": {"log p": 1e-4, "entropy": 1e-4, "gradient": 1e-5, "from hidden states": 1e-3},
    "bf16": {"log p": 1e-4, "entropy": 1e-4, "gradient": 2.0**-7, "from hidden states": 0.1},
}
"""Largest errors; in bf16 a gradient is rounded, and on a CPU logits of hidden states are, too."""
_BORDER = 0.02
"""Share of rows in which a token within rounding of top-p's border may be decided otherwise."""


def measure_scores(trial: Trial, dtype: DType) -> dict[str, float]:
    """Scores random logits and hidden states, and compares with float64.

    Raises:
        BrokenPromiseError: An error is above its bound.
    """
    draw = torch.Generator().manual_seed(0)
    rows, vocabulary, torch_type = trial.scale.rows, trial.scale.vocabulary, TYPES[dtype]
    logits_MV = (_SPREAD * torch.randn(rows, vocabulary, generator=draw)).to(torch_type)
    hidden_MD = torch.randn(rows, _WIDTH, generator=draw).to(torch_type)
    weight_VD = (_SPREAD / _WIDTH**0.5 * torch.randn(vocabulary, _WIDTH, generator=draw)).to(torch_type)
    found = {
        **_compare_logits(trial, logits_MV),
        "from hidden states": _compare_hidden(trial, hidden_MD, weight_VD),
        **{name: _compare_support(trial, logits_MV, how) for name, how in (("top-k", _TOP_K), ("top-p", _TOP_P))},
    }
    bounds = {**_BOUNDS[dtype], "top-k": _BORDER, "top-p": _BORDER}
    wrong = [
        f"{name} {found[name]:.2g} (at most {bounds[name]:.2g})" for name in found if not found[name] <= bounds[name]
    ]
    if wrong:
        raise BrokenPromiseError(f"kernels of log-probabilities differ from float64 on the host: {', '.join(wrong)}")
    return found


def _compare_logits(trial: Trial, logits_MV: Tensor) -> dict[str, float]:
    """Largest errors of log p, of the entropy, and of the gradient of Σ log p."""
    here = logits_MV.to(trial.device).requires_grad_()
    token_M = logits_MV.argmax(-1)
    logprob_M, entropy_M = token_scores(here, token_M.to(trial.device), _PLAIN)
    logprob_M.sum().backward()
    assert entropy_M is not None, "it is asked for"
    assert here.grad is not None, "logits are a leaf"
    true_MV = logits_MV.double().log_softmax(-1)
    gradient_MV = torch.nn.functional.one_hot(token_M, logits_MV.shape[1]) - true_MV.exp()
    return {
        "log p": _gap(logprob_M, true_MV.gather(1, token_M[:, None])[:, 0]),
        "entropy": _gap(entropy_M, -(true_MV.exp() * true_MV).sum(-1)),
        "gradient": _gap(here.grad, gradient_MV),
    }


def _compare_hidden(trial: Trial, hidden_MD: Tensor, weight_VD: Tensor) -> float:
    """Largest error of log p from hidden states."""
    true_MV = (hidden_MD.double() @ weight_VD.double().T).log_softmax(-1)
    token_M = true_MV.argmax(-1)
    hidden, weight, token = (x.to(trial.device) for x in (hidden_MD, weight_VD, token_M))
    logprob_M, _ = hidden_scores(hidden, weight, token, _PLAIN)
    return _gap(logprob_M, true_MV.gather(1, token_M[:, None])[:, 0])


def _compare_support(trial: Trial, logits_MV: Tensor, sampling: SamplingParams) -> float:
    """Share of rows whose likeliest token has another log p under top-k or top-p."""
    sorted_MV = logits_MV.double().sort(-1, descending=True).values
    mass_MV = sorted_MV.softmax(-1)
    outside_MV = mass_MV.cumsum(-1) - mass_MV >= sampling.top_p
    if sampling.top_k:
        outside_MV |= torch.arange(sorted_MV.shape[1]) >= sampling.top_k
    floor_M = sorted_MV.masked_fill(outside_MV, torch.inf).amin(-1)  # equal logits are in a support together (ADR 5)
    true_M = sorted_MV[:, 0] - sorted_MV.masked_fill(sorted_MV < floor_M[:, None], -torch.inf).logsumexp(-1)
    token_M = logits_MV.argmax(-1)
    logprob_M, _ = token_scores(logits_MV.to(trial.device), token_M.to(trial.device), sampling)
    return float(((logprob_M.cpu().double() - true_M).abs() > 1e-3).double().mean())


def _gap(found: Tensor, true: Tensor) -> float:
    return float((found.detach().cpu().double() - true.detach()).abs().max())
