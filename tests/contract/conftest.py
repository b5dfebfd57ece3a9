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
    """Starts replicas that are ended with the test."""
    started: list[SamplerPool] = []

    def start(fate: signal.Signals = signal.SIGKILL, **section: object) -> SamplerPool:
        chosen = SamplerSection.model_validate({"max_batch_size": 2, **section})
        spec = DiarySpec(str(models("llama")), chosen, SECTION, folder=str(tmp_path), fate=fate)
        started.append(SamplerPool(spec))
        return started[-1]

    yield start
    for replicas in started:
        replicas.close()
