"""Compares vLLM after a weight sync with plain `transformers` on a small model: one line of the
table of families.

`python -m benchmarks.family_vllm FOLDER` does it in this process and prints the outcome as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from lockstep.cluster.sampler_pool import SamplerPool
from lockstep.cluster.specs import SamplerSpec
from lockstep.config import LearnerSection, SamplerSection
from lockstep.core import keyed
from lockstep.core.batch import Batch
from lockstep.core.errors import LockstepError
from lockstep.core.types import Request, SamplingParams
from lockstep.models.folder import find_context_length, read_config
from lockstep.weight_sync.sync import random_probe, sync_weights

RIGHT = 1e-3
"""Nats; a larger difference of any token is wrong, and none may be."""

_PROMPTS = (5, 1, 17, 3, 9)
_RESPONSE = 12


@dataclass(frozen=True)
class Cell:
    """The result of one backend on one family: its difference in nats, or the reason for a
    refusal.
    """

    gap: float | None
    reason: str = ""

    @property
    def outcome(self) -> str:
        """Refused, wrong or right, with a place for a difference."""
        if self.gap is None:
            return "refused"
        return "**wrong: {:.0e}**" if self.gap > RIGHT else "{:.0e}"

    def __str__(self) -> str:
        return self.outcome.format(self.gap)


def vllm_with_refit(folder: Path) -> Cell:
    """Starts vLLM with a model, sends it other weights, proves that they arrived, and samples with
    them.

    Runs in a process of its own, which ends with it.

    Args:
        folder: A Hugging Face folder of a small model.
    """
    command = [sys.executable, "-m", "benchmarks.family_vllm", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip() or "no word").splitlines()[-1]
        return Cell(1.0, f"ended with exit code {done.returncode}: {last}")
    return Cell(**json.loads(done.stdout.splitlines()[-1]))


@dataclass(frozen=True, eq=False)
class _Plain:
    """Plain `transformers` as a source of weights, all of them other than in the folder."""

    network: PreTrainedModel

    @classmethod
    def other_than(cls, folder: Path) -> _Plain:
        network = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        draws = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in network.parameters():
                parameter += (
                    0.1
                    * parameter.std().nan_to_num(1.0).clamp(min=0.1)
                    * torch.randn(parameter.shape, generator=draws)
                )
        return cls(network)

    @property
    def sender(self) -> None:
        """None: weights are in this process."""

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.network.named_parameters()
        yield from self.network.named_buffers()

    @torch.no_grad()
    def logprobs(self, batch: Batch) -> Tensor:
        """Log-probabilities of all tokens but the first, sequence by sequence."""
        columns: list[Tensor] = []
        for tokens in batch.sequences():
            table = (
                self.network(input_ids=tokens[None], use_cache=False)
                .logits[0]
                .float()
                .log_softmax(-1)
            )
            own = table[:-1].gather(1, tokens[1:, None])[:, 0]
            columns += [torch.zeros(1), own]
        return torch.cat(columns) * batch.mask


def measured(folder: Path) -> Cell:
    """Measures as `vllm_with_refit` does, by an engine that this process starts."""
    config = read_config(folder).get_text_config()
    section = SamplerSection(backend="vllm", max_batch_size=8, kv_cache_gib=0.05)
    sampler = None
    try:
        sampler = SamplerPool(SamplerSpec(str(folder), section, LearnerSection(device="cpu")))
        source = _Plain.other_than(folder)
        sync_weights(
            source, sampler, 1, random_probe(config.vocab_size, find_context_length(config))
        )
    except LockstepError as error:
        return Cell(None, str(error))
    else:
        return Cell(_gap(source, sampler, config.vocab_size))
    finally:
        if sampler is not None:
            sampler.close()


def _gap(source: _Plain, sampler: SamplerPool, vocabulary: int) -> float:
    draws = (
        keyed.draw_uniforms(torch.arange(len(_PROMPTS)), torch.arange(max(_PROMPTS))) * vocabulary
    ).long()
    requests = [
        Request(tuple(row[:length].tolist()), keyed.hash_key("family", number))
        for number, (row, length) in enumerate(zip(draws, _PROMPTS, strict=True))
    ]
    batch = sampler.generate(requests, SamplingParams(max_tokens=_RESPONSE))
    return float((source.logprobs(batch) - batch["sampler_logprob"])[batch.mask].abs().max())


if __name__ == "__main__":
    print(json.dumps(asdict(measured(Path(sys.argv[1])))))
