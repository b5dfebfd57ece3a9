"""Adapters over ranks that share rows or tokens, against one process: the same steps, weights and
checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from twins import Twins, demonstrations, recorded, section, twins

from lockstep.config import LoRA
from lockstep.core.batch import Batch
from lockstep.learners.base import train
from lockstep.losses.base import Loss
from lockstep.losses.ppo import ClippedValue

pytestmark = pytest.mark.needs("gloo")
Models = Callable[[str], Path]
LAYOUTS = {
    "dp2": ({"dp": 2}, "qwen2 tied", "logits"),
    "cp2": ({"cp": 2}, "qwen3", "value"),
    "dp2 of another family": ({"dp": 2}, "gpt neox", "logits"),
    "2 copies dp2": ({"dp_replicate": 2, "dp": 2}, "llama", "logits"),
    "offloaded": (
        {"dp": 2, "cpu_offload": True, "activation_checkpointing": True},
        "llama",
        "logits",
    ),
}
DAILY = ("dp2", "cp2")


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=() if name in DAILY else pytest.mark.proof) for name in LAYOUTS
    ],
)
def pair(
    request: pytest.FixtureRequest, models: Models, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Twins]:
    given, architecture, head = LAYOUTS[request.param]
    parallel = {name: size for name, size in given.items() if not isinstance(size, bool)}
    ways = {name: said for name, said in given.items() if isinstance(said, bool)}
    adapted = section("torch", **parallel).model_copy(
        update={"lora": LoRA(rank=3, alpha=12), **ways}
    )
    yield from twins((adapted, models(architecture)), head, tmp_path_factory.mktemp("first"))


def steps_of(pair: Twins) -> list[tuple[Batch, Loss]]:
    """Of the head that it is."""
    plain = demonstrations(6)
    if pair.many.section.parallel.cp == 1:
        return plain
    drawn = [batch.with_columns({"sampler_logprob": batch["advantage"]}) for batch, _ in plain]
    return [(recorded(batch, seed), ClippedValue(0.2)) for seed, batch in enumerate(drawn)]


def test_lora_over_ranks_starts_with_equal_adapters_and_matches_one_process(pair: Twins) -> None:
    first = [dict(learner.weights()) for learner in (pair.one, pair.many)]
    assert all(torch.equal(tensor, first[1][name]) for name, tensor in first[0].items())
    pair.alike(steps_of(pair)[:3])
    pair.hold_the_same()
    last = dict(pair.many.weights())
    moved = {name for name, tensor in first[1].items() if not torch.equal(tensor, last[name])}
    assert 2 * 4 <= sum(name.endswith("weight") for name in moved) < len(first[1]) - 2


def test_lora_checkpoint_of_ranks_resumes_in_one_process_and_in_ranks(
    pair: Twins, tmp_path: Path
) -> None:
    steps = steps_of(pair)
    pair.alike(steps[:3])
    pair.many.save(tmp_path)
    assert pair.many.poll_save(wait=True)
    pair.one.load(tmp_path)
    expected = [train(pair.many, *step).floats() for step in steps[3:]]
    assert [train(pair.one, *step).floats() for step in steps[3:]] == [
        pytest.approx(e, rel=1e-5) for e in expected
    ]
    pair.many.load(tmp_path)
    assert [train(pair.many, *step).floats() for step in steps[3:]] == expected, "bit for bit"
