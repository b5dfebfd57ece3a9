"""Episodes per second, and the share of their time that orchestration takes, beside generation and the environment.

    python -m benchmarks.episodes [--count 1,50,500] [--turns 4] [--save]

A small real model (`models/stories260K` of LOCKSTEP_ASSETS) writes a sentence in each turn, on the CPU; its environment
answers at once or after 50 ms, and is an `async def` or a plain one. Orchestration is what the episodes take besides
the sampler's time and the latency of their turns: text, messages to the environment's process, tokens, the loop around.
A step of training takes longer than its episodes, so its share of a step is below the one that is printed.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.episode_kinds import LATENCY_S, AsyncNoOp, AsyncSlow, NoOp
from benchmarks.harness import environment, save
from lockstep import keyed
from lockstep.batch import Batch
from lockstep.config import EnvironmentSection
from lockstep.models.load import load_causal_lm
from lockstep.models.source import ModelSource, open_source
from lockstep.rollouts.episodes import Episodes
from lockstep.rollouts.sampler_session import SamplerSession
from lockstep.samplers.torch.sampler import TorchSampler
from lockstep.types import Prompt, Request, SamplingParams

_LONGEST = 64


class TimedSession(SamplerSession):
    """A session that adds up the seconds of its sampler."""

    seconds = 0.0

    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> Batch:
        start = time.perf_counter()
        batch = super().generate(requests, sampling)
        self.seconds += time.perf_counter() - start
        return batch


@dataclass(frozen=True)
class EpisodeRow:
    """Seconds of some episodes.

    Attributes:
        environment: Its class.
        count: Episodes in flight.
        turns: Turns of an episode, on average.
        per_second: Episodes per second.
        seconds: All of it.
        generation_s: Those of the sampler.
        waiting_s: The latency of the turns, which pass one after another.
        orchestration: The share of all that is neither.
    """

    environment: str
    count: int
    turns: float
    per_second: float
    seconds: float
    generation_s: float
    waiting_s: float
    orchestration: float


def measure(source: ModelSource, sampler: TorchSampler, kind: type, count: int, turns: int) -> EpisodeRow:
    """Plays `count` episodes at once, once to warm up with two of them."""
    section = EnvironmentSection(
        class_name=f"{kind.__module__}:{kind.__name__}", max_turns=turns, max_tokens=turns * 2 * _LONGEST
    )
    episodes = Episodes(section, (), source.decode, lambda tools: lambda text, last: source.token_ids(str(text)), print)
    [stop] = source.token_ids("The end.")[-1:]
    sampling, engine = SamplingParams(_LONGEST, 0.7, stop_token_ids=(stop,)), TimedSession(sampler)
    prompts = [Prompt(f"rows:{i}", "", (1, *source.token_ids("Once upon a time")), {}) for i in range(count)]
    requests = [Request(prompt.tokens, keyed.key("episode", i)) for i, prompt in enumerate(prompts)]
    with engine.at():
        episodes.play(engine, prompts[:2], requests[:2], sampling)
        engine.seconds, start = 0.0, time.perf_counter()
        batch = episodes.play(engine, prompts, requests, sampling)
        seconds = time.perf_counter() - start
    waiting = int(batch["turns"].max()) * LATENCY_S if kind is AsyncSlow else 0.0
    rest = seconds - engine.seconds - waiting
    mean = float(batch["turns"].float().mean())
    return EpisodeRow(kind.__name__, count, mean, count / seconds, seconds, engine.seconds, waiting, rest / seconds)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", default="1,50,500")
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args(arguments)
    folder = Path(os.environ["LOCKSTEP_ASSETS"]) / "models/stories260K/hf"
    source, sampler = open_source(folder), TorchSampler(load_causal_lm(folder), 64)
    in_flight = [int(count) for count in options.count.split(",")]
    rows = [
        measure(source, sampler, kind, count, options.turns)
        for kind in (NoOp, AsyncNoOp, AsyncSlow)
        for count in in_flight
    ]
    print("| environment | in flight | turns | episodes/s | s | generation, s | waiting, s | orchestration |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for row in rows:
        counts = f"{row.count} | {row.turns:.1f} | {row.per_second:.1f}"
        seconds = f"{row.seconds:.2f} | {row.generation_s:.2f} | {row.waiting_s:.2f}"
        print(f"| {row.environment} | {counts} | {seconds} | {row.orchestration:.1%} |")
    print(f"\n{environment()}")
    if options.save:
        save("episodes", environment(), rows, {"turns": options.turns})


if __name__ == "__main__":
    main()
