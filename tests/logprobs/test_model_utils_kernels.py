"""The facade's autograd functions of logits against float64: values, gradients, what they keep and
what they send.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import dense
import pytest
import torch
from ranks import Layout, Ranks
from sharded import GRADIENT, VALUE, Cut, Place, close, dense_of, even, random, random_tokens, run
from torch import Tensor

from lockstep_logprobs import model_utils as facade

B, S, V, K = 2, 5, 24, 3
CHUNKS = (1, 3, 1000, None)


# On the ranks: `(local logits, place, target, chunk size) -> result`.
# ---------------------------------------------


def logprob(
    logits: Tensor, place: Place, target: Tensor, chunk: int | None, inference: bool = False
) -> Tensor:
    return facade.DistributedLogprob.apply(logits, target, *place.bounds_and_group, inference)


def chunked_logprob(
    logits: Tensor, place: Place, target: Tensor, chunk: int | None, inference: bool = False
) -> Tensor:
    group = place.layout.tp_group
    return facade.ChunkedDistributedLogprob.apply(
        logits, target, place.start, place.end, chunk, group, inference
    )


def picked(
    logits: Tensor, place: Place, index: Tensor, chunk: int | None, inference: bool = False
) -> Tensor:
    group = place.layout.tp_group
    return facade.ChunkedDistributedGatherLogprob.apply(
        logits, index, place.start, place.end, chunk, group, inference
    )


def entropy(
    logits: Tensor, place: Place, target: None, chunk: int | None, inference: bool = False
) -> Tensor:
    return facade.ChunkedDistributedEntropy.apply(logits, chunk, place.layout.tp_group, inference)


def cross_entropy(
    logits: Tensor, place: Place, teacher: Tensor, chunk: int | None, inference: bool = False
) -> Tensor:
    local = teacher[..., place.start : place.end]
    return facade.DistributedCrossEntropy.apply(logits, local, place.layout.tp_group, inference)


def sampled(
    logits: Tensor, place: Place, target: Tensor, chunk: int | None, inference: bool = False
) -> Tensor:
    return facade.DistributedLogprobWithSampling.apply(
        logits, target, place.layout.tp_group, 9, 0.8, inference
    )


def chunked_sampled(
    logits: Tensor, place: Place, target: Tensor, chunk: int | None, inference: bool = False
) -> Tensor:
    group = place.layout.tp_group
    return facade.ChunkedDistributedLogprobWithSampling.apply(
        logits, target, group, 9, 0.8, chunk, inference
    )


# In float64.
# -------------------------------------------------------------------------------------------------------


def dense_sampled(logits_V: Tensor, target: Tensor) -> Tensor:
    return dense.logprobs(dense.filtered(logits_V, 9, 0.8), target)


def dense_cross_entropy(logits_V: Tensor, teacher_V: Tensor) -> Tensor:
    return -dense.sum_p_log_q(teacher_V.double(), logits_V)


def dense_entropy(logits_V: Tensor, target: None) -> Tensor:
    return dense.sum_p_log_p(logits_V)


@dataclass(frozen=True)
class Kernel:
    """A function on shards, what it equals, and its second argument: made of the whole logits."""

    function: Callable[..., Tensor]
    reference: Callable[..., Tensor]
    argument: Callable[[Tensor], Any]
    shape: tuple[int, ...] = (B, S)
    chunked: bool = True
    filters: bool = False

    @property
    def most_collectives(self) -> int:
        """A support may take a gather of the candidates besides the two sums."""
        return 4 if self.filters else 2

    @property
    def chunks(self) -> tuple[int | None, ...]:
        return CHUNKS if self.chunked else (None,)


def a_target(logits: Tensor) -> Tensor:
    return random_tokens(*logits.shape[:2], vocabulary=logits.shape[-1])


def a_likely_target(logits: Tensor) -> Tensor:
    """The second likeliest: in the support of any top-k above one and of any top-p that is not
    tiny.
    """
    return logits.topk(2).indices[..., 1]


def an_index(logits: Tensor) -> Tensor:
    return random_tokens(*logits.shape[:2], K, vocabulary=logits.shape[-1])


def a_teacher(logits: Tensor) -> Tensor:
    return random(*logits.shape, seed=9).to(logits.dtype)


def nothing(logits: Tensor) -> None:
    return None


KERNELS = {
    "DistributedLogprob": Kernel(logprob, dense.logprobs, a_target, chunked=False),
    "ChunkedDistributedLogprob": Kernel(chunked_logprob, dense.logprobs, a_target),
    "ChunkedDistributedGatherLogprob": Kernel(picked, dense.picked_logprobs, an_index, (B, S, K)),
    "ChunkedDistributedEntropy": Kernel(entropy, dense_entropy, nothing),
    "DistributedCrossEntropy": Kernel(cross_entropy, dense_cross_entropy, a_teacher, chunked=False),
    "DistributedLogprobWithSampling": Kernel(
        sampled, dense_sampled, a_likely_target, chunked=False, filters=True
    ),
    "ChunkedDistributedLogprobWithSampling": Kernel(
        chunked_sampled, dense_sampled, a_likely_target, filters=True
    ),
}
BY_NAME = pytest.mark.parametrize("name", KERNELS)
CASES = [
    (name, tp, chunk)
    for name, kernel in KERNELS.items()
    for tp in (1, 4)
    for chunk in kernel.chunks
]


def check(
    ranks: Ranks,
    kernel: Kernel,
    logits: Tensor,
    cut: Cut,
    chunk: int | None = 2,
    *,
    of_value: dict[str, float] = VALUE,
    of_gradient: dict[str, float] = GRADIENT,
) -> None:
    """Values and gradients on shards are those of float64, and nothing is sent that all would wait
    for.
    """
    argument = kernel.argument(logits)
    upstream = [random(*logits.shape[:2], *kernel.shape[2:], seed=3, scale=1.0)]
    together = run(ranks, kernel.function, cut, logits, argument, chunk, upstream=upstream)
    (value,), gradient = dense_of(kernel.reference, logits, argument, upstream=upstream)
    assert together.result.dtype == torch.float32
    assert together.gradient_dtype == logits.dtype
    close(together.result, value, **of_value)
    close(together.gradient, gradient, **of_gradient)
    assert together.backward.total() == 0, f"backward needs no collective: {together.backward}"
    assert together.forward.total() <= kernel.most_collectives, together.forward
    assert not any("alltoall" in kind for kind in together.forward), "the vocabulary moves"


@pytest.mark.parametrize(("name", "tp", "chunk"), CASES)
def test_distributed_logprob_kernels_and_gradients_match_float64(
    ranks: Ranks, name: str, tp: int, chunk: int | None
) -> None:
    check(ranks, KERNELS[name], random(B, S, V), Cut(even(V, tp)), chunk)


@BY_NAME
def test_large_logits_do_not_overflow(ranks: Ranks, name: str) -> None:
    """exp(300) is no fp32 number; the maximum has to be taken off, and it has to be that of all
    shards.
    """
    logits = random(B, S, V) + 300.0
    logits[..., V // 2 :] -= 280.0
    ulp_of_300 = 2.0**-15
    fine = {"atol": 2 * ulp_of_300, "rtol": 1e-6}
    check(ranks, KERNELS[name], logits, Cut(even(V, 2)), of_value=fine, of_gradient=fine)


@BY_NAME
def test_bf16_logits_lose_only_gradient_rounding(ranks: Ranks, name: str) -> None:
    # bf16 has 8 significant bits: rounding once errs by at most 2^-9 of the number.
    rounded = {"atol": 2e-6, "rtol": 2.0**-8}
    logits = random(B, S, V).bfloat16()
    check(ranks, KERNELS[name], logits, Cut(even(V, 2)), of_gradient=rounded)


# What is kept and sent.
# --------------------------------------------------------------------------------------------


def counted(
    layout: Layout, name: str, cut: Cut, logits: Tensor, argument: Any, inference: bool
) -> tuple[int, str]:
    """How many tensors the kernel keeps for backward, and how backward then ends."""
    kept: list[Tensor] = []
    local = cut.local(logits, layout.tp_rank, 0).requires_grad_()
    place = Place(layout, *cut.bounds[layout.tp_rank : layout.tp_rank + 2])

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = KERNELS[name].function(local, place, argument, 2, inference)
    try:
        result.sum().backward()
    except Exception:
        return len(kept), "no backward"
    return len(kept), "a gradient" if local.grad is not None else "nothing"


@BY_NAME
def test_inference_only_kernels_save_no_tensors_for_backward(ranks: Ranks, name: str) -> None:
    kernel, logits, cut = KERNELS[name], random(B, S, V), Cut(even(V, 2))
    argument = kernel.argument(logits)
    for kept, ending in ranks.run(counted, name, cut, logits, argument, True, tp=2):
        assert kept == 0
        assert ending == "no backward"
    for kept, ending in ranks.run(counted, name, cut, logits, argument, False, tp=2):
        assert kept > 0
        assert ending == "a gradient"


# The two functions that have no gradient, and refusals.
# --------------------------------------------------------------


def softmaxes(layout: Layout, cut: Cut, logits: Tensor) -> list[Tensor]:
    local = cut.local(logits, layout.tp_rank, 0).requires_grad_()
    before = local.detach().clone()
    with torch.no_grad():
        results = [
            facade._compute_distributed_log_softmax(local, layout.tp_group),
            facade._compute_distributed_softmax(local, layout.tp_group),
        ]
    assert torch.equal(local, before), "the caller's logits are left alone"
    return results


@pytest.mark.parametrize("tp", [1, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_distributed_softmax_matches_float64_in_dtype_of_logits(
    ranks: Ranks, tp: int, dtype: torch.dtype
) -> None:
    logits, cut = random(B, S, V).to(dtype), Cut(even(V, tp))
    logits[0, 0, 0] = logits[0, 1, -1] = -torch.inf
    found = ranks.run(softmaxes, cut, logits, tp=tp)
    wanted = [logits.double().log_softmax(-1), logits.double().softmax(-1)]
    # The result is rounded once to its dtype; sums are formed in fp32 at least.
    tolerance = VALUE if dtype == torch.float32 else {"atol": 1e-6, "rtol": 2.0**-8}
    for number, expected in enumerate(wanted):
        whole = torch.cat([results[number] for results in found], -1)
        assert whole.dtype == dtype
        close(whole, expected, **tolerance)
