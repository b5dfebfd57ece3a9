"""Runs whose episodes are agents: programs that know only an address and a key."""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from agent_runs import AGENT_RUN, OPENAI, PLAIN, REWARDS, THINKING
from killing import started, wait_for
from row_files import write_rows
from served_models import write_agent_model
from training import train_rows

from lockstep.cli import main
from lockstep.core.errors import LockstepError
from lockstep.rollouts.episodes import EnvironmentFault
from lockstep.rollouts.ledger_file import RecordedEpisode, read_ledger, read_trace

Run = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def run(in_tmp: Path) -> Run:
    """Trains the recipe with overrides; returns the rows of metrics.jsonl that are steps."""
    write_agent_model(in_tmp / "model")
    (in_tmp / "rewards.py").write_text(REWARDS)
    (in_tmp / "plain.py").write_text(f"{PLAIN}\nif __name__ == '__main__':\n    main()\n")
    (in_tmp / "asks.py").write_text(OPENAI)
    (in_tmp / "tiny.yaml").write_text(yaml.safe_dump(AGENT_RUN))
    write_questions(in_tmp / "rows.jsonl")

    def train(*overrides: str) -> list[dict[str, Any]]:
        return [row for row in train_rows("tiny.yaml", *overrides) if "train/turns" in row]

    return train


def write_questions(path: Path, **trouble: int) -> None:
    """Rows of which some cause trouble."""
    rows: list[dict[str, Any]] = [{"question": word} for word in ("cat", "hat", "mat", "dog")]
    for kind, index in trouble.items():
        rows[index]["trouble"] = kind
    write_rows(path, rows)


def read_certificate(folder: str = "run") -> dict[str, Any]:
    return json.loads(Path(folder, "certificate.json").read_text())


def read_episodes(folder: str = "run") -> list[RecordedEpisode]:
    return list(read_ledger(Path(folder, "ledger.jsonl")).values())


def list_evidence(folder: str) -> dict[str, Any]:
    """All that a replay needs, without times."""
    found = dict[str, Any]()
    for name, episode in read_ledger(Path(folder, "ledger.jsonl")).items():
        turns = [
            (one.node_id, one.prompt_token_ids, one.completion_token_ids, one.per_token_logps)
            for one in episode.turns
        ]
        found[name] = (turns, episode.row, episode.answer, episode.fault, episode.score)
    return found


def test_agent_of_openai_client_with_tools_trains_with_every_token_proven(
    run: Run, in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_agent_model(in_tmp / "thinker", THINKING)
    program = f"environment.command={sys.executable} asks.py"
    rows = run(program, "model.path=thinker", "run.max_steps=1")
    assert rows[0]["train/turns"] == rows[0]["train/paths"] == 8
    assert (rows[0]["train/roots"], rows[0]["train/forks"]) == (1, 7)
    assert rows[0]["train/turns_retokenized"] == 0
    found = read_certificate()
    assert (found["level"], found["mismatches"], found["http_episodes"]) == ("E2", 0, 8)
    episodes = read_episodes()
    drawn = sum(len(one.completion_token_ids) for episode in episodes for one in episode.turns)
    assert found["tokens"] == drawn == rows[0]["train/trained_tokens"]
    assert f"{drawn:,} tokens of 8 episodes through HTTP compared, 0 not" in capsys.readouterr().out
    assert all(episode.answer != "this is not the answer" for episode in episodes)
    assert all(episode.score is not None for episode in episodes)


@pytest.mark.full
def test_policy_learns_from_answers_of_agents(run: Run) -> None:
    rows = run("run.max_steps=14", "environment.max_turns=8", "policy.lr=0.02")
    first = sum(row["train/reward"] for row in rows[:2]) / 2
    assert sum(row["train/reward"] for row in rows[-2:]) / 2 > first + 0.1


def test_function_in_file_is_an_agent(run: Run) -> None:
    rows = run("environment.command=null", "environment.agent=plain.py:run", "run.max_steps=1")
    assert (rows[0]["train/turns"], rows[0]["train/paths"]) == (8, 1)
    assert all(episode.answer for episode in read_episodes())


def test_crash_timeout_and_silence_are_no_verdict_and_named(
    run: Run, in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_questions(in_tmp / "rows.jsonl", crash=0, sleep=1, silent=2)
    limits = ("environment.timeout_s=15", "environment.max_no_verdict_rate=0.8")
    rows = run("grpo.num_prompts_per_step=4", "grpo.num_generations=2", "run.max_steps=1", *limits)
    assert rows[0]["train/environment_faults"] == rows[0]["train/no_verdict"] == 6
    faults = {episode.row.get("trouble"): episode.fault for episode in read_episodes()}
    assert faults == {
        None: "",
        "crash": "ended with exit status 1 (out of luck)",
        "sleep": "timed out after 15 s",
        "silent": "made no request to OPENAI_BASE_URL with OPENAI_API_KEY",
    }
    assert "6 of 8 episodes failed; the first: " in capsys.readouterr().err
    with pytest.raises(EnvironmentFault, match=r"above environment.max_no_verdict_rate=0.5"):
        run(
            "run.folder=other", *limits[:1], "grpo.num_prompts_per_step=4", "grpo.num_generations=2"
        )


def test_agent_at_its_limit_is_truncated_and_judged(run: Run, in_tmp: Path) -> None:
    write_questions(in_tmp / "rows.jsonl", endless=0)
    rows = run("environment.max_turns=3", "grpo.num_prompts_per_step=4", "grpo.num_generations=2",
               "run.max_steps=1")  # fmt: skip
    assert rows[0]["train/truncated"] == 1
    assert rows[0]["train/turns"] == 3
    assert rows[0]["train/environment_faults"] == 0


@pytest.mark.full
def test_run_killed_amid_episodes_ends_in_the_same_bytes(run: Run, in_tmp: Path) -> None:
    run("run.folder=whole", "run.max_steps=3")
    ledger = in_tmp / "run" / "ledger.jsonl"
    size = (in_tmp / "whole" / "ledger.jsonl").stat().st_size

    def is_amid_step_two() -> bool:
        return ledger.exists() and ledger.stat().st_size > size / 2

    with started("run", "run.max_steps=3") as process:
        wait_for(is_amid_step_two, process)
        process.kill()
        assert process.wait() == -signal.SIGKILL
    assert main(["train", "tiny.yaml", "run.max_steps=3"]) == 0
    ends = [in_tmp / folder / "final/model.safetensors" for folder in ("run", "whole")]
    assert ends[0].read_bytes() == ends[1].read_bytes()
    assert read_certificate() == read_certificate("whole")
    assert list_evidence("run") == list_evidence("whole")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("environment.command=no-such-program run", "starts 'no-such-program', which is not a"),
        ("environment.class_name=worlds.py:Even", "set exactly one of class_name, command and"),
        ("environment.command=null", "set exactly one of class_name, command and agent"),
        ("reward=null", "an agent does not reward itself; set reward"),
        ('environment.stop=["a"]', "stop has no effect with an agent"),
        ("sampling.repetition_penalty=1.1", "repetition_penalty is not supported with an agent"),
    ],
)
def test_agent_that_cannot_run_is_refused_before_the_first_step(
    run: Run, override: str, message: str
) -> None:
    with pytest.raises(LockstepError, match=message):
        run(override)


def test_agents_guide_program_and_recipe_train_and_its_ledger_is_exported(in_tmp: Path) -> None:
    page = Path(__file__).parents[2].joinpath("docs/guides/agents.md").read_text()
    found = re.findall(r"^```(\w+)\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    agent, rewards, export = [text for language, text in found if language == "python"]
    (recipe,) = [text for language, text in found if language == "yaml"]
    write_agent_model(in_tmp / "MODEL")
    (in_tmp / "shop.py").write_text(agent)
    (in_tmp / "rewards.py").write_text(rewards)
    small = recipe.replace("python shop.py", f"{sys.executable} shop.py").replace(": 512", ": 200")
    (in_tmp / "agents.yaml").write_text(re.sub(r"max_tokens: 64", "max_tokens: 8", small))
    row = {"question": "What does a pear cost?", "answer": "2 crowns"}
    write_rows(in_tmp / "questions.jsonl", [row] * 4)
    sizes = ["grpo.num_prompts_per_step=1", "grpo.num_generations=2", "grpo.global_batch_size=2"]
    overrides = [*sizes, "run.max_steps=1", "run.folder=run", "learner.device=cpu"]
    assert main(["train", "agents.yaml", *overrides]) in (0, 3)  # nothing is right by chance
    exec(export, {})
    names = read_ledger(in_tmp / "run/ledger.jsonl")
    assert len(names) == 2
    for name, episode in names.items():
        assert read_trace(in_tmp / f"{name}.json") == episode.turns


def test_program_that_a_run_names_is_not_started_unless_repeated(
    in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_agent_model(in_tmp / "run/final")
    (in_tmp / "run/recipe.yaml").write_text(yaml.safe_dump(AGENT_RUN))
    write_questions(in_tmp / "rows.jsonl")
    assert main(["eval", "run", "rows.jsonl"]) != 0
    said = capsys.readouterr().err
    assert "starts a program; a run may come from someone else" in said
    assert "environment.command=" in said
