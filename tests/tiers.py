"""Which of many alike cases `make test` takes, and which wait for `make proofs`, which takes them all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def one_in(step: int, cases: Iterable[Any], name: Callable[[Any], str] = str) -> list[Any]:
    """Cases for `parametrize`: every `step`-th for every day, from the first on, the others as proofs."""
    return [
        pytest.param(case, id=name(case), marks=pytest.mark.proof if place % step else ())
        for place, case in enumerate(cases)
    ]
