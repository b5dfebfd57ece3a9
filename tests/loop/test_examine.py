"""The examination: each probe names its fault in real backends, and nothing else is named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from lockstep.batch import Batch
from lockstep.doctor.backends.hf import HFBackend
from lockstep.doctor.backends.torch import TorchBackend
from lockstep.doctor.base import USUAL, Backend, Capability, Conditions
from lockstep.doctor.examine import AT_FLOOR, Diagnosis, examine
from lockstep.doctor.selftest.fault import PLAINLY, Case, Change, Injected, Setup, build, built
from lockstep.doctor.selftest.ground import Ground
from lockstep.doctor.selftest.tuning import TUNING
from lockstep.types import Request, SamplingParams

FAULTS = {fault.number: fault for fault in TUNING}
COOL = replace(PLAINLY, temperature=0.7)
LIKE_ENGINES = frozenset[Capability](
    ("generate", "dtype", "batch_size", "config", "fresh", "unchunked", "weights", "load")
)


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    return Ground(tmp_path_factory.mktemp("ground"))


def examined(case: Case, requests: int = 10, tokens: int = 24) -> Diagnosis:
    sampling = replace(case.sampling, max_tokens=tokens)
    return examine(case.train, case.infer, case.folder, case.requests[:requests], sampling)


def named(diagnosis: Diagnosis) -> dict[str, str | None]:
    return {one.cause: one.side for one in diagnosis.causes}


def said(diagnosis: Diagnosis, probe: str) -> dict[str, str]:
    """What a probe said, by status."""
    return {looked.status: looked.said for looked in diagnosis.log if looked.name == probe}


@pytest.mark.parametrize(
    ("number", "probe"),
    [
        (6, "token ids"),
        (12, "configuration"),
        (33, "types"),
        (24, "repeats"),
        (29, "repeats"),
        (4, "lag"),
        (16, "weight fingerprints"),
        (5, "first token"),
        (2, "sampling semantics"),
        (22, "batch and padding"),
        (31, "batch and padding"),
        (32, "batch and padding"),
        (14, "decoding against prefill"),
        (15, "decoding against prefill"),
        (10, "layer by layer"),
        (21, "precision"),
    ],
)
def test_a_fault_gets_its_name_from_its_probe_and_no_other(number: int, probe: str, ground: Ground) -> None:
    fault = FAULTS[number]
    diagnosis = examined(build(ground, fault.large))
    assert {one.cause for one in diagnosis.causes} <= set(fault.causes)
    (found,) = diagnosis.causes
    assert fault.side in (found.side, None)
    assert found.confidence == "confirmed"
    assert found.evidence
    assert found.cause in said(diagnosis, probe)["found"]
    assert diagnosis.disagrees
    assert diagnosis.explained
