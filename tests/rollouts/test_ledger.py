"""The ledger: whatever an agent asks, each token that the policy drew is trained on once, as drawn."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.core.errors import InputError
from lockstep.rollouts.harbor import read_harbor_trial
from lockstep.rollouts.ledger import TracedTurn, build_paths
from lockstep.rollouts.ledger_file import (
    LedgerFile,
    LedgerLine,
    read_ledger,
    read_trace,
    write_trace,
)
from lockstep.rollouts.turns import Turn

SYSTEM = {"role": "system", "content": "Count."}
USER = {"role": "user", "content": "To three."}


def turn(
    number: int, prompt: Sequence[int], drawn: Sequence[int], messages: list[Any] | None = None
) -> TracedTurn:
    """A turn whose log-probabilities are found nowhere else."""
    logprobs = [-1.0 - number - index / 64 for index in range(len(drawn))]
    request = {} if messages is None else {"messages": messages}
    return TracedTurn.from_turn(
        Turn(
            "s", f"id{number}", tuple(prompt), tuple(drawn), tuple(logprobs), "stop", 3, request, {}
        )
    )


tokens = st.lists(st.integers(0, 2), min_size=1, max_size=3)


@st.composite
def sessions(draw: st.DrawFn) -> list[TracedTurn]:
    """What agents do: continue, ask again, rewrite from some place on, begin anew, in any order."""
    turns: list[TracedTurn] = []
    for number in range(draw(st.integers(1, 8))):
        kind = draw(st.sampled_from(["continue", "again", "rewrite", "begin"]))
        before = draw(st.sampled_from(turns)) if turns else turn(0, [0], [0])
        prompt = {
            "continue": before.tokens + draw(tokens),
            "again": before.prompt_token_ids,
            "rewrite": before.tokens[: draw(st.integers(0, len(before.tokens)))] + draw(tokens),
            "begin": draw(tokens),
        }[kind]
        one = turn(number, prompt, draw(tokens))
        mask = draw(st.lists(st.integers(0, 1), min_size=3, max_size=3))
        if draw(st.booleans()):
            size = len(one.completion_token_ids)
            one = replace(one, loss_mask=[0] * len(prompt) + mask[:size])
        if draw(st.integers(0, 5)) == 0:
            one = replace(one, per_token_logps=one.per_token_logps[:-1])
        turns.append(one)
    return draw(st.permutations(turns))


def find_discarded(turns: Sequence[TracedTurn]) -> set[str]:
    """By the definition: a sibling of the same prompt is continued, this turn is not."""
    parents = set[str]()
    for one in turns:
        begins = [
            other for other in turns if one.prompt_token_ids[: len(other.tokens)] == other.tokens
        ]
        if begins:
            parents.add(max(begins, key=lambda other: len(other.tokens)).node_id)
    discarded = set[str]()
    for one in turns:
        same = {other.node_id for other in turns if other.prompt_token_ids == one.prompt_token_ids}
        if same & parents and one.node_id not in parents:
            discarded.add(one.node_id)
    return discarded


@given(sessions())
def test_each_trainable_token_is_trained_on_once_as_drawn(turns: list[TracedTurn]) -> None:
    paths, counts = build_paths(turns)
    discarded = find_discarded(turns)
    expected: list[tuple[int, float]] = []
    for one in turns:
        if one.node_id in discarded or len(one.per_token_logps) < len(one.completion_token_ids):
            continue
        asked = one.loss_mask[len(one.prompt_token_ids) :]
        drawn = zip(asked, one.completion_token_ids, one.per_token_logps, strict=True)
        expected += [(token, logprob) for mask, token, logprob in drawn if mask]
    trained: list[tuple[int, float]] = []
    for path in paths:
        columns = zip(path.mask, path.token_ids, path.logprobs, strict=True)
        trained += [(token, logprob) for mask, token, logprob in columns if mask]
        assert all(mask or not own for mask, own in zip(path.mask, path.logprobs, strict=True))
        assert path.token_ids in [one.tokens for one in turns]
    assert sorted(trained) == sorted(expected)
    assert (counts.turns, counts.retokenized) == (len(turns), 0)
    assert counts.dropped == len(discarded)
    assert counts.paths == len(paths)
    assert counts.forks + counts.roots <= len(turns) - len(discarded)


def test_conversation_of_linear_turns_is_one_path() -> None:
    first = turn(1, [1, 2], [3, 4], [SYSTEM, USER])
    second = turn(2, [1, 2, 3, 4, 5], [6], [SYSTEM, USER, {"role": "assistant"}])
    (path,), counts = build_paths([first, second])
    assert path.token_ids == [1, 2, 3, 4, 5, 6]
    assert path.mask == [False, False, True, True, False, True]
    assert path.logprobs == [0, 0, *first.per_token_logps, 0, *second.per_token_logps]
    assert (counts.turns, counts.forks, counts.roots) == (2, 0, 1)


def test_rewritten_history_forks_and_other_opening_is_root() -> None:
    reply = {"role": "assistant", "content": "1"}
    first = turn(1, [1, 2], [3, 4], [SYSTEM, USER])
    stripped = turn(2, [1, 2, 4, 5], [6], [SYSTEM, USER, reply, USER])
    title = turn(3, [9, 2], [7], [{"role": "system", "content": "A title."}, USER])
    paths, counts = build_paths([first, stripped, title])
    assert [path.token_ids for path in paths] == [[1, 2, 3, 4], [1, 2, 4, 5, 6], [9, 2, 7]]
    assert (counts.forks, counts.roots) == (1, 2)


def test_two_continuations_of_one_turn_fork_and_train_it_once() -> None:
    first = turn(1, [1], [2])
    paths, counts = build_paths([first, turn(2, [1, 2, 3], [4]), turn(3, [1, 2, 5], [6])])
    assert [path.mask for path in paths] == [
        [False, True, False, True],
        [False, False, False, True],
    ]
    assert (counts.forks, counts.roots) == (1, 1)


@pytest.mark.parametrize("logprobs", [[-1.0], [-1.0, float("nan")], [-1.0, -9999.0]])
def test_turn_without_usable_logprobs_is_context_and_counted(logprobs: list[float]) -> None:
    first = replace(turn(1, [1], [2, 3]), per_token_logps=logprobs)
    (path,), counts = build_paths([first, turn(2, [1, 2, 3], [4])])
    assert path.mask == [False, False, False, True]
    assert counts.untrainable == 1


def test_ledger_is_read_as_written_from_last_beginning(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = LedgerFile(path)
    first = turn(1, [1], [2], [SYSTEM, USER])
    ledger.append(LedgerLine("a", row={"n": 1}), LedgerLine("a", turn=turn(7, [1], [3])))
    ledger.append(LedgerLine("b", row={"n": 2}), LedgerLine("a", row={"n": 1}))
    ledger.append(LedgerLine("a", turn=first), LedgerLine("b", answer="", fault="timed out"))
    ledger.append(LedgerLine("a", answer="two", fault=""), LedgerLine("a", score=1.0))
    with path.open("a") as file:
        file.write('{"episode": "a", "sco')  # as a loss of power leaves it
    episodes = read_ledger(path)
    assert (episodes["a"].turns, episodes["a"].answer, episodes["a"].score) == ([first], "two", 1.0)
    assert (episodes["b"].fault, episodes["b"].score) == ("timed out", None)


def test_training_trace_is_read_as_written_without_untrainable_turns(tmp_path: Path) -> None:
    kept = turn(1, [1, 2], [3])
    assert write_trace(tmp_path / "t", [kept, replace(turn(2, [1], [2]), per_token_logps=[])]) == 1
    assert read_trace(tmp_path / "t") == [kept]
    assert json.loads((tmp_path / "t").read_text()) == {
        "schema_version": 1,
        "turns": [asdict(kept)],
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": 2}, "schema_version"),
        ({"reward": 1.0}, "reward"),
        ({"turns": [asdict(turn(1, [1], [2]))] * 2}, "two turns have the id 'id1'"),
        ({"turns": [asdict(turn(1, [1], [2])) | {"per_token_logps": []}]}, "0 log-probabilities"),
        ({"turns": [asdict(turn(1, [1], [2])) | {"loss_mask": [1, 1]}]}, "trains on the prompt"),
        ({"turns": [asdict(turn(1, [1], [2])) | {"loss_mask": [0, 2]}]}, "must be 0 or 1"),
        ({"turns": [asdict(turn(1, [1], [-2]))]}, "a token id is negative"),
        ({"turns": [asdict(turn(1, [1], [2])) | {"prompt_token_ids": ["1"]}]}, "valid integer"),
    ],
)
def test_malformed_training_trace_is_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    whole = {"schema_version": 1, "turns": [asdict(turn(1, [1], [2]))]} | change
    (tmp_path / "trace.json").write_text(json.dumps(whole))
    with pytest.raises(InputError, match=message):
        read_trace(tmp_path / "trace.json")


TRIAL: dict[str, Any] = {
    "schema_version": 1,
    "id": "0b5c",
    "task_name": "make-pie",
    "trial_name": "make-pie__1",
    "agent_result": {
        "n_input_tokens": 5,
        "rollout_details": [
            {
                "prompt_token_ids": [[1, 2], [1, 2, 3, 4]],
                "completion_token_ids": [[3], [5, 6]],
                "logprobs": [[-0.5], [-1.0, -2.0]],
            },
            {"prompt_token_ids": [[9]], "completion_token_ids": [[8]], "logprobs": [[-3.0]]},
        ],
    },
    "verifier_result": {"rewards": {"reward": 1}},
    "exception_info": None,
}


def test_harbor_trial_is_an_episode_of_paths(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(json.dumps(TRIAL))
    episode = read_harbor_trial(tmp_path)
    paths, counts = build_paths(episode.turns)
    assert [path.token_ids for path in paths] == [[1, 2, 3, 4, 5, 6], [9, 8]]
    assert paths[0].logprobs == [0, 0, -0.5, 0, -1.0, -2.0]
    assert (episode.score, episode.fault, counts.roots) == (1.0, "", 2)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (
            {"exception_info": {"exception_type": "AgentTimeout", "exception_message": "900 s"}},
            "AgentTimeout: 900 s",
        ),
        ({"verifier_result": None}, "the verifier gave no reward"),
    ],
)
def test_failed_harbor_trial_has_no_verdict(
    tmp_path: Path, change: dict[str, Any], fault: str
) -> None:
    (tmp_path / "result.json").write_text(json.dumps(TRIAL | change))
    episode = read_harbor_trial(tmp_path)
    assert (episode.score, episode.fault) == (None, fault)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"agent_result": None}, "collect_rollout_details: true"),
        ({"verifier_result": {"rewards": {"speed": 1, "taste": 0}}}, "none called reward"),
        ({"schema_version": 2}, "schema_version"),
        ({"agent_result": {"rollout_details": [{"logprobs": [[]]}]}}, "different lengths"),
    ],
)
def test_unreadable_harbor_trial_is_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    (tmp_path / "result.json").write_text(json.dumps(TRIAL | change))
    with pytest.raises(InputError, match=message):
        read_harbor_trial(tmp_path)
