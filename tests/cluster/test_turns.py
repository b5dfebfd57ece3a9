"""Turns of learners: who leaves when, and who gives back what it keeps for later."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from gpus import show_gpus

from lockstep.algorithms.base import Algorithm
from lockstep.algorithms.rows import data_files
from lockstep.cluster.turns import DeviceTurns
from lockstep.cluster.workers import WorkerPool
from lockstep.config.loading import load_recipe
from lockstep.models.source import open_source
from lockstep.report.progress import show_notes
from lockstep.run.live_setup import LiveSetup


@dataclass(eq=False)
class Noting:
    """A learner that notes what it is asked."""

    asked: list[str] = field(default_factory=list)

    def offload(self, keep_weights: bool = False) -> None:
        self.asked.append("moments leave" if keep_weights else "leave")

    def empty_cache(self) -> None:
        self.asked.append("empty")


def test_offload_keeps_weights_of_the_learner_an_engine_computes_with() -> None:
    turns = DeviceTurns()
    learners: list[Any] = [Noting(), Noting()]
    for learner in learners:
        turns.add_learner(learner)
    turns.offload_learners(learners[1])
    turns.offload_learners()
    assert [learner.asked for learner in learners] == [
        ["leave", "leave"],
        ["moments leave", "leave"],
    ]


def test_learner_empties_its_cache_when_another_learner_begins() -> None:
    turns = DeviceTurns()
    policy: Any = Noting()
    critic: Any = Noting()
    for working in (policy, policy, critic, critic, policy):
        turns.begin_work(working)
    assert (policy.asked, critic.asked) == (["empty"], ["empty"])


def test_offload_idle_makes_vllm_take_turns_and_frees_memory_for_kv_cache(
    assets: Path, in_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    show_gpus(monkeypatch, 1)
    model, beside = assets / "models/stories260K/hf", dict[bool, int]()
    for offload in (True, False):
        options = [
            "learner.device=auto",
            "sampler=vllm",
            f"cluster.offload_idle={str(offload).lower()}",
        ]
        recipe = load_recipe("ppo_arithmetic", [*options, f"model.path={model}"]).expect_recipe(
            Algorithm
        )
        files, source = data_files(recipe.data, in_tmp), open_source(str(model))
        spec = LiveSetup(
            recipe, in_tmp, files, source, "a test", show_notes(), WorkerPool()
        )._sampler_spec
        assert spec.section.takes_turns is spec.backend.forgets_weights(spec.section) is offload
        assert spec.budget is not None
        beside[offload] = spec.budget.other
    assert beside[True] < beside[False]
