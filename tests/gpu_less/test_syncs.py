"""How often a learner's verbs wait for a GPU, and what they send to it: bounds, by verb."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cpu_varlen  # noqa: F401 -- gives torch's attention of variable lengths a kernel for CPUs
import pytest
import torch
from pretend_gpu import Record, Verb, pretend_gpu
from tiers import full
from tiny_models import ARCHITECTURES, OPTIMIZER, SECTION, SquaredError, WeightedLogprob, ragged
from transformers import PreTrainedModel

from lockstep.cluster.specs import LearnerSpec
from lockstep.core.types import HeadKind
from lockstep.learners.base import train
from lockstep.learners.rank import RankLearner
from lockstep.losses.base import Loss
from lockstep.models.device import load_on_device
from lockstep.models.load import load_causal_lm
from lockstep.models.open_kernels import open_kernels
from lockstep.samplers.torch.sampler import TorchSampler
from lockstep.weight_sync import buckets
from lockstep.weight_sync.carriers import TransferRoute
from lockstep.weight_sync.fingerprints import (
    column_fingerprint,
    fingerprint_tensor,
    read_fingerprints,
    start_column_fingerprint,
    start_fingerprint,
)
from lockstep.weight_sync.outgoing import OutgoingWeights
from lockstep.weight_sync.sender import LocalSender
from lockstep.weight_sync.sync import sync_weights

LENGTHS = (7, 2, 19, 4, 33, 12, 9, 3)
ON_GPU = SECTION.model_copy(update={"device": "cuda", "rows_per_pass": 3})


MOE = {
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
    "qwen3_moe": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "head_dim": 8,
    },
    "gpt_oss": {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "head_dim": 8,
        "sliding_window": 20,
    },
}


EXPERTS = ("GptOssExperts", "MixtralExperts", "Qwen3MoeExperts")


def build(folder: Path, head: HeadKind, **section: object) -> RankLearner:
    return LearnerSpec(
        str(folder), head, ON_GPU.model_copy(update=section), OPTIMIZER, seed=0
    ).build()


def assert_no_wait(record: Record) -> None:
    """Passes wait for no copy; an update waits once: is its gradient finite?"""
    assert not record.count("sync", "passes"), record.lines("passes")
    assert not record.count("slow copy", "passes", "update"), record.lines("passes", "update")
    assert record.count("copy", "passes"), record.lines("passes")
    assert record.count("sync", "update") == 1, record.lines("update")


@pytest.mark.parametrize("head", ["logits", "value"])
@pytest.mark.parametrize(
    "kind", [kind if kind in ("llama", "qwen2 window") else full(kind) for kind in ARCHITECTURES]
)
def test_dense_model_passes_never_wait_for_gpu(
    models: Callable[..., Path], kind: str, head: HeadKind
) -> None:
    loss: Loss = WeightedLogprob() if head == "logits" else SquaredError()
    folder = models(kind)
    with pretend_gpu() as record:
        learner = build(folder, head)
        train(learner, ragged(LENGTHS), loss)
        assert_no_wait(record)


@pytest.fixture
def experts(
    models: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], PreTrainedModel]:
    """Opens a small mixture of experts."""

    def build_kind(kind: str) -> PreTrainedModel:
        monkeypatch.setitem(ARCHITECTURES, kind, {"model_type": kind, **MOE[kind]})
        return load_causal_lm(models(kind))

    return build_kind


@pytest.mark.parametrize("kind", MOE)
def test_bf16_moe_layer_with_fp32_weights_never_waits_for_gpu(
    experts: Callable[[str], PreTrainedModel], kind: str
) -> None:
    """Weights are fp32 and products bf16, as in a learner; their gradients come back in fp32."""
    lm = experts(kind)
    layer: Any = next(module for module in lm.modules() if type(module).__name__ in EXPERTS)
    with pretend_gpu() as record:
        open_kernels(lm, torch.device("cuda"), "bf16")
        layer.to("cuda")
        hidden = torch.randn(9, 32, device="cuda", requires_grad=True)
        chosen = torch.arange(18, device="cuda").remainder(4).view(9, 2)
        with torch.autocast("cuda", torch.bfloat16):
            out = layer(hidden, chosen, torch.rand(9, 2, device="cuda"))
        out.sum().backward()
        assert not record.count("sync"), record.lines()
        assert out.dtype == torch.float32
        assert all(weight.grad is not None and weight.grad.any() for weight in layer.parameters())


@pytest.mark.parametrize(("verb", "syncs"), [("logprobs", 1), ("topk", 2), ("values", 2)])
def test_scoring_a_batch_waits_for_gpu_at_most_twice(
    models: Callable[..., Path], verb: Verb, syncs: int
) -> None:
    folder, batch = models("llama"), ragged(LENGTHS)
    with pretend_gpu() as record:
        learner = build(folder, "value" if verb == "values" else "logits")
        score = {
            "logprobs": learner.logprobs,
            "values": learner.values,
            "topk": lambda batch: learner.topk(batch, 3),
        }
        score[verb](batch)
        assert record.count("sync", verb) == syncs, record.lines(verb)
        assert record.count("copy", verb), record.lines(verb)
        assert not record.count("slow copy", verb), record.lines(verb)


def test_weight_sync_waits_for_gpu_once_per_side(models: Callable[..., Path]) -> None:
    folder = models("llama")
    with pretend_gpu() as record:
        learner, sampler = (
            build(folder, "logits"),
            TorchSampler(load_on_device(str(folder), ON_GPU), 4),
        )
        for version in (1, 2):
            before = len(record.events)
            sync_weights(learner, sampler, version)
            events = record.events[before:]
            assert sum(event.kind == "sync" for event in events) == 2, record.lines("refit")
        assert not [event for event in events if event.kind != "sync"], (
            "tables of fingerprints stay where they are"
        )


@pytest.mark.parametrize("shape", [(5, 7), (3, 70_001), (260, 16 * 3067)])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_fingerprints_on_gpu_match_cpu_and_need_one_wait(
    shape: tuple[int, ...], kind: torch.dtype
) -> None:
    made = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(kind)
    expected = fingerprint_tensor(made), column_fingerprint(made)
    with pretend_gpu() as record:
        there = made.to("cuda")
        found = fingerprint_tensor(there), column_fingerprint(there)
        before = len(record.events)
        assert read_fingerprints(
            [start_fingerprint(there), start_column_fingerprint(there)]
        ) == list(found)
        assert [event.kind for event in record.events[before:]] == ["sync"], record.lines()
    assert found == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_sender_waits_for_each_bucket_once_and_for_its_fingerprints_once(
    models: Callable[..., Path], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes of a bucket come together on the GPU, cast there, and move to the host at once."""
    monkeypatch.setattr(buckets, "CAPACITY", 1 << 14)
    folder = models("llama")
    with pretend_gpu() as record:
        learner, sender = build(folder, "logits"), LocalSender()
        sender.open_route(TransferRoute("shared_memory", sender.file_paths))

        def send() -> tuple[int, list[str]]:
            before, outgoing = len(record.events), OutgoingWeights(learner.weights, dtype)
            count = sum(1 for _ in sender.fill_buckets(outgoing, columns=False))
            assert outgoing.sent_fingerprints
            return count, [event.kind for event in record.events[before:]]

        send()  # tables of fingerprints stay where they are
        count, kinds = send()
        assert count > 2
        assert kinds == ["sync"] * (count + 1), record.lines()
