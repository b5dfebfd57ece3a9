"""Episodes with a real engine and environments in real processes: what the tokens are, and what a
fault costs.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import model_folder

from lockstep.algorithms.episodes import build_observation_encoder
from lockstep.config import DataSection
from lockstep.core import keyed
from lockstep.core.batch import Batch
from lockstep.core.types import Prompt, Request, SamplingParams
from lockstep.environments.options import EnvironmentSection
from lockstep.models.load import load_causal_lm
from lockstep.models.source import ModelSource, open_source
from lockstep.rollouts.episodes import EnvironmentFault, EpisodeObservation, EpisodeRunner
from lockstep.rollouts.sampler_session import SamplerSession
from lockstep.samplers.torch.sampler import TorchSampler

SAMPLING = SamplingParams(max_tokens=10, stop_token_ids=(1,))
STOPS = (2, *range(3, 64, 2))  # so many that a random model ends its turns
CLASSES = """
import asyncio, os, time

class Counting:
    "Says how often it was asked, and draws from its seed; ends after as many turns as its row says."
    def reset(self, row, seed):
        self.turns, self.seed, self.row = 0, seed, row
    def step(self, response):
        self.turns += 1
        self.trouble(response)
        return f"{self.turns} {self.seed % 7}", 1.0, self.turns >= self.row["turns"]
    def trouble(self, response):
        "Nothing goes wrong."

class Raising(Counting):
    def trouble(self, response):
        if self.row["bad"] and self.turns == 2: raise KeyError("level")

class Hanging(Counting):
    def trouble(self, response):
        if self.row["bad"] and self.turns == 2: time.sleep(60)

class Ending(Counting):
    def trouble(self, response):
        if self.row["bad"] and self.turns == 2: os._exit(3)

class Nonsense(Counting):
    def step(self, response):
        said = super().step(response)
        return "only text" if self.row["bad"] and self.turns == 2 else said

class Maybe(Counting):
    def step(self, response):
        observation, reward, done = super().step(response)
        return observation, reward, "yes" if self.row["bad"] and self.turns == 2 else done

class Rich(Counting):
    def step(self, response):
        observation, reward, done = super().step(response)
        return observation, 2e38 if self.row["bad"] else reward, done

class Narrow(Counting):
    def step(self):
        "Takes no response."

class Unrewarded(Counting):
    def step(self, response):
        observation, _, done = super().step(response)
        return observation, None if self.row["bad"] else 0.5, done

class Named(Raising):
    def step(self, response):
        observation, reward, done = super().step(response)
        return observation, {"turn": reward}, done

class Fickle(Ending):
    def step(self, response):
        observation, reward, done = super().step(response)
        return f"{observation} {os.getpid()}", reward, done

class Waiting(Counting):
    "All the episodes of a turn meet before any of them answers."
    arrived = []
    async def reset(self, row, seed):
        await asyncio.sleep(0)
        Counting.reset(self, row, seed)
    async def step(self, response):
        if self.row.get("meet"):
            self.arrived.append(self)
            while len(self.arrived) < self.row["meet"]: await asyncio.sleep(0.001)
        said = Counting.step(self, response)
        if self.row["bad"] and self.turns == 2: await self.wrong()
        return said
    async def wrong(self):
        "Nothing goes wrong."

class LateAsync(Waiting):
    async def wrong(self): await asyncio.sleep(60)

class RaisingAsync(Waiting):
    async def wrong(self): raise KeyError("level")

class BlockingAsync(Waiting):
    async def wrong(self): time.sleep(60)

class EndingAsync(Waiting):
    async def wrong(self): os._exit(3)

class Seeded(Counting):
    def step(self, response):
        return "", float(self.seed % 2**20), True

class Stepless:
    def reset(self, row, seed): pass
"""


@pytest.fixture
def folder(in_tmp: Path) -> Path:
    (in_tmp / "worlds.py").write_text(CLASSES)
    return in_tmp


@pytest.fixture(scope="module")
def sampler(tmp_path_factory: pytest.TempPathFactory) -> TorchSampler:
    model = load_causal_lm(model_folder(tmp_path_factory.mktemp("model"), "llama"))
    return TorchSampler(model, 64)


def observed(text: EpisodeObservation, last: int) -> Sequence[int]:
    said = text if isinstance(text, str) else text[0]["content"]
    return [10 + int(number) % 50 for number in said.split()]


def decode_numbers(tokens: Sequence[int]) -> str:
    return " ".join(map(str, tokens))


def played(
    sampler: TorchSampler,
    name: str,
    rows: Sequence[dict[str, object]],
    notes: list[str],
    group_size: int = 1,
    decode: Callable[[Sequence[int]], str] = decode_numbers,
    **options: object,
) -> Batch:
    section = EnvironmentSection.model_validate(
        {"class_name": f"worlds.py:{name}", "max_tokens": 44, "timeout_s": 20.0, **options}
    )
    episodes = EpisodeRunner(section, STOPS, decode, lambda tools: observed, notes.append)
    engine = SamplerSession(sampler)
    prompts = [Prompt(f"rows.jsonl:{i}", "", (3 + i, 4), row) for i, row in enumerate(rows)]
    requests = [Request(prompt.tokens, keyed.hash_key(0, i)) for i, prompt in enumerate(prompts)]
    with engine.at():
        return episodes.run_episodes(engine, prompts, requests, SAMPLING, group_size)


def test_episode_seed_is_shared_by_group_unless_set_per_episode(
    folder: Path, sampler: TorchSampler
) -> None:
    rows = [{"bad": False, "turns": 3}] * 6
    each = played(sampler, "Seeded", rows, [], 3, seed="episode")["environment_reward"].tolist()
    group = played(sampler, "Seeded", rows, [], 3)["environment_reward"].tolist()
    assert len(set(each)) == 6
    assert group == [each[0]] * 3 + [each[3]] * 3


def runs(mask: torch.Tensor) -> Iterator[bool]:
    """Whether each stretch of equal values is trained on."""
    before = None
    for value in mask.tolist():
        if value != before:
            yield value
        before = value


ROWS = [{"turns": 1 + i % 3, "bad": i == 2} for i in range(6)]


def check_fault(sampler: TorchSampler, name: str, said: str, **options: Any) -> list[str]:
    """The third episode alone fails, and a note names it; returns all notes."""
    healthy = played(sampler, "Counting", ROWS, [])
    batch = played(sampler, name, ROWS, notes := [], timeout_s=1.0, **options)
    where = f"rows.jsonl:2, turn 2: environment.class_name worlds.py:{name} "
    assert notes[-1].startswith(f"1 of 6 episodes failed; the first: {where}{said}")
    assert batch["environment_fault"].tolist() == [False, False, True, False, False, False]
    assert batch["environment_reward"].isnan().tolist() == batch["environment_fault"].tolist()
    for i in (0, 1, 3, 4, 5):
        assert torch.equal(batch.sequences()[i], healthy.sequences()[i])
        assert batch["environment_reward"][i] == healthy["environment_reward"][i]
    return notes


def test_episode_mask_covers_only_sampled_tokens_and_logprobs_match_rescoring(
    folder: Path, sampler: TorchSampler
) -> None:
    batch = played(sampler, "Counting", ROWS, notes := [])
    assert notes == []
    assert batch["turns"].tolist() == [1, 2, 3, 1, 2, 3]
    assert batch["environment_reward"].tolist() == [1.0, 2.0, 3.0, 1.0, 2.0, 3.0]
    for i, (tokens, mask) in enumerate(
        zip(batch.sequences(), batch.sequences("mask"), strict=True)
    ):
        turns, seed = 1 + i % 3, keyed.hash_key(0, i) % 7
        assert tokens[:2].tolist() == [3 + i, 4]
        assert list(runs(mask)) == [False, *[True, False] * (turns - 1), True]
        heard = tokens[2:][~mask[2:]].tolist()
        assert heard == [token for turn in range(1, turns) for token in (10 + turn, 10 + seed)]
    assert torch.equal(batch["sampler_logprob"] != 0, batch.mask)
    with (engine := SamplerSession(sampler)).at():
        scored = engine.logprobs(batch)
    assert torch.allclose(scored, batch["sampler_logprob"], atol=1e-5)


def test_episode_tokens_do_not_depend_on_concurrency_or_other_episodes(
    folder: Path, sampler: TorchSampler
) -> None:
    alone = [played(sampler, "Counting", ROWS[:k], []).sequences()[k - 1] for k in (1, 3)]
    one, three = (played(sampler, "Counting", ROWS, [], max_concurrency=n) for n in (1, 3))
    assert torch.equal(one.tokens, three.tokens)
    assert torch.equal(one.sequences()[0], alone[0])
    assert torch.equal(one.sequences()[2], alone[1])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Raising", "raised KeyError: 'level' (worlds.py, line "),
        ("Hanging", "timed out after 1 s"),
        ("Ending", "crashed its process (exit status 3)"),
        ("Nonsense", "returned 'only text'; return (observation, reward, done)"),
        ("Maybe", "returned 'yes' as done; return True or False"),
        ("Rich", "returned rewards whose sum 4e+38 overflows fp32"),
    ],
)
@pytest.mark.parametrize("processes", [1, 2])
def test_environment_fault_fails_only_its_episode_and_is_named(
    folder: Path, sampler: TorchSampler, name: str, said: str, processes: int
) -> None:
    assert len(check_fault(sampler, name, said, max_concurrency=processes)) == 1


def test_async_episodes_run_concurrently_with_same_tokens(
    folder: Path, sampler: TorchSampler
) -> None:
    rows = [{"turns": 1, "bad": False, "meet": 40}] * 40
    batch = played(sampler, "Waiting", rows, notes := [], max_tokens=44)
    assert notes == []
    assert batch["environment_reward"].tolist() == [1.0] * 40
    healthy = played(sampler, "Counting", ROWS, [])
    assert torch.equal(played(sampler, "Waiting", ROWS, []).tokens, healthy.tokens)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("LateAsync", "timed out after 1 s"),
        pytest.param(
            "RaisingAsync", "raised KeyError: 'level' (worlds.py, line ", marks=pytest.mark.full
        ),
        ("BlockingAsync", "timed out after 1 s"),
        pytest.param("EndingAsync", "crashed its process (exit status 3)", marks=pytest.mark.full),
    ],
)
def test_async_environment_fault_fails_only_its_episode(
    folder: Path, sampler: TorchSampler, name: str, said: str
) -> None:
    """Also where it stops the loop of all, or ends their process."""
    check_fault(sampler, name, said)


@pytest.mark.full
@pytest.mark.parametrize("processes", [2, pytest.param(1, marks=pytest.mark.proof)])
def test_hanging_episodes_end_collection_once_fault_limit_is_exceeded(
    folder: Path, sampler: TorchSampler, processes: int
) -> None:
    rows = [{"turns": 3, "bad": True}] * 20
    limits = {"timeout_s": 2.0, "max_no_verdict_rate": 0.1, "max_concurrency": processes}
    with pytest.raises(EnvironmentFault, match=r"^[34] of 20 episodes failed; .*, above .*=0.1$"):
        played(sampler, "Hanging", rows, [], **limits)


def test_nondeterministic_environment_is_detected_on_replay(
    folder: Path, sampler: TorchSampler
) -> None:
    batch = played(sampler, "Fickle", ROWS, notes := [], max_no_verdict_rate=1.0)
    assert notes[0].startswith("3 of 6 episodes failed")
    assert batch["environment_fault"].tolist() == [False, False, True, False, True, True]


def test_max_turns_and_max_tokens_truncate_episodes(folder: Path, sampler: TorchSampler) -> None:
    endless = [{"turns": 99, "bad": False}] * 2
    by_turns = played(sampler, "Counting", endless, [], max_turns=2)
    assert by_turns["turns"].tolist() == [2, 2]
    by_tokens = played(sampler, "Counting", endless, [], max_turns=99, max_tokens=25)
    answers = [int(length) - 2 for length in by_tokens.lengths]
    assert all(length <= 25 for length in answers)
    assert by_turns["truncated"].all()
    assert by_tokens["truncated"].all()


def test_environment_faults_above_max_no_verdict_rate_raise_error(
    folder: Path, sampler: TorchSampler
) -> None:
    rows = [{"turns": 3, "bad": True}] * 4
    with pytest.raises(
        EnvironmentFault,
        match=r"^4 of 4 episodes failed; .*max_no_verdict_rate=0\.5$",
    ):
        played(sampler, "Raising", rows, [])


CHAT = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


@pytest.fixture
def talker(assets: Path, in_tmp: Path) -> ModelSource:
    """A real tokenizer with a chat template."""
    shutil.copytree(assets / "models/stories260K/hf", in_tmp / "talker")
    (in_tmp / "talker/chat_template.jinja").write_text(CHAT)
    return open_source(in_tmp / "talker")


def test_observation_after_stop_string_continues_message_and_template_args_apply(
    talker: ModelSource,
) -> None:
    data = DataSection(
        train="rows.jsonl",
        prompt="{q}",
        chat=True,
        max_prompt_tokens=9,
        template_args={"mood": "sad"},
    )
    talker.tokenizer.chat_template = CHAT + "{{ mood }}"
    stop, last = talker.token_ids("\n")[-1], talker.token_ids("end")[-1]
    observed = build_observation_encoder(data, (stop,), talker, pytest.fail)
    eos = talker.stop_token_ids[-1]
    for inside in (stop, last):
        assert talker.tokenizer.decode(list(observed("No, Lily.", inside))) == "No, Lily."
    assert str(talker.tokenizer.decode(list(observed("No, Lily.", eos)))).endswith("sad")
