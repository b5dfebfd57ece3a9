"""Rewards as people have them: sums of named ones, batch and `async` functions, servers."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from scoring_server import serving

from lockstep.config.trust import list_references
from lockstep.core.errors import LockstepError
from lockstep.core.types import Prompt
from lockstep.rewards.base import RewardError, compute_reward_results
from lockstep.rewards.build import build_reward
from lockstep.rewards.combined_rewards import WeightedPart, WeightedSum
from lockstep.rewards.options import RewardSection
from lockstep.system.fault_policy import POLICY

PROMPTS = [Prompt(f"rows.jsonl:{n}", f"p{n}", (0,), {"level": n}) for n in range(6)]
RESPONSES, ANSWERS = [str(n) for n in range(6)], ["a"] * 6
FUNCTIONS = """
import asyncio

under_way = most = 0


def value(prompt, response, answer, row):
    return float(response)


def odd_only(prompt, response, answer, row):
    return 1.0 if int(response) % 2 else None


def ranked(prompts, responses, answers, rows):
    assert [row["level"] for row in rows] == [int(response) for response in responses]
    return [sorted(responses).index(response) / len(responses) for response in responses]


def too_few(prompts, responses, answers, rows):
    return [1.0]


def one_bad(prompts, responses, answers, rows):
    return [float("nan") if response == "3" else 0.0 for response in responses]


def no_list(prompts, responses, answers, rows):
    return 1.0


async def most_at_once(prompt, response, answer, row):
    global under_way, most
    under_way += 1
    most = max(most, under_way)
    await asyncio.sleep(0.01 * (6 - int(response)))
    under_way -= 1
    return float(response) + 10 * most


async def in_one(prompts, responses, answers, rows):
    await asyncio.sleep(0)
    return [1.0 for _ in responses]


async def fails(prompt, response, answer, row):
    await asyncio.sleep(0)
    raise KeyError(response)


async def leaves(prompt, response, answer, row):
    raise SystemExit(0)


async def cancels(prompt, response, answer, row):
    raise asyncio.CancelledError


async def hangs(prompt, response, answer, row):
    await asyncio.sleep(60 if response == "3" else 0)
    return 1.0
"""


@pytest.fixture(autouse=True)
def functions(in_tmp: Path) -> None:
    (in_tmp / "mine.py").write_text(FUNCTIONS)


def reward_of(name: str, **options: Any) -> list[float | None]:
    section = RewardSection(type="python", function=f"mine.py:{name}", **options)
    return build_reward(section)(PROMPTS, RESPONSES, ANSWERS)


PARTS = {
    "value": {"type": "python", "function": "mine.py:value", "weight": 0.1},
    "odd": {"type": "python", "function": "mine.py:odd_only", "weight": -2.0},
    "math": {"type": "math", "weight": 0.0},
}


def test_sum_reward_weights_parts_and_is_none_if_weighted_part_is_none() -> None:
    section = RewardSection.model_validate({"type": "sum", "parts": PARTS})
    prompts, answers = PROMPTS[:4], ["1"] * 4
    found = compute_reward_results(build_reward(section), prompts, RESPONSES[:4], answers)
    assert found.rewards == [None, 0.1 - 2.0, None, 3 * 0.1 - 2.0]
    assert found.parts == {
        "value": [0.0, 1.0, 2.0, 3.0],
        "odd": [None, 1.0, None, 1.0],
        "math": [0.0, 1.0, 0.0, 0.0],
    }
    keys = [("reward", "parts", name, "function") for name in ("value", "odd")]
    assert [option for option, _, _ in list_references({"reward": {"parts": PARTS}})] == keys


def test_sum_reward_is_rounded_once_and_independent_of_part_order() -> None:
    weights = [random.Random(n).uniform(-1, 1) * 10.0 ** (n % 9) for n in range(12)]
    exact = float(sum(Fraction(weight * 5.0) for weight in weights))
    for order in (weights, weights[::-1], sorted(weights)):
        parts = {
            str(weight): WeightedPart(lambda prompts, responses, answers: [5.0], weight)
            for weight in order
        }
        assert WeightedSum(parts)(PROMPTS[5:], ["5"], ["a"]) == [exact]


def test_batch_reward_function_gets_all_responses_in_one_call() -> None:
    assert reward_of("ranked", batch=True) == [n / 6 for n in range(6)]


def test_an_async_function_is_awaited_concurrently_and_rewards_keep_their_order() -> None:
    rewards = reward_of("most_at_once")
    assert [reward % 10 for reward in rewards if reward is not None] == [float(n) for n in range(6)]
    assert max(reward // 10 for reward in rewards if reward is not None) == 6
    assert reward_of("in_one", batch=True) == [1.0] * 6


def test_an_async_function_that_fails_or_hangs_names_the_row() -> None:
    with pytest.raises(
        RewardError, match=r"rows\.jsonl:0: .* raised KeyError: '0' \(mine\.py, line \d+\)"
    ):
        reward_of("fails")
    for name, what in (("leaves", "SystemExit"), ("cancels", "CancelledError")):
        with pytest.raises(RewardError, match=rf"rows\.jsonl:0: .* raised {what}"):
            reward_of(name)
    with pytest.raises(RewardError, match=r"rows\.jsonl:3: .* timed out after 0\.5 s"):
        reward_of("hangs", timeout_s=0.5)


def served(reply: Callable[[dict[str, Any]], Any], **options: Any) -> list[float | None]:
    """Rewards by a server; it serves on one path and has no other."""
    with serving(lambda path, body: reply(body) if path == "/score" else 404) as url:
        section = RewardSection.model_validate(
            {"type": "server", "server": {"url": f"{url}/score", **options}}
        )
        return build_reward(section)(PROMPTS, RESPONSES, ANSWERS)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICY, "server", replace(POLICY["server"], waits_s=(0.0,)))


def test_reward_server_requests_are_batched_and_null_means_no_verdict() -> None:
    asked: list[dict[str, Any]] = []

    def reply(body: dict[str, Any]) -> Any:
        asked.append(body)
        return {
            "rewards": [None if r == "4" else int(r) / 2 for r in body["responses"]],
            "note": "passed over",
        }

    assert served(reply, batch_size=4, max_concurrency=2) == [0.0, 0.5, 1.0, 1.5, None, 2.5]
    [first, _] = sorted(asked, key=lambda body: body["responses"])
    rows = [{"level": n} for n in range(4)]
    assert first == {
        "prompts": ["p0", "p1", "p2", "p3"],
        "responses": RESPONSES[:4],
        "answers": ["a"] * 4,
        "rows": rows,
    }


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        ({"rewards": [1.0]}, "it returned 1 rewards for 6 responses"),
        (b'{"rewards": [0, 0, NaN, 0, 0, 0]}', r"its response cannot be parsed \(holds NaN"),
        (
            {"rewards": ["1"] * 6},
            r"unexpected response format \(rewards\.0\.?: Input should be a valid number",
        ),
        ({"scores": [1.0] * 6}, r"\(rewards: Field required\)"),
        (500, "returns 500 after 2 attempts"),
        (307, "redirects requests to"),
    ],
)
def test_invalid_reward_server_response_raises_error(quick: None, reply: Any, says: str) -> None:
    with pytest.raises(LockstepError, match=says):
        served(lambda body: reply, max_retries=1)


def test_reward_server_is_retried_and_api_key_is_sent_only_in_header(
    quick: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MY_KEY", "sk-very-secret")
    replies, seen, told = [503, {"rewards": [1.0] * 6}], list[Any](), list[str]()
    with serving(lambda path, body: replies.pop(0), seen) as url:
        server = {"url": f"{url}/score", "api_key_env": "MY_KEY"}
        section = RewardSection.model_validate({"type": "server", "server": server})
        assert build_reward(section, told.append)(PROMPTS, RESPONSES, ANSWERS) == [1.0] * 6
    assert seen == [("/score", "Bearer sk-very-secret")] * 2
    assert "returns 503" in told[0]
    assert "asking again" in told[0]
    assert "secret" not in "".join([*told, *capfd.readouterr()])
    seen.clear()
    with serving(lambda path, body: {"rewards": [1.0] * 6}, seen) as url:
        section = RewardSection.model_validate(
            {"type": "server", "server": {"url": f"{url}/score"}}
        )
        build_reward(section)(PROMPTS, RESPONSES, ANSWERS)
    assert seen == [("/score", None)], "no key, no header"
