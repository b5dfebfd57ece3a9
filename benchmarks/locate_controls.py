"""Healthy pairs: programs that compute the same in another type, kernel, batch or layout; each place found is false.

    python -m benchmarks.locate_controls [--count 100] [--layouts]

Pairs are the same in each commit: families, types, kernels and batches in turn, each time with other tokens.
`--layouts` adds the torch learner over ranks, in processes of its own, beside `transformers`.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.mutated_programs import FAMILIES, TOKENS, build, read, save
from lockstep.doctor.taps import open_torch
from lockstep_doctor import Location, ModuleTap, locate
from lockstep_doctor.builds import watch_build
from lockstep_doctor.engines import EngineOptions

BF16, FP32 = torch.bfloat16, torch.float32
TYPES = ((FP32, FP32), (BF16, BF16), (FP32, BF16))
LAYOUTS: tuple[dict[str, int], ...] = ({}, {"dp": 2}, {"tp": 2}, {"cp": 2})
_EAGER_ONLY = ("gemma2",)
"""Families whose logits of attention are capped, which other kernels leave out."""


@dataclass(frozen=True)
class HealthyPair:
    """Two ways to compute the same.

    Attributes:
        family: Of the model.
        kernel: Of the other side's attention; the reference's is eager.
        types: Of both sides.
        batch: True if the other side reads the sequence beside others.
        seed: Of the tokens.
    """

    family: str
    kernel: str
    types: tuple[torch.dtype, torch.dtype]
    batch: bool
    seed: int

    def locate(self) -> Location:
        """What is found."""
        one = build_as(self.family, "eager", self.types[0])
        other = build_as(self.family, self.kernel, self.types[1])
        rounded = [ModuleTap(build_as(self.family, "eager", dtype), "cast") for dtype in self.types]
        witness = ModuleTap(build(self.family, "eager").double(), "float64")
        reads = read_in_batch if self.batch else read
        taps = ModuleTap(one, "one"), ModuleTap(other, "other", read=reads)
        return locate(*taps, draw_tokens(self.seed), witness, rounded=rounded)


def build_as(family: str, kernel: str, dtype: torch.dtype) -> nn.Module:
    """A model of a family in some type, whose build is watched as by the engines of the doctor."""
    with watch_build() as models:
        models.append(nn.Module.to(build(family, kernel), dtype))
    return models[0]


def draw_tokens(seed: int) -> Tensor:
    """The ids of a sequence."""
    return torch.randint(0, 97, (TOKENS,), generator=torch.Generator().manual_seed(seed))


def read_in_batch(model: nn.Module, tokens_T: Tensor) -> Tensor:
    """Reads the sequence beside a longer one and a shorter one, padded."""
    rows = [tokens_T, tokens_T.repeat(2)[: len(tokens_T) + 5], tokens_T.flip(0)[:-3]]
    ids = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    seen = nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
    return model(input_ids=ids, attention_mask=seen, use_cache=False).logits[0, : len(tokens_T)]


def list_pairs(count: int) -> Iterator[HealthyPair]:
    """Yields pairs in turn."""
    kinds = [
        (family, kernel, types, batch)
        for types, kernel, batch, family in itertools.product(TYPES, ("sdpa", "eager"), (False, True), FAMILIES)
        if kernel == "eager" or family not in _EAGER_ONLY
    ]
    for number, kind in zip(range(count), itertools.cycle(kinds), strict=False):
        yield HealthyPair(*kind, seed=number)


def locate_over_ranks(parallel: dict[str, int]) -> Location:
    """What is found between `transformers` and the torch learner over some ranks, in fp32."""
    reference = ModuleTap(build("llama"), "hf")
    rounded = [ModuleTap(build("llama"), "cast")] * 2
    witness = ModuleTap(build("llama").double(), "float64")
    with open_torch(Path(save("llama")), EngineOptions(parallel=parallel)) as tap:
        return locate(reference, tap, draw_tokens(0), witness, rounded=rounded)


def main() -> None:
    parser = argparse.ArgumentParser(description="count the places that are found where there are none")
    parser.add_argument("--count", type=int, default=100, help="pairs in one process (default: 100)")
    parser.add_argument("--layouts", action="store_true", help="the torch learner over ranks, too")
    options = parser.parse_args()
    wrong, pairs = 0, 0
    for what, found in itertools.chain(
        ((pair, pair.locate()) for pair in list_pairs(options.count)),
        ((layout, locate_over_ranks(layout)) for layout in LAYOUTS if options.layouts),
    ):
        pairs += 1
        if found.places or found.noisy:
            wrong += 1
            print(f"{what}: {found.gap:.2g} nats, {', '.join(map(str, found.segments))}", flush=True)
    print(f"{pairs} healthy pairs: {wrong} with a place")


if __name__ == "__main__":
    main()
