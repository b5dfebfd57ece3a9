"""Gaps of sampler and learner in bf16 by depth, the position in the sequence: a program of the
mission's part 4.

    python -m benchmarks.mission.depth MODEL --exact true|false --rows 2 --tokens 2048 --out FILE

Responses are sampled without an end token, and the learner scores them: with the kernels of
exactness or the usual ones.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

import lockstep
from lockstep.core import keyed
from lockstep.core.batch import Batch
from lockstep.core.types import Request, SamplingParams
from lockstep.system.whole_files import write_whole

WINDOW = 128
"""Positions of a range of depths."""
PROMPTS = (
    "Tell me a long story about a lighthouse keeper and her brother.",
    "Explain step by step how a bill becomes a law, with an example.",
    "Write a long letter from a sailor to his family.",
    "List and describe many animals that live in the sea.",
)


@dataclass(frozen=True)
class DepthGaps:
    """Gaps of sampled tokens by depth.

    Attributes:
        exact: True with the kernels of exactness.
        tokens: Number of tokens that were compared.
        differ: Number of those whose two log-probabilities are not equal to the bit.
        windows: By range of `WINDOW` positions: its first, tokens, the largest |Δ| and the mean
            |Δ|, nats.
        sampling_s: Seconds of sampling.
        scoring_s: Seconds of scoring.
    """

    exact: bool
    tokens: int
    differ: int
    windows: list[tuple[int, int, float, float]]
    sampling_s: float
    scoring_s: float


def measure_depths(model: Path, exact: bool, rows: int, tokens: int) -> DepthGaps:
    """Samples rows of so many tokens in bf16, and scores them."""
    learner = lockstep.open_learner(model, dtype="bf16", exact=exact)
    sampler = lockstep.open_sampler(model, learner)
    requests = [
        Request(tuple(sampler.source.prompt_ids(text)), keyed.hash_key("depth", row))
        for row, text in enumerate(PROMPTS[:rows])
    ]
    start = time.monotonic()
    batch = sampler.sampler.generate(requests, SamplingParams(max_tokens=tokens))
    sampled = time.monotonic()
    scored = learner.logprobs(batch)
    return DepthGaps(exact, *summarize(scored, batch), sampled - start, time.monotonic() - sampled)


def summarize(
    scored_N: Tensor, batch: Batch
) -> tuple[int, int, list[tuple[int, int, float, float]]]:
    """Tokens, those that differ, and the gaps by depth, as in `DepthGaps`."""
    delta_M = (scored_N - batch["sampler_logprob"])[batch.mask].double().abs()
    depth_M = batch.position[batch.mask] // WINDOW
    windows = list[tuple[int, int, float, float]]()
    for depth in depth_M.unique().tolist():
        own = delta_M[depth_M == depth]
        windows.append((depth * WINDOW, own.numel(), float(own.max()), float(own.mean())))
    return delta_M.numel(), int((delta_M > 0).sum()), windows


def main() -> None:
    """Entry point."""
    about = (__doc__ or "").split("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mission.depth", description=about)
    parser.add_argument("model", type=Path)
    parser.add_argument("--exact", choices=("true", "false"), required=True)
    parser.add_argument("--rows", type=int, required=True, help="sequences")
    parser.add_argument("--tokens", type=int, required=True, help="of each response")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = measure_depths(options.model, options.exact == "true", options.rows, options.tokens)
    write_whole(options.out, [json.dumps(asdict(found)).encode(), b"\n"])


if __name__ == "__main__":
    main()
