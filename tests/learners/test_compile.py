"""Layers made by `torch.compile` against the same layers as they are; over ranks it is
tests/dist/test_mesh.py's.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tiny_models import OPTIMIZER, SECTION, SquaredError, WeightedLogprob, ragged
from torch._dynamo.utils import counters
from transformers import PreTrainedModel

from lockstep.cluster.specs import LearnerSpec
from lockstep.learners.base import train
from lockstep.learners.rank import RankLearner
from lockstep.models.parallelize import compile_layers

# torch asks itself
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
LENGTHS = [(7, 1, 19, 4, 33), (2, 12, 9), (40, 3)]


def network(learner: RankLearner) -> PreTrainedModel:
    lm = learner.model.get_submodule("lm")
    assert isinstance(lm, PreTrainedModel)
    return lm


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_compiled_layers_match_eager_training_without_recompiling_for_new_lengths(
    models: Callable[..., Path], dtype: str
) -> None:
    """Without inductor, which takes a minute here: its numbers are a proof."""
    torch.compiler.reset()
    counters.clear()
    section = SECTION.model_copy(update={"dtype": dtype})
    spec = LearnerSpec(str(models("llama")), "logits", section, OPTIMIZER, seed=0)
    plain, compiled = spec.build(), spec.build()
    compile_layers(network(compiled), backend="aot_eager")
    counters.clear()
    graphs = []
    for seed, lengths in enumerate(LENGTHS):
        batch = ragged(lengths, seed)
        expected, found = (
            train(learner, batch, WeightedLogprob()).floats() for learner in (plain, compiled)
        )
        assert found == pytest.approx(expected, rel=1e-5)
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs[0] > 0, "nothing was compiled"
    assert len(set(graphs)) == 1, "a batch of other lengths was compiled anew"
    expected = dict(plain.weights())
    for name, tensor in compiled.weights():
        torch.testing.assert_close(tensor, expected.pop(name), atol=1e-6, rtol=0.0)
    assert not expected, "names have changed"


@pytest.mark.proof
def test_inductor_training_metrics_match_eager(models: Callable[..., Path]) -> None:
    section = SECTION.model_copy(update={"compile": True, "activation_checkpointing": True})
    for head in ("logits", "value"):
        plain, compiled = (
            LearnerSpec(str(models("qwen2 window")), head, chosen, OPTIMIZER, seed=0).build()
            for chosen in (SECTION, section)
        )
        loss = WeightedLogprob() if head == "logits" else SquaredError()
        for seed, lengths in enumerate(LENGTHS):
            batch = ragged(lengths, seed)
            expected, found = (
                train(learner, batch, loss).floats() for learner in (plain, compiled)
            )
            assert found == pytest.approx(expected, rel=1e-5)
