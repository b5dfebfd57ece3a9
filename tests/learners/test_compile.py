"""Layers made by `torch.compile` against the same layers as they are; over ranks it is tests/dist/test_mesh.py's."""

from __future__ import annotations

import copy
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
from lockstep.models.heads import LogitsHead
from lockstep.models.load import load_causal_lm
from lockstep.models.parallelize import compile_layers, layers

pytestmark = pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf"
)  # torch asks itself
LENGTHS = [(7, 1, 19, 4, 33), (2, 12, 9), (40, 3)]


def network(learner: RankLearner) -> PreTrainedModel:
    lm = learner.model.get_submodule("lm")
    assert isinstance(lm, PreTrainedModel)
    return lm


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_compiled_once_layers_learn_the_same_from_batches_of_all_lengths(
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
        expected, found = (train(learner, batch, WeightedLogprob()).floats() for learner in (plain, compiled))
        assert found == pytest.approx(expected, rel=1e-5)
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs[0] > 0, "nothing was compiled"
    assert len(set(graphs)) == 1, "a batch of other lengths was compiled anew"
    assert not counters["graph_break"]
    expected = dict(plain.weights())
    for name, tensor in compiled.weights():
        torch.testing.assert_close(tensor, expected.pop(name), atol=1e-6, rtol=0.0)
    assert not expected, "names have changed"


@pytest.mark.proof
def test_inductor_computes_the_same(models: Callable[..., Path]) -> None:
    section = SECTION.model_copy(update={"compile": True, "activation_checkpointing": True})
    for head in ("logits", "value"):
        plain, compiled = (
            LearnerSpec(str(models("qwen2 window")), head, chosen, OPTIMIZER, seed=0).build()
            for chosen in (SECTION, section)
        )
        loss = WeightedLogprob() if head == "logits" else SquaredError()
        for seed, lengths in enumerate(LENGTHS):
            batch = ragged(lengths, seed)
            expected, found = (train(learner, batch, loss).floats() for learner in (plain, compiled))
            assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.full  # the first test sees that no graph breaks
@pytest.mark.parametrize("kind", ["llama", "qwen2 window"])
def test_a_layer_is_one_graph_with_its_attention(models: Callable[..., Path], kind: str) -> None:
    torch.compiler.reset()
    plain = load_causal_lm(models(kind))
    whole = copy.deepcopy(plain)
    for layer in layers(whole):
        layer.forward = torch.compile(layer.forward, dynamic=True, fullgraph=True, backend="aot_eager")
    batch, found = ragged(LENGTHS[0]), []
    for lm in (plain, whole):
        logprob = LogitsHead(lm, products=True)(batch).logprob
        assert logprob is not None
        found.append([logprob, *torch.autograd.grad(logprob.sum(), list(lm.parameters()))])
    for expected, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)
