"""The checks of `lockstep gpu-check`: each returns measurements, or raises if the machine lacks
something or a guarantee is broken.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from lockstep.algorithms.exactness import explain_inexact_sampler
from lockstep.cluster.learner_group import launch_learner
from lockstep.cluster.sampler_pool import SamplerPool
from lockstep.cluster.specs import SamplerSpec, require_sampler
from lockstep.config import SamplerSection
from lockstep.config.machinery import DType
from lockstep.core.errors import BrokenPromiseError, InputError
from lockstep.core.types import SamplingParams
from lockstep.distributed.sampling import token_scores
from lockstep.learners.base import Learner, train
from lockstep.losses.cross_entropy import CrossEntropyLoss
from lockstep.models.folder import read_config
from lockstep.models.open_kernels import describe_attention
from lockstep.monitor.options import AgreementSection
from lockstep.objectives.tally import MismatchTally
from lockstep.plan.time import count_learning
from lockstep.samplers.base import Sampler
from lockstep.weight_sync.sync import random_probe, sync_weights
from lockstep_doctor.machine.trial import TYPES, MachineTrial

_WAIT_S = 300.0
"""Timeout of one call to another process."""
_REPEATS = 5
FEW_ROWS = 8
"""Rows of a matrix product so thin that its time is the time to read the weights."""
_UPDATES = 8
_LARGEST_GAP_OF_RANKS = 1e-3
"""Largest difference between log-probabilities over all GPUs and on one, nats."""

_SPREAD = 4.0
_BOUNDS: Mapping[DType, Mapping[str, float]] = {
    "fp32": {"log p": 1e-4, "entropy": 1e-4, "gradient": 1e-5},
    "bf16": {"log p": 1e-4, "entropy": 1e-4, "gradient": 2.0**-7},
}
"""Largest errors of scores; a bf16 gradient is rounded."""

CheckFigures = Mapping[str, float | str]
"""Results of a check by name and unit."""


def list_checks(trial: MachineTrial) -> dict[str, Callable[[], CheckFigures]]:
    """All checks by name, quick ones first.

    A check raises `InputError` if the machine lacks something for it.
    """
    in_each_type: Mapping[str, Callable[[MachineTrial, DType], CheckFigures]] = {
        "log-probabilities": measure_scores,
        "learner": measure_learner,
        "torch sampler": measure_torch_sampler,
        "exact": measure_exact,
    }
    checks: dict[str, Callable[[], CheckFigures]] = {
        "copy": partial(measure_copy, trial),
        "products": partial(measure_products, trial),
    }
    for name, measure in in_each_type.items():
        for dtype in TYPES:
            checks[f"{name}, {dtype}"] = partial(measure, trial, dtype)
    for carrier in ("shared_memory", "process_group", "cuda_ipc"):
        checks[f"weight sync, {carrier}"] = partial(measure_sync, trial, carrier)
    checks["learner over all GPUs"] = partial(measure_ranks, trial)
    checks["vLLM, bf16"] = partial(measure_vllm, trial)
    return checks


def measure_copy(trial: MachineTrial) -> CheckFigures:
    """Measures the bandwidth of device memory and of copies from the host."""
    here = torch.zeros(trial.scale.copied, dtype=torch.uint8, device=trial.device)
    there = torch.zeros_like(here)
    host = torch.zeros(
        trial.scale.copied // 8, dtype=torch.uint8, pin_memory=trial.device.type == "cuda"
    )
    seconds = _time_work(trial, lambda: there.copy_(here))
    moved = _time_work(trial, lambda: here[: len(host)].copy_(host, non_blocking=True))
    return {
        "read and written, GB/s": 2 * len(here) / seconds / 1e9,
        "from the host, GB/s": len(host) / moved / 1e9,
    }


def measure_products(trial: MachineTrial) -> CheckFigures:
    """Measures square matrix products, and products with few rows as in decoding."""
    found: dict[str, float] = {}
    for name, dtype in TYPES.items():
        found[f"{name}, TFLOP/s"] = measure_product_rate(trial, dtype, trial.scale.product) / 1e12
        rows = FEW_ROWS
        weights = trial.scale.product**2 * dtype.itemsize
        seconds = 2 * rows * trial.scale.product**2 / measure_product_rate(trial, dtype, rows)
        found[f"{name}, weights read by {rows} rows, GB/s"] = weights / seconds / 1e9
    return found


def measure_product_rate(trial: MachineTrial, dtype: torch.dtype, rows: int) -> float:
    """Operations per second of a product of `rows` rows with a square matrix."""
    size = trial.scale.product
    left, right = (torch.randn(n, size, device=trial.device, dtype=dtype) for n in (rows, size))
    out = torch.empty_like(left)
    return 2 * rows * size**2 / _time_work(trial, lambda: torch.mm(left, right, out=out))


def measure_scores(trial: MachineTrial, dtype: DType) -> CheckFigures:
    """Scores random logits, and returns the largest errors of log p, the entropy and the gradient
    of Σ log p.

    Raises:
        BrokenPromiseError: An error is above its bound.
    """
    draw = torch.Generator().manual_seed(0)
    logits_MV = (
        _SPREAD * torch.randn(trial.scale.rows, trial.scale.vocabulary, generator=draw)
    ).to(TYPES[dtype])
    here = logits_MV.to(trial.device).requires_grad_()
    token_M = logits_MV.argmax(-1)
    logprob_M, entropy_M = token_scores(here, token_M.to(trial.device), SamplingParams(1))
    logprob_M.sum().backward()
    assert entropy_M is not None, "entropy is computed by default"
    assert here.grad is not None, "logits are a leaf"
    true_MV = logits_MV.double().log_softmax(-1)
    gradient_MV = torch.nn.functional.one_hot(token_M, logits_MV.shape[1]) - true_MV.exp()
    found = {
        "log p": _find_gap(logprob_M, true_MV.gather(1, token_M[:, None])[:, 0]),
        "entropy": _find_gap(entropy_M, -(true_MV.exp() * true_MV).sum(-1)),
        "gradient": _find_gap(here.grad, gradient_MV),
    }
    bounds = _BOUNDS[dtype]
    wrong = list[str]()
    for name, gap in found.items():
        if not gap <= bounds[name]:
            wrong.append(f"{name} {gap:.2g} (at most {bounds[name]:.2g})")
    if wrong:
        raise BrokenPromiseError(
            f"kernels of log-probabilities differ from float64 on the host: {', '.join(wrong)}"
        )
    return found


def _find_gap(found: Tensor, true: Tensor) -> float:
    return float((found.detach().cpu().double() - true.detach()).abs().max())


def measure_learner(trial: MachineTrial, dtype: DType) -> CheckFigures:
    """Trains on one batch repeatedly: measures speed and memory against the plan, and requires that
    the loss falls.
    """
    if trial.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    spec = trial.build_learner_spec(dtype)
    before, after, seconds = _train_updates(trial, spec.build())
    rank = trial.build_plan_rank(dtype)
    found: dict[str, float | str] = {
        "attention": describe_attention(
            read_config(str(trial.folder)), trial.device, spec.section.dtype
        ),
        "tokens/s": len(trial.batch.tokens) / seconds,
        "share of products": count_learning(rank)
        / seconds
        / measure_product_rate(trial, TYPES[dtype], trial.scale.product),
        "loss, before": before,
        "loss, after": after,
    }
    if trial.device.type == "cuda":
        peak = torch.cuda.max_memory_allocated()
        planned = rank.peak_moment.total_bytes
        found |= {
            "peak, GB": peak / 1e9,
            "planned, GB": planned / 1e9,
            "peak / planned": peak / planned,
        }
    return found


def _train_updates(trial: MachineTrial, learner: Learner) -> tuple[float, float, float]:
    """Trains on one batch.

    Returns the loss before the first update and before the last, and seconds of an update.

    Raises:
        BrokenPromiseError: The loss does not fall.
    """
    losses = list[float]()
    ends = list[float]()
    for _ in range(1 + _UPDATES):
        losses.append(train(learner, trial.batch, CrossEntropyLoss()).floats()["loss"])
        ends.append(time.perf_counter())
    before = losses[0]
    after = losses[-1]
    if not after < before:
        raise BrokenPromiseError(
            f"{_UPDATES} updates on one batch took the loss from {before:.3f} to {after:.3f}"
        )
    return before, after, (ends[-1] - ends[0]) / _UPDATES


def measure_torch_sampler(trial: MachineTrial, dtype: DType) -> CheckFigures:
    """Samples with the torch sampler, and scores the tokens with a learner of the same weights."""
    sampler = SamplerSpec(
        str(trial.folder), trial.build_sampler_section(), trial.build_computation(dtype)
    ).open_in_process()
    return _measure_agreement(trial, sampler, trial.build_learner_spec(dtype).build(), dtype)


def measure_exact(trial: MachineTrial, dtype: DType) -> CheckFigures:
    """Samples and scores with the exact kernels, which on a GPU only `agreement.exact=require`
    uses.

    Raises:
        BrokenPromiseError: A token's two log-probabilities are not bitwise equal.
    """
    folder = str(trial.folder)
    section = trial.build_sampler_section()
    computation = trial.build_computation(dtype)
    inexact = explain_inexact_sampler(folder, section, computation, may_be_slow=True)
    if inexact is not None:
        raise InputError(inexact)
    sampler = SamplerSpec(folder, section, computation.compute_exactly()).open_in_process()
    spec = trial.build_learner_spec(dtype)
    learner = replace(spec, section=spec.section.compute_exactly()).build()
    found = _measure_agreement(trial, sampler, learner, dtype)
    if found["not equal to the bit"]:
        raise BrokenPromiseError(
            f"exact kernels of sampler and learner differ on {found['not equal to the bit']:,.0f} "
            f"of {found['tokens compared']:,.0f} tokens, by up to "
            f"{found['largest |Δ|, nats']:.2g} nats"
        )
    return found


def _measure_agreement(
    trial: MachineTrial, sampler: Sampler, learner: Learner, dtype: DType
) -> dict[str, float]:
    """Samples, and compares log-probabilities per token."""
    sampler.generate(trial.requests[:2], trial.sampling)
    begun = time.perf_counter()
    batch = sampler.generate(trial.requests, trial.sampling)
    seconds = time.perf_counter() - begun
    tally = MismatchTally.from_logprobs(
        learner.logprobs(batch), batch["sampler_logprob"], batch.mask, batch.lengths
    )
    bound = AgreementSection().choose_bound(dtype)
    if tally.exceeds_bound(bound):
        raise BrokenPromiseError(
            f"sampler and learner disagree on {tally.mismatches:,} of {tally.tokens:,.0f} tokens, "
            f"by up to {tally.largest:.2g} nats: more than the bound {bound:g} on the mean of e^|Δ|"
        )
    return {
        "tokens/s": tally.tokens / seconds,
        "tokens compared": tally.tokens,
        "not equal to the bit": float(tally.mismatches),
        "largest |Δ|, nats": tally.largest,
    }


def measure_sync(trial: MachineTrial, carrier: str) -> CheckFigures:
    """Sends weights to a torch sampler in a separate process, and compares fingerprints of the
    received weights.
    """
    if carrier == "cuda_ipc" and trial.device.type != "cuda":
        raise InputError("needs a GPU")
    with _open_pool(trial, trial.build_sampler_section(transfer=carrier), "fp32") as pool:
        return _send_weights(trial, trial.build_learner_spec("fp32").build(), pool, "fp32")


def measure_vllm(trial: MachineTrial) -> CheckFigures:
    """Sends weights to vLLM, samples with it, and scores the tokens with a learner of the same
    weights.
    """
    section = trial.build_sampler_section(backend="vllm", kv_cache_gib=trial.cache_gib)
    require_sampler(section, trial.build_computation("bf16"))
    learner = trial.build_learner_spec("bf16").build()
    with _open_pool(trial, section, "bf16") as pool:
        return {
            **_send_weights(trial, learner, pool, "bf16"),
            **_measure_agreement(trial, pool, learner, "bf16"),
        }


def _open_pool(
    trial: MachineTrial, section: SamplerSection, dtype: DType
) -> AbstractContextManager[SamplerPool]:
    """Starts a sampler in a separate process."""
    return closing(
        SamplerPool(SamplerSpec(str(trial.folder), section, trial.build_computation(dtype)))
    )


def _send_weights(
    trial: MachineTrial, learner: Learner, pool: SamplerPool, dtype: DType
) -> dict[str, float]:
    """Sends weights several times; raises `BrokenPromiseError` if a sync fails."""
    probe = random_probe(trial.scale.vocabulary, trial.scale.prompt + trial.scale.response, dtype)
    size = sum(tensor.numel() * pool.dtype.itemsize for _, tensor in learner.weights())
    attested = 0.0
    seconds = list[float]()
    for version in range(3):
        begun = time.perf_counter()
        attested = sync_weights(learner, pool, version, probe).floats()["weight_sync/attested"]
        seconds.append(time.perf_counter() - begun)
    return {
        "sync GB/s": size / min(seconds) / 1e9,
        "sync, s": min(seconds),
        "tensors attested": attested,
    }


def measure_ranks(trial: MachineTrial) -> CheckFigures:
    """Trains over all GPUs, and compares log-probabilities with one GPU's."""
    if trial.gpus < 2:
        raise InputError("needs two GPUs")
    alone = trial.build_learner_spec("fp32").build()
    with closing(
        launch_learner(trial.build_learner_spec("fp32", ranks=trial.gpus), _WAIT_S)
    ) as many:
        gap = float((alone.logprobs(trial.batch) - many.logprobs(trial.batch)).abs().max())
        _, _, seconds = _train_updates(trial, many)
    if not gap <= _LARGEST_GAP_OF_RANKS:
        raise BrokenPromiseError(f"{trial.gpus} ranks differ from one by {gap:.2g} nats")
    return {"tokens/s": len(trial.batch.tokens) / seconds, "largest |Δ| to one GPU, nats": gap}


def _time_work(trial: MachineTrial, work: Callable[[], object]) -> float:
    """Seconds that some work takes: the fastest of several runs."""
    work()
    seconds = list[float]()
    for _ in range(_REPEATS):
        _wait_for_device(trial)
        begun = time.perf_counter()
        work()
        _wait_for_device(trial)
        seconds.append(time.perf_counter() - begun)
    return min(seconds)


def _wait_for_device(trial: MachineTrial) -> None:
    """Waits until the device is idle."""
    if trial.device.type == "cuda":
        torch.cuda.synchronize()
