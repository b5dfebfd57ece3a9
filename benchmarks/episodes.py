"""Episodes per second, and the share of their time that orchestration takes, beside generation and the environment.

    python -m benchmarks.episodes [NoOp AsyncNoOp AsyncSlow Tool Verifiers] [--count 1,50,500] [--turns 4] [--save]

A small real model (`models/stories260K` of LOCKSTEP_ASSETS) writes a sentence in each turn, on the CPU. Its environment
answers at once or after 50 ms, and is an `async def` or a plain one; or it has a tool, which is called
twice in each turn; or it is one of `verifiers` 0.4, in an interpreter that has the package. Orchestration is what the
episodes take besides the sampler, in CPU seconds: text, tokens, messages to the environment's process, the loop around,
and all that the process does. A step of training takes longer than its episodes, so its share of a step is below the
one that is printed.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.harness import environment, save
from lockstep import keyed
from lockstep.algorithms.episodes import observations
from lockstep.batch import Batch
from lockstep.config import DataSection, EnvironmentSection
from lockstep.models.load import load_causal_lm
from lockstep.models.source import ModelSource, open_source
from lockstep.rollouts.episodes import Episodes
from lockstep.rollouts.sampler_session import SamplerSession
from lockstep.samplers.torch.sampler import TorchSampler
from lockstep.types import Prompt, Request, SamplingParams

_LONGEST = 64
_TALK = [{"role": "user", "content": "1 to 3"}]
_CALLS = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>' * 2
_CHAT = (
    "{{ tools }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


@dataclass(frozen=True)
class Kind:
    """What is played.

    Attributes:
        class_name: The class of the environment.
        calls: Calls of tools, which the environment reads in place of each response; None: the policy's own text.
        row: The data row.
    """

    class_name: str
    calls: str | None = None
    row: Mapping[str, Any] = field(default_factory=dict)


KINDS = {name: Kind(f"benchmarks.episode_kinds:{name}") for name in ("NoOp", "AsyncNoOp", "AsyncSlow")} | {
    "Tool": Kind("benchmarks.episode_kinds:Tool", calls=_CALLS),
    "Verifiers": Kind(
        "lockstep.environments.verifiers_bridge:VerifiersEpisode",
        row={"taskset": "episode_game", "index": 0, "messages": _TALK},
    ),
}


class TimedSession(SamplerSession):
    """A session that adds up the CPU seconds of its sampler."""

    cpu_s = 0.0

    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> Batch:
        start = time.process_time()
        batch = super().generate(requests, sampling)
        self.cpu_s += time.process_time() - start
        return batch


@dataclass(frozen=True)
class EpisodeRow:
    """Seconds of some episodes.

    Attributes:
        environment: Its kind.
        count: Episodes in flight.
        turns: Turns of an episode, on average.
        per_second: Episodes per second.
        generation_s: CPU seconds of the sampler.
        around_s: CPU seconds of this process besides those.
        process_s: CPU seconds of the environment's process.
    """

    environment: str
    count: int
    turns: float
    per_second: float
    generation_s: float
    around_s: float
    process_s: float

    @property
    def orchestration(self) -> float:
        """The share that is no generation."""
        rest = self.around_s + self.process_s
        return rest / (rest + self.generation_s)


def measure(source: ModelSource, sampler: TorchSampler, name: str, count: int, turns: int) -> EpisodeRow:
    """Plays `count` episodes at once, once to warm up with two of them."""
    kind = KINDS[name]
    section = EnvironmentSection(
        class_name=kind.class_name,
        tool_format=None if kind.calls is None else "hermes",
        max_turns=turns,
        max_tokens=turns * 8 * _LONGEST,
        timeout_s=300,
    )
    data = DataSection(train="rows.jsonl", prompt="{q}", chat=kind.calls is not None, max_prompt_tokens=_LONGEST)

    def read(tokens: Sequence[int]) -> str:
        text = source.decode(tokens)
        return text if kind.calls is None else kind.calls

    episodes = Episodes(
        section,
        (),
        read,
        lambda tools: observations(data.with_tools(tools), (), source, print),
        print,
    )
    [stop] = source.token_ids("The end.")[-1:]
    sampling, engine = SamplingParams(_LONGEST, 0.7, stop_token_ids=(stop,)), TimedSession(sampler)
    start_tokens = (1, *source.token_ids("Once upon a time"))
    prompts = [Prompt(f"rows:{i}", "", start_tokens, kind.row) for i in range(count)]
    requests = [Request(prompt.tokens, keyed.key("episode", i)) for i, prompt in enumerate(prompts)]
    with engine.at():
        episodes.play(engine, prompts[:2], requests[:2], sampling)
        engine.cpu_s, start, cpu_s, process_s = 0.0, time.perf_counter(), time.process_time(), _children_cpu_s()
        batch = episodes.play(engine, prompts, requests, sampling)
        seconds, around_s = time.perf_counter() - start, time.process_time() - cpu_s - engine.cpu_s
    mean = float(batch["turns"].float().mean())
    return EpisodeRow(name, count, mean, count / seconds, engine.cpu_s, around_s, _children_cpu_s() - process_s)


def _children_cpu_s() -> float:
    times = [child.cpu_times() for child in psutil.Process().children()]
    return sum(one.user + one.system for one in times)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kinds", nargs="*", default=["NoOp", "AsyncNoOp", "AsyncSlow", "Tool"], choices=KINDS)
    parser.add_argument("--count", default="1,50,500")
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args(arguments)
    folder = Path(os.environ["LOCKSTEP_ASSETS"]) / "models/stories260K/hf"
    sys.path.append(str(Path(__file__).parent))  # verifiers finds tasksets by the names of modules
    source, sampler = open_source(folder), TorchSampler(load_causal_lm(folder), 64)
    source.tokenizer.chat_template = _CHAT
    in_flight = [int(count) for count in options.count.split(",")]
    print("| environment | in flight | turns | episodes/s | generation, CPU s | around | its process | orchestration |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    rows: list[EpisodeRow] = []
    for kind in options.kinds:
        for count in in_flight:
            row = measure(source, sampler, kind, count, options.turns)
            rows.append(row)
            counts = f"{row.count} | {row.turns:.1f} | {row.per_second:.1f}"
            seconds = f"{row.generation_s:.2f} | {row.around_s:.2f} | {row.process_s:.2f}"
            print(f"| {row.environment} | {counts} | {seconds} | {row.orchestration:.1%} |", flush=True)
    print(f"\n{environment()}")
    if options.save:
        save("episodes", environment(), rows, {"turns": options.turns})


if __name__ == "__main__":
    main()
