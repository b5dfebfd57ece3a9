"""The decision whether sampler and learner of a recipe give each token the same log-probability to the bit."""

from __future__ import annotations

from collections.abc import Callable

from lockstep.algorithms.base import Algorithm
from lockstep.errors import InputError
from lockstep.models.device import resolve_device
from lockstep.models.exact.model import explain_inexact
from lockstep.models.exact.probe import probe
from lockstep.models.folder import read_config


def decide_exact(algorithm: Algorithm, folder: str, note: Callable[[str], None]) -> bool:
    """Decides whether a run computes exactly; notes the reason where it should and cannot.

    Args:
        algorithm: The recipe.
        folder: Of the initial model.
        note: Shows the user a line.

    Raises:
        InputError: It cannot, and the recipe requires it.
    """
    inference = algorithm.inference
    if inference is None or inference.sampling is None or not inference.agreement.wants_exact:
        return False
    reason = inference.explain_inexact(algorithm.learner)
    if reason is None and resolve_device(algorithm.learner.device).type != "cpu":
        reason = "learner.device is a GPU, whose kernels are not exact yet"
    config = read_config(folder)
    reason = reason or explain_inexact(config) or probe(config, algorithm.learner.is_bf16, algorithm.learner.lora)
    if reason is None:
        return True
    if inference.agreement.requires_exact:
        raise InputError(f"agreement.exact is require, but {reason}; say true, which falls back, or false")
    note(f"agreement.exact: {reason}, so sampler and learner agree within the bound (E1), not to the bit (E2)")
    return False
