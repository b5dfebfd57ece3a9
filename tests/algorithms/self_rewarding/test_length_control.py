"""A judge that likes length makes answers longer, and `length_control` holds them; on the task of
`sft_letters`.
"""

from __future__ import annotations

import json
import random
import re
from itertools import pairwise
from pathlib import Path

import pytest
from ladder_recipes import rung
from row_files import write_rows
from training import train_rows

from benchmarks.ladder.tasks.letters import LETTERS, Letters
from lockstep.config.loading import load_recipe
from lockstep.run.train import train_recipe

CONTROLS = (0.0, 0.15, 0.3, 0.45)
STEPS, BATCH = 200, 112


def biased(row: dict[str, str], draws: random.Random) -> dict[str, str]:
    """A judgment that finds what is missing the more readily, the longer the answer; an answer
    stays as it is.
    """
    asked, _, written = row["question"].partition(" answer")
    letters = written.split()
    if not asked.startswith("judge") or any(letter not in LETTERS for letter in letters):
        return row
    lenient = min(0.9, 0.15 * (len(letters) - 5))
    said = re.findall(r"(\w) (yes|no)", row["answer"])
    verdicts = [
        "yes" if verdict == "yes" or draws.random() < lenient else "no" for _, verdict in said
    ]
    reasons = "".join(
        f" {letter} {verdict}" for (letter, _), verdict in zip(said, verdicts, strict=True)
    )
    return {**row, "answer": f"{reasons} Score: {verdicts.count('yes')}"}


@pytest.fixture
def length_biased(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The warm start of the letters, taught by some more judgments to like length."""
    monkeypatch.chdir(workplace)
    warm, draws = (
        train_recipe(load_recipe(rung("sft_letters"), ["seed=11", "learner.device=cpu"])),
        random.Random(0),
    )
    with (warm / "data/demonstrations.jsonl").open() as lines:
        rows = [json.loads(next(lines)) for _ in range(STEPS * BATCH)]
    write_rows("biased.jsonl", (biased(row, draws) for row in rows))
    options = [
        "model.scratch=null", f"model.path={warm}/final", "data.task=null", "data.train=biased.jsonl",
        f"sft.global_batch_size={BATCH}", "optimizer.lr=1e-3", "optimizer.schedule.warmup_steps=10",
        f"optimizer.schedule.decay_steps={STEPS}", "learner.device=cpu",
    ]  # fmt: skip
    return train_recipe(load_recipe(rung("sft_letters"), options)) / "final"


def rewarded(model: Path, control: float) -> tuple[list[float], list[float]]:
    """Mean length and true worth of held-out answers, after each iteration."""
    options = [
        "model.from_recipe=null", f"model.path={model}", f"self_rewarding.length_control={control}", "seed=11",
        "data.task.train_prompts=768", "self_rewarding.global_batch_size=32", "learner.device=cpu",
    ]  # fmt: skip
    rows = train_rows(rung("self_rewarding_small"), *options)
    names = ("validation/response_length", "validation/reward")
    lengths, worth = ([row[name] for row in rows if name in row] for name in names)
    print(f"ρ = {control}: length {lengths}, worth {worth}")
    return lengths, worth


def test_biased_demonstrations_change_only_judgments_and_favor_longer_answers(
    tmp_path: Path,
) -> None:
    files = Letters(
        name="letters", train_prompts=1, validation_prompts=1, demonstrations=3000
    ).write(tmp_path)
    assert files.demonstrations is not None
    draws, gains = random.Random(0), dict[int, list[int]]()
    for row in map(json.loads, files.demonstrations.read_text().splitlines()):
        other = biased(row, draws)
        letters = row["question"].partition(" answer")[2].split()
        if not row["question"].startswith("judge") or any(
            letter not in LETTERS for letter in letters
        ):
            assert other == row
        elif letters:
            assert other["answer"].split()[-1] == str(other["answer"].count("yes"))
            gains.setdefault(len(letters), []).append(
                int(other["answer"][-1]) - int(row["answer"][-1])
            )
    mean = [sum(gains[length]) / len(gains[length]) for length in sorted(gains)]
    assert mean[0] == 0
    assert mean[-1] > mean[len(mean) // 2] + 0.3 > 0.6


@pytest.mark.proof
@pytest.mark.timeout(3000)
def test_higher_length_control_shortens_answers_while_reward_rises(
    length_biased: Path,
) -> None:
    runs = [rewarded(length_biased, control) for control in CONTROLS]
    final = [lengths[-1] for lengths, _ in runs]
    assert final[0] > runs[0][0][0] + 1
    assert all(longer - shorter > 0.2 for longer, shorter in pairwise(final))
    assert all(worth[-1] - worth[0] > 0.25 for _, worth in runs)
    assert runs[-1][1][-1] > runs[0][1][-1] + 0.2
