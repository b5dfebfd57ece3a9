"""The sides of `benchmarks.generate` and its kin, and what they are asked to write."""

from __future__ import annotations

import importlib.util
import math
import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor
from transformers import GenerationConfig, LlamaForCausalLM

from benchmarks.harness import cpu_clock
from benchmarks.small_llama import SIZES, causal_lm, llama_config, random_prompts
from lockstep.cluster.sampler_pool import SamplerPool
from lockstep.cluster.specs import SamplerSpec
from lockstep.config import LearnerSection, SamplerSection
from lockstep.core import keyed
from lockstep.core.types import Request, SamplingParams
from lockstep.models import attention
from lockstep.models.exact.model import make_exact
from lockstep.samplers.torch.sampler import TorchSampler

Lengths = Literal["uneven", "equal"]
LOADS = {"toy": (256, 64), "default": (32, 128), "100M": (16, 32)}
"""Responses, and the most tokens of each, by the size of the model."""
LEAST_PROMPT = 8
MOST_PROMPT = 64


@dataclass(frozen=True)
class Case:
    """What all sides are asked to write.

    Attributes:
        size: Name of the model's size.
        prompts: Each is answered by so many generations.
        generations: Responses to a prompt.
        max_tokens: The most tokens of a response.
        stops: Tokens that end a response; with none, all are of equal length.
        temperature: 0 is greedy.
    """

    size: str
    prompts: tuple[tuple[int, ...], ...]
    generations: int
    max_tokens: int
    stops: tuple[int, ...]
    temperature: float = 1.0

    @classmethod
    def of(cls, size: str, lengths: Lengths, generations: int) -> Case:
        """Prompts of 8 to 64 tokens, short ones first; of uneven responses one in 13 reaches
        `max_tokens`.
        """
        responses, most = LOADS[size]
        count = responses // generations
        vocab = SIZES[size].vocab
        widths = [
            LEAST_PROMPT + i * (MOST_PROMPT - LEAST_PROMPT) // max(count - 1, 1)
            for i in range(count)
        ]
        prompts = tuple(map(tuple, random_prompts(widths, vocab=vocab)))
        stops = range(0, vocab, round(most / math.log(13))) if lengths == "uneven" else ()
        return cls(size, prompts, generations, most, tuple(stops))

    @property
    def greedy(self) -> Case:
        """The same at temperature 0."""
        return replace(self, temperature=0.0)

    @property
    def sampling(self) -> SamplingParams:
        """The options of a sampler."""
        return SamplingParams(
            self.max_tokens, temperature=self.temperature, stop_token_ids=self.stops
        )

    def requests(self, turn: int = 0) -> list[Request]:
        """The requests of a sampler; each turn has its own random numbers."""
        repeated = [prompt for prompt in self.prompts for _ in range(self.generations)]
        return [
            Request(prompt, keyed.hash_key("benchmark", turn, i))
            for i, prompt in enumerate(repeated)
        ]


@dataclass
class Transformers:
    """The baseline: one left-padded batch that runs until its last row has stopped.

    A prompt of several generations is repeated, as `num_return_sequences` would do before anything
    is computed.
    """

    lm: LlamaForCausalLM
    case: Case
    tokens: list[int] = field(default_factory=list)

    def __call__(self) -> list[list[int]]:
        torch.manual_seed(len(self.tokens))
        prompts = [request.tokens for request in self.case.requests()]
        width = max(map(len, prompts))
        ids = torch.tensor([(0,) * (width - len(p)) + p for p in prompts])
        seen = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
        out = self.lm.generate(  # pyright: ignore[reportAttributeAccessIssue]
            input_ids=ids, attention_mask=seen, generation_config=self._config()
        )
        responses = [_until_stop(row, self.case.stops) for row in out[:, width:]]
        self.tokens.append(sum(map(len, responses)))
        return responses

    def cpu(self) -> float:
        """CPU seconds of this process."""
        return time.process_time()

    def _config(self) -> GenerationConfig:
        case = self.case
        if case.temperature == 0:
            chosen = GenerationConfig(do_sample=False)
        else:
            chosen = GenerationConfig(
                do_sample=True, temperature=case.temperature, top_k=0, top_p=1.0
            )
        chosen.update(max_new_tokens=case.max_tokens, pad_token_id=0)
        if case.stops:
            chosen.update(eos_token_id=list(case.stops))
        return chosen


@dataclass
class Lockstep:
    """A sampler with room for all responses at once."""

    sampler: TorchSampler | SamplerPool
    case: Case
    tokens: list[int] = field(default_factory=list)

    def __call__(self) -> list[list[int]]:
        batch = self.sampler.generate(self.case.requests(len(self.tokens)), self.case.sampling)
        sequences = zip(batch.sequences(), batch.sequences("mask"), strict=True)
        responses = [tokens[mask].tolist() for tokens, mask in sequences]
        self.tokens.append(sum(map(len, responses)))
        return responses

    def cpu(self) -> float:
        """CPU seconds of the process that generates."""
        if isinstance(self.sampler, SamplerPool):
            return sum(map(cpu_clock, _workers()))
        return time.process_time()


Side = Transformers | Lockstep


def _until_stop(row: Tensor, stops: tuple[int, ...]) -> list[int]:
    """The tokens up to and including the first stop."""
    stopped = torch.isin(row, torch.tensor(stops)).nonzero()
    return row[: int(stopped[0]) + 1].tolist() if len(stopped) else row.tolist()


def _workers() -> list[int]:
    return [child.pid for child in multiprocessing.active_children() if child.pid is not None]


def build_lm(size: str) -> LlamaForCausalLM:
    """A model of a size, whose logits have about the same spread in all sizes.

    Random weights of a smaller spread soon repeat one token when decoded greedily.
    """
    chosen = SIZES[size]
    spread = 0.2 * (128 / chosen.hidden) ** 0.5
    return causal_lm(llama_config(spread, chosen.hidden, chosen.layers, chosen.vocab)).eval()


def prepare(lm: LlamaForCausalLM, exact: bool) -> LlamaForCausalLM:
    """Gives a model Lockstep's attention and layout, and makes it exact or not; a user has it exact
    by default.
    """
    lm.set_attn_implementation(attention.NAME)
    if exact:
        make_exact(lm)
    return lm


@contextmanager
def vllm_sampler(size: str) -> Iterator[SamplerPool | None]:
    """vLLM on one thread, with the weights of all sides; None where it is not installed."""
    if importlib.util.find_spec("vllm") is None:
        yield None
        return
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        build_lm(size).save_pretrained(folder)
        section = SamplerSection(backend="vllm", max_batch_size=LOADS[size][0])
        replicas = SamplerPool(SamplerSpec(folder, section, LearnerSection(device="cpu")))
        yield replicas
        replicas.close()
