"""Small random models of every tested architecture, ragged batches for them, losses, and the plain outside witness.

Weights are drawn ten times wider than usual, so that a wrong position, mask or neighbour changes every number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, TopKLogitsWarper, TopPLogitsWarper

from lockstep import keyed
from lockstep.batch import Batch
from lockstep.cluster.specs import LearnerSpec
from lockstep.config import LearnerSection, Optimizer, Parallel, Schedule
from lockstep.losses.base import Denominator, Outputs, active
from lockstep.metrics import Mean, Metrics
from lockstep.types import Request, SamplingParams

VOCABULARY = 64
CONTEXT = 48

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "qwen2": {"model_type": "qwen2"},
    "qwen2 tied": {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen2 window": {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    "qwen3": {"model_type": "qwen3", "head_dim": 8},
    "gpt neox": {"model_type": "gpt_neox"},
}

SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": None,
}

OPTIMIZER = Optimizer(lr=1e-3, eps=1e-4, weight_decay=0.1, max_grad_norm=0.5, schedule=Schedule(warmup_steps=2))
"""A large eps: Adam would blow up gradients that are zero but for rounding, such as those of a bias of the keys."""

SECTION = LearnerSection(device="cpu", micro_batch_tokens=40)


def over(spec: LearnerSpec, **parallel: int) -> LearnerSpec:
    """The same learner made of several ranks."""
    return replace(spec, section=spec.section.model_copy(update={"parallel": Parallel(**parallel)}))


def model_folder(root: Path, architecture: str, seed: int = 0) -> Path:
    """Writes a model once and returns its Hugging Face folder."""
    folder = root / f"{architecture}-{seed}".replace(" ", "-")
    if not folder.exists():
        fields = {**SHAPE, **ARCHITECTURES[architecture]}
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**fields))
            for vector in (parameter for parameter in model.parameters() if parameter.ndim == 1):
                vector.data += 0.1 * torch.randn(vector.shape)
        model.save_pretrained(folder)
    return folder


def ragged(lengths: Sequence[int], seed: int = 0, sampling: SamplingParams | None = None) -> Batch:
    """Random sequences whose masked tokens lie scattered behind a prompt, with advantages and returns."""
    draw = torch.Generator().manual_seed(seed)
    total = sum(lengths)
    bare = Batch(torch.randint(3, VOCABULARY, (total,), generator=draw), torch.tensor(list(lengths)))
    mask = (torch.rand(total, generator=draw) < 0.7) & (bare.position > 0)
    columns = {
        "mask": mask,
        "advantage": torch.randn(total, generator=draw),
        "return": torch.randn(total, generator=draw),
        "unused": torch.arange(total).view(-1, 1),
    }
    rows = {"truncated": torch.rand(len(lengths), generator=draw) < 0.5}
    return Batch(bare.tokens, bare.lengths, columns, rows, sampling)


@dataclass(frozen=True)
class WeightedLogprob:
    """−Σ advantage · log π over masked tokens: REINFORCE."""

    scale: float = 1.0
    denominator: Denominator = "tokens"

    def __call__(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Metrics]:
        assert outputs.logprob is not None
        total = -(self.scale * batch["advantage"] * outputs.logprob * batch.mask).sum()
        surprise = Mean(-(outputs.logprob * batch.mask).sum().detach(), active(batch, "tokens"))
        return total, Metrics(surprise=surprise)


@dataclass(frozen=True)
class SquaredError:
    """Σ (V − return)² over masked tokens."""

    denominator: Denominator = "tokens"

    def __call__(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Metrics]:
        assert outputs.value is not None
        total = ((outputs.value - batch["return"]) ** 2 * batch.mask).sum()
        return total, Metrics(error=Mean(total.detach(), active(batch, "tokens")))


def requests(
    lengths: range | tuple[int, ...] = (5, 1, 17, 3, 30, 2, 9, 12, 4, 21), role: str = "test"
) -> list[Request]:
    """Prompts of uneven lengths, each with a key of its own."""
    return [
        Request(tuple(ragged((length,), seed).tokens.tolist()), keyed.key(role, seed))
        for seed, length in enumerate(lengths)
    ]


def responses(batch: Batch) -> list[tuple[int, ...]]:
    pairs = zip(batch.sequences(), batch.sequences("mask"), strict=True)
    return [tuple(tokens[mask].tolist()) for tokens, mask in pairs]


def plain_model(folder: Path, kind: Any = AutoModelForCausalLM) -> Any:
    """The same weights in plain `transformers`, eager attention, fp64 where its modules allow."""
    return kind.from_pretrained(folder, attn_implementation="eager", dtype=torch.float64).eval()


def plain_logits(model: Any, sequence: Tensor) -> Tensor:
    """Logits [T, V] of one sequence alone: no packing, no padding, no cache."""
    return model(input_ids=sequence[None], use_cache=False).logits[0]


def plain_filtered(logits_TV: Tensor, sampling: SamplingParams) -> Tensor:
    """Logits at the temperature, minus infinity where the filters of `transformers` take a token away."""
    scores, unread = logits_TV / sampling.temperature, torch.LongTensor()
    if sampling.top_k:
        scores = TopKLogitsWarper(sampling.top_k)(unread, scores)  # pyright: ignore[reportArgumentType] (any tensor will do)
    if sampling.top_p < 1.0:
        scores = TopPLogitsWarper(sampling.top_p)(unread, scores)  # pyright: ignore[reportArgumentType] (any tensor will do)
    return scores


def plain_logprobs(model: Any, batch: Batch) -> Tensor:
    """log π(x_t | x_<t) of masked tokens [N], sequence by sequence, by own alignment: row t−1 scores token t."""
    columns = []
    for sequence, mask in zip(batch.sequences(), batch.sequences("mask"), strict=True):
        table = plain_logits(model, sequence).log_softmax(-1)
        own = [
            table[t - 1, sequence[t]] if mask[t] else torch.zeros((), dtype=table.dtype) for t in range(len(sequence))
        ]
        columns.append(torch.stack(own))
    return torch.cat(columns)


def plain_values(folder: Path, head: dict[str, Tensor], batch: Batch) -> tuple[Tensor, Tensor]:
    """V(x_<t) [N] and V of the whole sequence [B] by a plain backbone and the learner's own linear unit."""
    backbone = plain_model(folder, AutoModel)
    values, finals = [], []
    for sequence in batch.sequences():
        hidden = backbone(input_ids=sequence[None], use_cache=False).last_hidden_state[0]
        output = (hidden @ head["value.weight"].double().T + head["value.bias"].double())[:, 0]
        values.append(torch.cat([torch.zeros(1, dtype=output.dtype), output[:-1]]))
        finals.append(output[-1])
    return torch.cat(values), torch.stack(finals)
