"""Environments of verifiers 0.4, as its users write them: played unmodified, trained on, scored as verifiers scores.

The package needs others than constraints.txt allows, so what plays is a proof, for an interpreter that has it:
`pip install verifiers==0.4.0`. What surrounds an episode is tested without it: a failed taskset, too many episodes.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from tiny_recipe import GRPO, RECIPE

from lockstep.config.loading import load
from lockstep.core.errors import InputError
from lockstep.environments import environment, verifiers_bridge
from lockstep.environments.verifiers_bridge import VerifiersEpisode
from lockstep.helpers.in_process import build_child
from lockstep.models.export import save_model
from lockstep.models.load import build_causal_lm
from lockstep.models.tokenizer import words_tokenizer
from lockstep.report.log import read_metrics
from lockstep.run.train import train

DOUBLE = '''
import verifiers.v1 as vf

class DoubleData(vf.TaskData):
    answer: str

class DoubleTask(vf.Task[DoubleData]):
    @vf.reward(weight=2.0)
    async def right(self, trace: vf.Trace) -> float:
        return float(self.data.answer in (trace.last_reply or "").split())

    @vf.reward(weight=0.1)
    async def short(self, trace: vf.Trace) -> float:
        return 1.0 / (1 + len(trace.last_reply or ""))

class Double(vf.Taskset[DoubleTask]):
    """One turn: say what twice a number is."""
    def load(self):
        for n in range(24):
            data = DoubleData(prompt=f"twice {n % 3}", system_prompt="count", answer=str(2 * (n % 3)))
            yield DoubleTask(data, self.config.task)

__all__ = ["Double"]
'''
HIGHER = '''
import verifiers.v1 as vf

class GuessData(vf.TaskData):
    number: int

class GuessTask(vf.Task[GuessData]):
    @vf.reward
    async def found(self, trace: vf.Trace) -> float:
        return float(str(self.data.number) in (trace.last_reply or "").split())

    @vf.reward(weight=-0.1)
    async def turns(self, trace: vf.Trace) -> float:
        return float(trace.num_turns)

class Guess(vf.Taskset[GuessTask]):
    def load(self):
        for n in range(24):
            yield GuessTask(GuessData(prompt="1 to 3", number=1 + n % 3), self.config.task)

class GuessConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()

class GuessEnv(vf.Env[GuessConfig]):
    """Several turns: a number is to be found by hints."""
    async def run(self, task, agents):
        async with agents.player.interaction(task) as talk:
            await talk.turn()
            for _ in range(3):
                words = [int(word) for word in (talk.trace.last_reply or "").split() if word.isdigit()]
                if task.data.number in words:
                    return
                await talk.turn("higher" if words and words[0] < task.data.number else "lower")

__all__ = ["Guess", "GuessEnv"]
'''
CHAT = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
RUN = {name: value for name, value in GRPO.items() if name not in ("reward", "model", "data")} | {
    "model": {"path": "model"},
    "data": {
        "task": {"name": "verifiers_tasks", "validation_tasks": 3}, "messages": "messages", "max_prompt_tokens": 40,
    },
    "environment": {
        "class_name": "lockstep.environments.verifiers_bridge:VerifiersEpisode", "max_turns": 4, "max_tokens": 50,
    },
    "sampling": {"max_tokens": 3},
    "validation_sampling": {"max_tokens": 3, "temperature": 1.0},
    "policy": {"lr": 0.01},
    "run": {"max_steps": 12, "folder": "run", "num_logged_samples": 64},
}  # fmt: skip


@pytest.fixture
def here(in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two environments and a tiny model that has their words."""
    pytest.importorskip("verifiers", reason="pip install verifiers==0.4.0, into an environment of its own")
    (in_tmp / "double_it.py").write_text(DOUBLE)
    (in_tmp / "higher.py").write_text(HIGHER)
    monkeypatch.syspath_prepend(in_tmp)
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # is passed by
    tokenizer = words_tokenizer(["twice 4 count 1 to 3 higher lower [user] [assistant] [system]"])
    tokenizer.chat_template = CHAT
    save_model(build_causal_lm(RECIPE["model"]["scratch"]["config"], tokenizer, 0), tokenizer, in_tmp / "model")
    return in_tmp


def run(taskset: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Trains on a taskset; returns the rows of the steps and the samples."""
    Path("run.yaml").write_text(yaml.safe_dump(RUN))
    rows = read_metrics(train(load("run.yaml", [f"data.task.taskset={taskset}"])))
    samples = [json.loads(line) for line in Path("run/samples.jsonl").read_text().splitlines()]
    return [row for row in rows if "train/turns" in row], samples


@pytest.mark.proof
def test_a_taskset_of_one_turn_is_learned_with_its_own_rewards(here: Path) -> None:
    rows, samples = run("double_it")
    assert sum(row["reward/right"] for row in rows[-3:]) > sum(row["reward/right"] for row in rows[:3])
    assert all(row["train/turns"] == 1 and row["agreement/max_abs_logprob_diff"] < 1e-4 for row in rows)
    for sample in samples:
        number = re.findall(r"twice (\d)", sample["prompt"])[0]
        said = sample["response"].strip()  # as verifiers' last_reply
        right, short = str(2 * int(number)) in said.split(), 1 / (1 + len(said))
        assert sample["score"] == pytest.approx(2.0 * right + 0.1 * short)
        assert sample["reward/right"] == 2.0 * right


@pytest.mark.proof
def test_an_environment_of_several_turns_hears_the_policy_and_answers(here: Path) -> None:
    rows, samples = run("higher")
    assert max(row["train/turns"] for row in rows) > 1
    assert any({"reward/found", "reward/turns"} <= row.keys() for row in rows)
    tokens = [zip(sample["token"]["text"], sample["token"]["mask"], strict=True) for sample in samples]
    assert {text.strip() for pairs in tokens for text, mask in pairs if not mask} & {"higher", "lower"}
    ended = [sample for sample in samples if sample["score"] is not None]
    assert 0 < len(ended) < len(samples)  # one that a limit ended is not scored, and no zero
    assert all(sample["score"] == pytest.approx(sample["reward/found"] + sample["reward/turns"]) for sample in ended)


@pytest.mark.proof
def test_more_episodes_at_once_than_verifiers_client_has_connections_are_played_in_one_process(here: Path) -> None:
    messages = [{"role": "system", "content": "count"}, {"role": "user", "content": "twice 0"}]
    row = {"taskset": "double_it", "index": 0, "messages": messages}
    move = {"row": row, "seed": 0, "said": ["0"], "heard": [], "timeout_s": 120.0}
    child = build_child(environment.__name__, "lockstep.environments.verifiers_bridge:VerifiersEpisode")
    with child.ask_streaming([move | {"episode": number} for number in range(1100)]) as reply:
        assert reply(60) == environment.TOGETHER
        for _ in range(1100):
            while (answer := reply(120)) == environment.CALLED:
                continue
            assert answer["parts"] == {"right": 2.0, "short": 0.05}


def await_in_a_thread(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Runs it where no loop is: a browser of another test has one in the main thread."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(lambda: asyncio.run(work())).result()


def test_a_taskset_that_failed_is_opened_again_for_the_next_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    async def fail(taskset: str) -> Any:
        opened.append(taskset)
        raise InputError("no port is free")

    monkeypatch.setattr(verifiers_bridge, "_open", fail)

    async def begin_two() -> None:
        for _ in range(2):
            with pytest.raises(InputError, match="no port is free"):
                await VerifiersEpisode().reset({"taskset": "double_it"}, 0)

    await_in_a_thread(begin_two)
    assert opened == ["double_it"] * 2
