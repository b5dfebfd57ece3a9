"""The checks of a machine: each measures, or says why it cannot, or finds that a promise is broken."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch

from lockstep.algorithms.exactness import explain_inexact_sampler
from lockstep.cluster.learner_group import launch
from lockstep.cluster.sampler_pool import SamplerPool
from lockstep.cluster.specs import SamplerSpec, require_sampler
from lockstep.config import SamplerSection
from lockstep.config.machinery import DType
from lockstep.errors import BrokenPromiseError, InputError
from lockstep.learners.base import Learner, train
from lockstep.losses.cross_entropy import CrossEntropyLoss
from lockstep.models.folder import read_config
from lockstep.models.open_kernels import describe_attention
from lockstep.monitor.options import AgreementSection
from lockstep.objectives.tally import Tally
from lockstep.plan.time import count_learning
from lockstep.samplers.base import Sampler
from lockstep.weight_sync.sync import random_probe, sync_weights
from lockstep_doctor.machine.scores import measure_scores
from lockstep_doctor.machine.trial import TYPES, Trial

_WAIT_S = 300.0
"""The longest that one call of another process may take."""
_REPEATS = 5
FEW_ROWS = 8
"""Rows of a product so thin that it takes as long as its weights take to be read."""
_UPDATES = 8
_LARGEST_GAP_OF_RANKS = 1e-3
"""Nats between log-probabilities over all GPUs and those of one."""

Measured = Mapping[str, float | str]
"""Figures of a check, by name with their unit."""


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        name: Its name.
        measure: Measures; raises what is wrong.
        missing: What this machine lacks for it; None: nothing.
    """

    name: str
    measure: Callable[[], Measured]
    missing: str | None = None


def list_checks(trial: Trial) -> list[Check]:
    """All checks, the quick ones first."""
    vllm = trial.sampler(backend="vllm", kv_cache_gib=trial.cache_gib)
    same = None if trial.device.type == "cuda" else "on a CPU the torch sampler is exact wherever it can be"
    second_gpu = None if trial.gpus > 1 else "it takes two GPUs"
    no_gpu = None if trial.device.type == "cuda" else "it takes a GPU"
    return [
        Check("copy", partial(measure_copy, trial)),
        Check("products", partial(measure_products, trial)),
        *(Check(f"log-probabilities, {dtype}", partial(measure_scores, trial, dtype)) for dtype in TYPES),
        *(Check(f"learner, {dtype}", partial(measure_learner, trial, dtype)) for dtype in TYPES),
        *(Check(f"torch sampler, {dtype}", partial(measure_torch_sampler, trial, dtype)) for dtype in TYPES),
        *(Check(f"exact, {dtype}", partial(measure_exact, trial, dtype), same) for dtype in TYPES),
        *(
            Check(f"weight sync, {way}", partial(measure_sync, trial, trial.sampler(transfer=way)))
            for way in ("shared_memory", "process_group")
        ),
        Check("weight sync, cuda_ipc", partial(measure_sync, trial, trial.sampler(transfer="cuda_ipc")), no_gpu),
        Check("learner over all GPUs", partial(measure_ranks, trial), second_gpu),
        Check("vLLM, bf16", partial(measure_vllm, trial, vllm), _find_missing(trial, vllm)),
    ]


def measure_copy(trial: Trial) -> Measured:
    """Reads and writes memory of the device, and moves as much from the host."""
    here = torch.zeros(trial.scale.copied, dtype=torch.uint8, device=trial.device)
    there = torch.zeros_like(here)
    host = torch.zeros(trial.scale.copied // 8, dtype=torch.uint8, pin_memory=trial.device.type == "cuda")
    seconds = _time(trial, lambda: there.copy_(here))
    moved = _time(trial, lambda: here[: len(host)].copy_(host, non_blocking=True))
    return {"read and written, GB/s": 2 * len(here) / seconds / 1e9, "from the host, GB/s": len(host) / moved / 1e9}


def measure_products(trial: Trial) -> Measured:
    """Multiplies square matrices, and few rows with one, as decoding does."""
    found: dict[str, float] = {}
    for name, dtype in TYPES.items():
        found[f"{name}, TFLOP/s"] = multiply(trial, dtype, trial.scale.product) / 1e12
        rows, weights = FEW_ROWS, trial.scale.product**2 * dtype.itemsize
        seconds = 2 * rows * trial.scale.product**2 / multiply(trial, dtype, rows)
        found[f"{name}, weights read by {rows} rows, GB/s"] = weights / seconds / 1e9
    return found


def multiply(trial: Trial, dtype: torch.dtype, rows: int) -> float:
    """Operations per second of a product of so many rows with a square matrix."""
    size = trial.scale.product
    left, right = (torch.randn(n, size, device=trial.device, dtype=dtype) for n in (rows, size))
    out = torch.empty_like(left)
    return 2 * rows * size**2 / _time(trial, lambda: torch.mm(left, right, out=out))


def measure_learner(trial: Trial, dtype: DType) -> Measured:
    """Trains on one batch again and again: speed, memory against the plan, and whether the loss falls."""
    if trial.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    spec = trial.learner(dtype)
    before, after, seconds = _train(trial, spec.build())
    rank = trial.rank(dtype)
    found: dict[str, float | str] = {
        "attention": describe_attention(read_config(str(trial.folder)), trial.device, spec.section.dtype),
        "tokens/s": len(trial.batch.tokens) / seconds,
        "share of products": count_learning(rank) / seconds / multiply(trial, TYPES[dtype], trial.scale.product),
        "loss, before": before,
        "loss, after": after,
    }
    if trial.device.type == "cuda":
        peak, planned = torch.cuda.max_memory_allocated(), rank.peak.size
        found |= {"peak, GB": peak / 1e9, "planned, GB": planned / 1e9, "peak / planned": peak / planned}
    return found


def _train(trial: Trial, learner: Learner) -> tuple[float, float, float]:
    """Trains on one batch. Returns the loss before the first update and before the last, and seconds of an update.

    Raises:
        BrokenPromiseError: The loss does not fall.
    """
    losses, ends = list[float](), list[float]()
    for _ in range(1 + _UPDATES):
        losses.append(train(learner, trial.batch, CrossEntropyLoss()).floats()["loss"])
        ends.append(time.perf_counter())
    before, after = losses[0], losses[-1]
    if not after < before:
        raise BrokenPromiseError(f"{_UPDATES} updates on one batch took the loss from {before:.3f} to {after:.3f}")
    return before, after, (ends[-1] - ends[0]) / _UPDATES


def measure_torch_sampler(trial: Trial, dtype: DType) -> Measured:
    """Samples with the torch sampler, and lets a learner with the same weights score the tokens."""
    section, computation, spec = trial.sampler(), trial.computation(dtype), trial.learner(dtype)
    inexact = explain_inexact_sampler(str(trial.folder), section, computation)
    if inexact is None:
        return measure_exact(trial, dtype)
    sampler, learner = SamplerSpec(str(trial.folder), section, computation).open_here(), spec.build()
    return {**_agree(trial, sampler, learner, dtype), "exact": inexact}


def measure_exact(trial: Trial, dtype: DType) -> Measured:
    """Samples and scores by the exact kernels, which on a GPU only `agreement.exact=require` uses; or says why not.

    Raises:
        BrokenPromiseError: A token's two log-probabilities are not the same to the bit.
    """
    inexact = explain_inexact_sampler(str(trial.folder), trial.sampler(), trial.computation(dtype), may_be_slow=True)
    if inexact is not None:
        return {"exact": inexact}
    computation, spec = trial.computation(dtype).compute_exactly(), trial.learner(dtype)
    learner = replace(spec, section=spec.section.compute_exactly()).build()
    found = _agree(trial, SamplerSpec(str(trial.folder), trial.sampler(), computation).open_here(), learner, dtype)
    if found["not equal to the bit"]:
        raise BrokenPromiseError(
            f"sampler and learner compute exactly here, and {found['not equal to the bit']:,.0f} of "
            f"{found['tokens compared']:,.0f} tokens differ, by up to {found['largest |Δ|, nats']:.2g} nats"
        )
    return {**found, "exact": "yes"}


def _agree(trial: Trial, sampler: Sampler, learner: Learner, dtype: DType) -> dict[str, float]:
    """Samples, and compares log-probabilities token by token."""
    sampler.generate(trial.requests[:2], trial.sampling)
    begun = time.perf_counter()
    batch = sampler.generate(trial.requests, trial.sampling)
    seconds = time.perf_counter() - begun
    tally = Tally.of(learner.logprobs(batch), batch["sampler_logprob"], batch.mask, batch.lengths)
    bound = AgreementSection().bound(dtype)
    if tally.breaks(bound):
        raise BrokenPromiseError(
            f"sampler and learner disagree on {tally.mismatches:,} of {tally.tokens:,.0f} tokens, by up to "
            f"{tally.largest:.2g} nats: more than the bound {bound:g} on the mean of e^|Δ|"
        )
    return {
        "tokens/s": tally.tokens / seconds,
        "tokens compared": tally.tokens,
        "not equal to the bit": float(tally.mismatches),
        "largest |Δ|, nats": tally.largest,
    }


def measure_sync(trial: Trial, section: SamplerSection) -> Measured:
    """Sends weights to a torch sampler in a process of its own, and compares fingerprints of what it holds."""
    learner = trial.learner("fp32").build()
    pool = SamplerPool(SamplerSpec(str(trial.folder), section, trial.computation("fp32")), print)
    try:
        return _send(trial, learner, pool, "fp32")
    finally:
        pool.close()


def _send(trial: Trial, learner: Learner, pool: SamplerPool, dtype: DType) -> dict[str, float]:
    """Sends weights several times; a broken promise is raised."""
    probe = random_probe(trial.scale.vocabulary, trial.scale.prompt + trial.scale.response, dtype)
    size = sum(tensor.numel() * pool.dtype.itemsize for _, tensor in learner.weights())
    attested, seconds = 0.0, list[float]()
    for version in range(3):
        begun = time.perf_counter()
        attested = sync_weights(learner, pool, version, probe).floats()["refit/attested"]
        seconds.append(time.perf_counter() - begun)
    return {"sync GB/s": size / min(seconds) / 1e9, "sync, s": min(seconds), "tensors attested": attested}


def measure_ranks(trial: Trial) -> Measured:
    """Trains over all GPUs, and compares log-probabilities with those of one."""
    alone = trial.learner("fp32").build()
    many = launch(trial.learner("fp32", ranks=trial.gpus), _WAIT_S)
    try:
        gap = float((alone.logprobs(trial.batch) - many.logprobs(trial.batch)).abs().max())
        _, _, seconds = _train(trial, many)
    finally:
        many.close()
    if not gap <= _LARGEST_GAP_OF_RANKS:
        raise BrokenPromiseError(f"{trial.gpus} ranks differ from one by {gap:.2g} nats")
    return {"tokens/s": len(trial.batch.tokens) / seconds, "largest |Δ| to one GPU, nats": gap}


def _find_missing(trial: Trial, section: SamplerSection) -> str | None:
    """Says what an engine lacks here; None: nothing."""
    try:
        require_sampler(section, trial.computation("bf16"))
    except InputError as error:
        return str(error)
    return None


def measure_vllm(trial: Trial, section: SamplerSection) -> Measured:
    """Sends weights to vLLM, samples with it, and lets a learner with the same weights score the tokens."""
    learner = trial.learner("bf16").build()
    pool = SamplerPool(SamplerSpec(str(trial.folder), section, trial.computation("bf16")), print)
    try:
        return {**_send(trial, learner, pool, "bf16"), **_agree(trial, pool, learner, "bf16")}
    finally:
        pool.close()


def _time(trial: Trial, work: Callable[[], object]) -> float:
    """Seconds of some work, the fastest of several times."""
    work()
    seconds = list[float]()
    for _ in range(_REPEATS):
        _wait(trial)
        begun = time.perf_counter()
        work()
        _wait(trial)
        seconds.append(time.perf_counter() - begun)
    return min(seconds)


def _wait(trial: Trial) -> None:
    """Waits until the device has done its work."""
    if trial.device.type == "cuda":
        torch.cuda.synchronize()
