"""Runs an advantage estimator through the cases.

The environment variable LOCKSTEP_GAE names another one to run.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable

import pytest
import torch
from advantage_cases import CASES, Case, expected, tensors
from torch import Tensor

TOLERANCE = 1e-5  # of fp32, for rewards and values of magnitude 1
DISCOUNTS = [(1.0, 0.95), (1.0, 1.0), (0.99, 0.9), (0.9, 1.0), (1.0, 0.0), (0.0, 0.5)]


@pytest.fixture(scope="module")
def gae() -> Callable[..., Tensor]:
    name = os.environ.get("LOCKSTEP_GAE", "lockstep.objectives.advantage:gae")
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


@pytest.mark.parametrize(("gamma", "lam"), DISCOUNTS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_gae_matches_definition_and_is_zero_outside_actions(
    case: Case, gamma: float, lam: float, gae: Callable[..., Tensor]
) -> None:
    rewards, values, mask, lengths, final_values = tensors(case)
    try:
        advantages = gae(
            rewards, values, mask, lengths, gamma=gamma, lam=lam, final_value_B=final_values
        )
    except NotImplementedError as missing:
        pytest.skip(f"the estimator does not do this: {missing}")
    assert advantages.shape == rewards.shape
    assert advantages[~mask].eq(0).all(), "an advantage where there is no action"
    torch.testing.assert_close(
        advantages.double(),
        torch.tensor(expected(case, gamma, lam)).double(),
        rtol=TOLERANCE,
        atol=TOLERANCE,
    )
