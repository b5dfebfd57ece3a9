"""Samplers in processes of their own."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from diary import DiarySpec, Start
from tiny_models import SECTION

from lockstep.cluster.sampler_pool import SamplerPool
from lockstep.config import SamplerSection


@pytest.fixture
def start(models: Callable[..., Path], tmp_path: Path) -> Iterator[Start]:
    """Starts replicas that are ended with the test; `notes` is what they tell the user."""
    started: list[SamplerPool] = []

    def start(fate: signal.Signals = signal.SIGKILL, notes: list[str] | None = None, **section: object) -> SamplerPool:
        chosen = SamplerSection.model_validate({"max_batch_size": 2, **section})
        spec = DiarySpec(str(models("llama")), chosen, SECTION, folder=str(tmp_path), fate=fate)
        started.append(SamplerPool(spec, (notes if notes is not None else []).append))
        return started[-1]

    yield start
    for replicas in started:
        replicas.close()
