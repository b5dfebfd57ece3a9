"""Decides whether sampler and learner compute bit-identical log-probabilities."""

from __future__ import annotations

from collections.abc import Callable

from lockstep.algorithms.base import Algorithm
from lockstep.config import Computation, LearnerSection, LoRA, SamplerSection
from lockstep.config.backends import INFERENCE
from lockstep.core.errors import InputError
from lockstep.models.device import resolve_device
from lockstep.models.exact.layouts import explain_inexact_layout
from lockstep.models.exact.model import explain_inexact
from lockstep.models.exact.probe import explain_no_gpu_kernels, probe_exactness
from lockstep.models.folder import read_config


def decide_exact(algorithm: Algorithm, folder: str, note: Callable[[str], None]) -> str | None:
    """Decides whether a run computes exactly; notes the reason if it should but cannot.

    Args:
        algorithm: The recipe.
        folder: Folder of the initial model.
        note: Shows the user a line.

    Returns:
        The reason why the run is not exact; None if it is.

    Raises:
        InputError: The run cannot be exact, and the recipe requires it.
    """
    inference = algorithm.inference
    if inference is None or inference.sampling is None:
        return "it trains on no samples"
    if not inference.agreement.wants_exact:
        return "agreement.exact is false"
    learner = algorithm.learner
    reason = inference.explain_inexact(learner)
    reason = reason or _explain_inexact_ranks(folder, learner)
    reason = reason or explain_inexact_sampler(
        folder,
        inference.sampler,
        learner,
        learner.lora,
        may_be_slow=inference.agreement.requires_exact,
    )
    if reason is None:
        return None
    if inference.agreement.requires_exact:
        raise InputError(
            f"agreement.exact is require, but {reason}; set it to true, which falls back, or false"
        )
    note(
        f"agreement.exact: {reason}, so sampler and learner agree within the bound (E1), not "
        "bitwise (E2)"
    )
    return reason


def choose_kernels(
    folder: str, sampler: SamplerSection, computation: Computation, note: Callable[[str], None]
) -> Computation:
    """Chooses batch-invariant kernels for a model that only samples, if available.

    Args:
        folder: Folder of the model.
        sampler: Its inference engine.
        computation: Device and dtype.
        note: Shows the reason if they are not available.
    """
    usual = Computation(device=computation.device, dtype=computation.dtype)
    reason = explain_inexact_sampler(folder, sampler, usual)
    if reason is None:
        return usual.compute_exactly()
    note(f"not exact: {reason}, so the last bits of responses may depend on sampler.max_batch_size")
    return usual


def choose_learner_kernels(
    folder: str, learner: LearnerSection, note: Callable[[str], None]
) -> LearnerSection:
    """Chooses exact kernels for a learner before its samplers are known, if available.

    Args:
        folder: Folder of the model.
        learner: The learner's options.
        note: Shows the reason if they are not available.
    """
    reason = learner.explain_inexact()
    if reason is None and learner.lora is not None:
        reason = "learner.lora adapters are merged for samplers that do not support adapters"
    reason = reason or _explain_inexact_ranks(folder, learner)
    reason = reason or _explain_inexact_model(folder, learner)
    if reason is None:
        return learner.compute_exactly()
    note(
        f"not exact: {reason}, so samplers agree with this learner up to rounding (E1), not "
        "bitwise (E2)"
    )
    return learner


def explain_inexact_sampler(
    folder: str,
    sampler: SamplerSection,
    computation: Computation,
    adapters: LoRA | None = None,
    may_be_slow: bool = False,
) -> str | None:
    """Returns the reason why log-probabilities depend on the batch; None if they do not.

    Args:
        folder: Folder of the model.
        sampler: Its inference engine.
        computation: Device and dtype.
        adapters: LoRA adapters of the model.
        may_be_slow: True to use exact kernels on a GPU too, although they are slower.
    """
    if not INFERENCE.find_backend(sampler.backend).is_exact:
        return f"sampler.backend={sampler.backend} uses its own kernels"
    return _explain_inexact_model(folder, computation, adapters, may_be_slow)


def _explain_inexact_ranks(folder: str, learner: LearnerSection) -> str | None:
    """Returns the reason why a learner's ranks compute other bits than one process; None if they do
    not.
    """
    if learner.parallel.tp > 1 and resolve_device(learner.device).type != "cpu":
        return f"learner.parallel.tp is {learner.parallel.tp}, which is exact only on CPUs"
    return explain_inexact_layout(read_config(folder), learner.parallel)


def _explain_inexact_model(
    folder: str, computation: Computation, adapters: LoRA | None = None, may_be_slow: bool = False
) -> str | None:
    """Returns the reason why this machine cannot compute a model exactly; None if it can."""
    device = resolve_device(computation.device)
    config = read_config(folder)
    if device.type == "cpu":
        return explain_inexact(config) or probe_exactness(
            config, computation.dtype, adapters=adapters
        )
    if not may_be_slow:
        return (
            "learner.device is a GPU, whose slower exact kernels are used only with exact=require"
        )
    if adapters is not None:
        return "learner.lora adapters are not exact on a GPU"
    reason = explain_inexact(config) or explain_no_gpu_kernels(config)
    return reason or probe_exactness(config, computation.dtype, device)
