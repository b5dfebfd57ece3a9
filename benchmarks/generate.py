"""Tokens per second of the samplers beside `transformers` `generate`: same weights, prompts and stop tokens.

    python -m benchmarks.generate [--save]

Thirty-two prompts of 8 to 64 tokens; 2 % of the vocabulary stop a response, so that lengths are uneven up to 128.
Only tokens up to and including the stop are counted, on all sides. The greedy rows check that all wrote the same
tokens. At temperature 1 each has its own random numbers, hence other lengths; `transformers` is not asked for
log-probabilities, which the samplers always return. vLLM, where it is installed, is in processes of its own, and what
goes to and fro is part of its time.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import os
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import GenerationConfig, LlamaForCausalLM

from benchmarks.harness import Row, environment, measure_interleaved, save, table
from benchmarks.small_llama import VOCAB, causal_lm, llama_config, random_prompts
from lockstep import keyed
from lockstep.cluster.sampler_pool import SamplerPool
from lockstep.cluster.specs import SamplerSpec
from lockstep.config import LearnerSection, SamplerSection
from lockstep.models import attention
from lockstep.samplers.torch.sampler import TorchSampler
from lockstep.types import Request, SamplingParams

MAX_TOKENS = 128
LENGTHS = [8 + i * 56 // 31 for i in range(32)]
STOPS = tuple(range(0, VOCAB, 50))
SPREAD = 0.2
"""Standard deviation of the weights: with less, greedy decoding of a random model soon repeats one token."""


@dataclass
class Transformers:
    """The baseline: one left-padded batch that runs until its last row has stopped."""

    lm: LlamaForCausalLM
    prompts: list[list[int]]
    temperature: float
    tokens: list[int] = field(default_factory=list)

    def __call__(self) -> list[list[int]]:
        torch.manual_seed(len(self.tokens))
        width = max(map(len, self.prompts))
        ids = torch.tensor([[0] * (width - len(p)) + p for p in self.prompts])
        seen = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in self.prompts])
        chosen = self._config()
        out = self.lm.generate(  # pyright: ignore[reportAttributeAccessIssue]
            input_ids=ids, attention_mask=seen, generation_config=chosen
        )
        responses = [_until_stop(row) for row in out[:, width:]]
        self.tokens.append(sum(map(len, responses)))
        return responses

    def _config(self) -> GenerationConfig:
        if self.temperature == 0:
            chosen = GenerationConfig(do_sample=False)
        else:
            chosen = GenerationConfig(do_sample=True, temperature=self.temperature, top_k=0, top_p=1.0)
        chosen.update(max_new_tokens=MAX_TOKENS, eos_token_id=list(STOPS), pad_token_id=STOPS[0])
        return chosen


@dataclass
class Lockstep:
    """A sampler, all prompts in one batch as well."""

    sampler: TorchSampler | SamplerPool
    prompts: list[list[int]]
    temperature: float
    tokens: list[int] = field(default_factory=list)

    def __call__(self) -> list[list[int]]:
        sampling = SamplingParams(MAX_TOKENS, temperature=self.temperature, stop_token_ids=STOPS)
        turn = len(self.tokens)
        requests = [Request(tuple(p), keyed.key("benchmark", turn, i)) for i, p in enumerate(self.prompts)]
        batch = self.sampler.generate(requests, sampling)
        sequences = zip(batch.sequences(), batch.sequences("mask"), strict=True)
        responses = [tokens[mask].tolist() for tokens, mask in sequences]
        self.tokens.append(sum(map(len, responses)))
        return responses


def _until_stop(row: Tensor) -> list[int]:
    """The tokens up to and including the first stop."""
    stopped = torch.isin(row, torch.tensor(STOPS)).nonzero()
    return row[: int(stopped[0]) + 1].tolist() if len(stopped) else row.tolist()


def compare(temperature: float, threads: int, repeats: int, vllm: SamplerPool | None) -> list[Row]:
    """Times all sides in turn. Returns rows in tokens per second, the ratio being the median over pairs."""
    torch.set_num_threads(threads)
    lm = causal_lm(llama_config(SPREAD)).eval()
    ours_lm = copy.deepcopy(lm)
    ours_lm.set_attn_implementation(attention.NAME)
    prompts = random_prompts(LENGTHS)
    theirs = Transformers(lm, prompts, temperature)
    ours = Lockstep(TorchSampler(ours_lm, max_batch_size=len(prompts)), prompts, temperature)
    sides = [theirs, ours] if vllm is None else [theirs, ours, Lockstep(vllm, prompts, temperature)]
    if temperature == 0 and any(side() != theirs() for side in sides[1:]):
        raise RuntimeError("greedy decoding wrote other tokens on one side, so their speeds cannot be compared")
    baseline, *mine = measure_interleaved(sides, repeats)
    setting = f"{'greedy' if temperature == 0 else f'temperature {temperature:g}'}, {threads} thread(s)"
    rows = [
        _row(f"{name}, {setting}", theirs.tokens, baseline.wall_s, side.tokens, own.wall_s)
        for name, side, own in zip(("torch", "vLLM"), sides[1:], mine, strict=False)
    ]
    if threads == 1:
        rows.append(_row(f"torch, {setting}, CPU clock", theirs.tokens, baseline.cpu_s, ours.tokens, mine[0].cpu_s))
    return rows


@contextmanager
def vllm_sampler(threads: int) -> Iterator[SamplerPool | None]:
    """vLLM with the weights of all sides; None where it is not installed."""
    if importlib.util.find_spec("vllm") is None:
        yield None
        return
    os.environ["OMP_NUM_THREADS"] = str(threads)
    with tempfile.TemporaryDirectory() as folder:
        causal_lm(llama_config(SPREAD)).save_pretrained(folder)
        section = SamplerSection(backend="vllm", max_batch_size=len(LENGTHS))
        replicas = SamplerPool(SamplerSpec(folder, section, LearnerSection(device="cpu")), print)
        yield replicas
        replicas.close()


def _row(name: str, tokens: list[int], seconds: tuple[float, ...], own: list[int], own_s: tuple[float, ...]) -> Row:
    baseline = [n / s for n, s in zip(tokens[-len(seconds) :], seconds, strict=True)]
    ours = [n / s for n, s in zip(own[-len(own_s) :], own_s, strict=True)]
    ratio = statistics.median(b / a for a, b in zip(baseline, ours, strict=True))
    return Row(name, statistics.median(baseline), statistics.median(ours), ratio)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=11, help="interleaved pairs")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/generate.json")
    args = parser.parse_args()
    rows: list[Row] = []
    for threads in (1, 2):
        with vllm_sampler(threads) as vllm:
            rows += [row for t in (1.0, 0.0) for row in compare(t, threads, args.repeats, vllm)]
    print(environment())
    print(table(rows, "transformers generate", "tokens per second"))
    if args.save:
        print(save("generate", environment(), rows, {"repeats": args.repeats}))


if __name__ == "__main__":
    main()
