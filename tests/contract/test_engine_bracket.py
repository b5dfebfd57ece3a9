"""The bracket around generation: what it calls, in which order, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
from tabular import TabularLearner, TabularSampler
from torch import Tensor

from lockstep.core.types import Request, SamplingParams
from lockstep.rollouts.sampler_session import SamplerSession
from lockstep.weight_sync.attestation import WeightAttestation
from lockstep.weight_sync.sync import SentFingerprint, WeightSyncError, find_differences

ASKED = ([Request((0,), 1)], SamplingParams(max_tokens=2))

UNUSED = "arrived, but the engine does not compute with it"


def test_sampler_session_loads_weights_once_per_version_between_wake_and_sleep() -> None:
    sampler = TabularSampler()
    engine = SamplerSession(sampler, TabularLearner(0.1))
    for version in (0, 0, 1):
        with engine.at(version):
            engine.generate(*ASKED)
    around = ["wake", "generate", "sleep"]
    assert sampler.phases == [
        "wake",
        "load 0",
        "generate",
        "sleep",
        *around,
        "wake",
        "load 1",
        "generate",
        "sleep",
    ]


def test_sampler_session_refuses_nesting_and_generation_outside_it() -> None:
    engine = SamplerSession(TabularSampler(), TabularLearner(0.1))
    with pytest.raises(RuntimeError, match="do not nest"), engine.at(0), engine.at(0):
        pass
    with pytest.raises(RuntimeError, match="use the sampler only inside"):
        engine.generate(*ASKED)
    with engine.at(0):
        assert len(engine.generate(*ASKED)) == 1


def test_failed_weight_sync_is_repeated_on_next_session_entry() -> None:
    class Once(TabularSampler):
        failed = False

        def load_weights(
            self, stream: Iterable[tuple[str, Tensor]], version: int
        ) -> Sequence[WeightAttestation]:
            held = super().load_weights(stream, version)
            failed, self.failed = self.failed, True
            return held if failed else [WeightAttestation(version, {"logits": 0})]

    sampler = Once()
    engine = SamplerSession(sampler, TabularLearner(0.1))
    with pytest.raises(WeightSyncError, match="logits"), engine.at(0):
        pass
    with engine.at(0):
        pass
    assert sampler.phases.count("load 0") == 2


SENT = {"embed": SentFingerprint(1, 10), "norm": SentFingerprint(2, None)}


@pytest.mark.parametrize(
    ("held", "faults"),
    [
        (WeightAttestation(0, {"embed": 1, "norm": 2}, {"embed": 10}), {}),
        (WeightAttestation(0, {"embed": 1, "norm": 3}), {"norm": "has different bits"}),
        (WeightAttestation(0, {"embed": 1}), {"norm": "did not arrive"}),
        (WeightAttestation(0, {"embed": 1, "norm": 2, "more": 4}), {"more": "was not sent"}),
        (
            WeightAttestation(0, {"embed": 1, "norm": 2}, {"embed": 11}),
            {"embed": UNUSED},
        ),
        (
            WeightAttestation(0, {"embed": 1, "norm": 2, "head": 5}, tied={"head": "embed"}),
            {"head": "has different bits"},
        ),
        (
            WeightAttestation(0, {"embed": 1, "norm": 2}, tied={"head": "embed"}),
            {"head": "did not arrive"},
        ),
        (
            WeightAttestation(0, {"embed": 1, "norm": 2}, kept_caches=("prefix cache",)),
            {"prefix cache": "was not dropped"},
        ),
    ],
)
def test_attestation_check_names_each_differing_tensor_with_reason(
    held: WeightAttestation, faults: dict[str, str]
) -> None:
    assert find_differences(SENT, held) == faults
