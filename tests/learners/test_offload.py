"""Weights and moments that go to the host's memory and come back: no number changes by what is
asked in between.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from device_bytes import bytes_of
from killing import assert_same
from tiny_models import OPTIMIZER, SECTION, SquaredError, WeightedLogprob, ragged
from torch import Tensor, nn

from lockstep.cluster.specs import LearnerSpec
from lockstep.config import LearnerSection, LoRA
from lockstep.core.batch import Batch
from lockstep.core.types import HeadKind
from lockstep.learners.base import train
from lockstep.learners.host_memory import HostMemory
from lockstep.learners.rank import RankLearner
from lockstep.learners.torch.learner import TorchLearner
from lockstep.losses.base import Loss
from lockstep.models.heads import LogitsHead, ValueHead

Models = Callable[[str], Path]
CPU = torch.device("cpu")
LENGTHS = (7, 2, 19, 4, 33, 12, 9, 3)


def build(
    folder: Path, head: HeadKind = "logits", section: LearnerSection = SECTION
) -> RankLearner:
    """A learner whose weights are memory of its own, as on a GPU; on a CPU they may be those of a
    file.
    """
    model = LearnerSpec(str(folder), head, section, OPTIMIZER, 0).build().model
    assert isinstance(model, LogitsHead | ValueHead)
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    return TorchLearner(model, section, OPTIMIZER)


def snapshot(learner: RankLearner) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in learner.weights()}


def score(learner: RankLearner, batch: Batch, head: HeadKind) -> Tensor:
    return torch.cat(learner.values(batch)) if head == "value" else learner.logprobs(batch)


CASES: dict[str, tuple[str, HeadKind, LoRA | None]] = {
    "policy": ("llama", "logits", None),
    "tied weights": ("qwen2 tied", "logits", None),
    "critic": ("llama", "value", None),
    "adapters": ("llama", "logits", LoRA(rank=3, alpha=12)),
}


@pytest.mark.parametrize("case", CASES)
def test_learner_offloaded_between_steps_trains_and_saves_identically(
    models: Models, tmp_path: Path, case: str
) -> None:
    kind, head, lora = CASES[case]
    loss: Loss = SquaredError() if head == "value" else WeightedLogprob()
    section = SECTION.model_copy(update={"lora": lora})
    stays, leaves = (build(models(kind), head, section) for _ in range(2))
    batches = [ragged(LENGTHS, seed) for seed in range(4)]
    for batch in batches:
        before = bytes_of(leaves)
        leaves.offload()
        assert bytes_of(leaves) == 0
        assert_same(snapshot(stays), dict(leaves.weights()))
        assert bytes_of(leaves) == 0, "weights are lent for a weight sync, one by one"
        assert torch.equal(score(stays, batch, head), score(leaves, batch, head))
        leaves.offload()
        assert train(leaves, batch, loss).floats() == train(stays, batch, loss).floats()
        assert bytes_of(leaves) >= before > 0
    leaves.offload()
    for learner, name in ((stays, "stays"), (leaves, "leaves")):
        learner.save(tmp_path / name)
        assert learner.poll_save(wait=True)
    for file in (tmp_path / "stays").iterdir():
        assert file.read_bytes() == (tmp_path / "leaves" / file.name).read_bytes()
    for learner in (stays, leaves):
        learner.offload()
        learner.load(tmp_path / "leaves")
    assert train(leaves, batches[0], loss).floats() == train(stays, batches[0], loss).floats()
    assert_same(snapshot(stays), snapshot(leaves))


def test_optimizer_reset_while_offloaded_matches_reset_on_device(models: Models) -> None:
    stays, leaves = (build(models("llama")) for _ in range(2))
    for seed in range(3):
        leaves.offload()
        for learner in (stays, leaves):
            learner.reset_optimizer()
            train(learner, ragged(LENGTHS, seed), WeightedLogprob())
    leaves.offload()
    tensors = [
        *leaves.model.parameters(),
        *(leaves._optimizer.list_tensors() if leaves._optimizer else ()),
    ]
    assert len(leaves._host._places) == len(tensors), "no room is kept for moments of before"
    assert_same(snapshot(stays), snapshot(leaves))


def test_offload_and_reload_move_every_alias_of_a_storage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lockstep.learners.host_memory._CHUNK", 1 << 10)
    whole = torch.randn(700)
    part, other = nn.Parameter(whole[100:300].view(10, 20)), torch.arange(5)
    expected, memory = whole.clone(), HostMemory(CPU)
    for _ in range(2):
        memory.offload_tensors([part, other, part.detach()])
        assert whole.untyped_storage().nbytes() == other.untyped_storage().nbytes() == 0
        with memory.lend_tensors([whole]):
            assert torch.equal(whole, expected)
            assert other.untyped_storage().nbytes() == 0
        assert whole.untyped_storage().nbytes() == 0
        memory.reload_tensors([part])
        assert torch.equal(whole, expected)
        assert other.untyped_storage().nbytes() == 0
        memory.reload_tensors()
        assert other.tolist() == [0, 1, 2, 3, 4]
        expected.add_(1)
        whole.add_(1)
