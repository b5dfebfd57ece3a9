"""Rewards: what counts as right, what is no verdict, and what a user's function may do."""

import gc
import os
import pickle
import signal
import threading
import time
from pathlib import Path

import pytest

from lockstep.data.jsonl import DataError, JsonlIndex
from lockstep.experience import math_verifier
from lockstep.experience.child import Child
from lockstep.experience.rewards import MathReward, PythonReward, Reward, RewardError, build
from lockstep.recipe import RewardSection
from lockstep.types import Prompt

PROMPT = Prompt("rows.jsonl:7", "What?", (1, 2), {"answer": "18", "level": 3})


def score(reward: Reward, response: str, answer: str = "#### 18") -> float | None:
    [value] = reward([PROMPT], [response], [answer])
    return value


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("9+9=18\n#### 18", "Half of it is 9.\n#### 18"),
        ("#### 18", "18"),
        ("#### $18", "#### 18"),
        ("#### 18.", "#### 18"),
        ("#### 18.00", "#### 18"),
        ("#### 18 apples", "#### 18"),
        ("####18", "#### 18"),
        ("#### 1,000", "#### 1000"),
        ("#### 1000", "#### 1,000"),
        ("#### -3", "#### -3"),
        ("#### 7\nNo:\n#### 18", "#### 18"),
        (r"#### \boxed{18}", "#### 18"),
        (r"#### \$18", "#### 18"),
        (r"#### \frac{3}{6}", "#### 0.5"),
        (r"#### \sqrt{12}", r"#### 2\sqrt{3}"),
    ],
)
def test_right_answers_are_right_however_they_are_written(response: str, answer: str) -> None:
    assert score(MathReward("####"), response, answer) == 1.0


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("#### 17", "#### 18"),
        ("#### 180", "#### 18"),
        ("#### 18\n#### 19", "#### 18"),
        ("#### 18\n#### eighteen", "#### 18"),  # only what follows the last marker counts
        ("18", "#### 18"),  # no marker
        ("", "#### 18"),
        ("####", "#### 18"),
        ("#### eighteen", "#### 18"),
        (r"#### 2\sqrt{3}", "#### 2"),
    ],
)
def test_other_answers_are_wrong(response: str, answer: str) -> None:
    assert score(MathReward("####"), response, answer) == 0.0


def test_without_a_marker_the_whole_text_is_read() -> None:
    assert score(MathReward(), r"So the answer is \boxed{\frac{1}{2}}.", r"\frac{1}{2}") == 1.0
    assert score(MathReward(), "It is 17, no, 18", "18") == 1.0


def test_many_are_judged_in_order() -> None:
    answers = ["#### 18", "#### 2", "#### 3"]
    assert MathReward("####")([PROMPT] * 3, ["#### 18", "2", "#### 3"], answers) == [1.0, 0.0, 1.0]


def test_every_answer_of_gsm8k_is_readable_and_equals_itself(assets: Path) -> None:
    index = JsonlIndex(assets / "data/gsm8k/test.jsonl")
    answers = [row["answer"] for row in index.rows(range(len(index)))]
    assert len(answers) == 1319
    assert MathReward("####")([PROMPT] * 1319, answers, answers) == [1.0] * 1319


def test_an_unreadable_right_answer_names_its_row() -> None:
    with pytest.raises(DataError, match=r"rows\.jsonl:7: math-verify cannot read the right answer '#### many'"):
        score(MathReward("####"), "no marker at all", "#### many")


def test_an_answer_that_takes_for_ever_is_no_verdict_and_the_next_one_is_judged() -> None:
    endless, begun = "#### $100000000!$", time.monotonic()
    assert score(MathReward("####"), endless) is None
    assert time.monotonic() - begun < 60  # by itself it would take hours; the limit is 3 s of CPU time
    begun = time.monotonic()
    assert score(MathReward("####"), endless) is None
    assert time.monotonic() - begun < 1  # remembered
    assert score(MathReward("####"), "#### 18") == 1.0


def test_a_very_long_response_is_read_at_its_end() -> None:
    # math-verify's search for sums takes time quadratic in the length of one: all of this would be minutes.
    assert score(MathReward(), "1+" * 50_000 + "x, so it is 18") == 1.0


def test_works_in_any_thread() -> None:
    found: list[float | None] = []
    threads = [
        threading.Thread(
            target=lambda i=i: found.append(score(MathReward("####"), f"#### {100 + i}", f"#### {100 + i}"))
        )
        for i in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [1.0] * 8


def test_a_verifier_that_was_killed_between_questions_is_started_again() -> None:
    child = Child(math_verifier.__name__)
    assert math_verifier.asked(child, "5", "5") is True
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    while child.pid is not None:
        time.sleep(0.01)
    assert math_verifier.asked(child, "5", "6") is False
    child.close()


def test_repeated_judgements_cost_nothing() -> None:
    reward, responses = MathReward("####"), [f"#### {i % 50}" for i in range(2000)]
    reward([PROMPT] * 2000, responses, responses)
    begun = time.monotonic()
    assert reward([PROMPT] * 2000, responses, responses) == [1.0] * 2000
    assert time.monotonic() - begun < 0.5


FUNCTIONS = """
from __future__ import annotations
from dataclasses import dataclass

@dataclass
class Weights:
    level: float = 0.5

def graded(prompt, response, answer, row):
    return len(response) + Weights().level * row["level"] if answer == "18" else None

def right(prompt, response, answer, row):
    return response == answer

def broken(prompt, response, answer, row):
    return row["absent"]

def word(prompt, response, answer, row):
    return "good"

def endless(prompt, response, answer, row):
    return float("nan")

def narrow(prompt, response):
    return 1.0

import sys

asked = 0

def counting(prompt, response, answer, row):
    global asked
    asked += 1
    print("asked", asked)
    print("said", asked, file=sys.stderr)
    return asked

def hanging(prompt, response, answer, row):
    while response == "long":
        pass
    return 1.0

def crashing(prompt, response, answer, row):
    import os
    os.kill(os.getpid(), 9)

constant = 3
"""


@pytest.fixture
def functions(in_tmp: Path) -> Path:
    (in_tmp / "mine.py").write_text(FUNCTIONS)
    return in_tmp


def mine(name: str, timeout_s: float = 60.0) -> PythonReward:
    return PythonReward(f"mine.py:{name}", timeout_s)


@pytest.mark.usefixtures("functions")
def test_a_function_in_a_file_is_called_with_everything() -> None:
    reward = build(RewardSection(type="python", function="mine.py:graded"))
    assert reward([PROMPT, PROMPT], ["four", "four"], ["18", "19"]) == [5.5, None]


@pytest.mark.usefixtures("functions")
def test_right_and_wrong_are_numbers_too() -> None:
    assert score(mine("right"), "18", "18") == 1.0


def test_the_same_file_name_in_another_folder_is_another_file(
    functions: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert score(mine("graded"), "four", "18") == 5.5
    other = tmp_path_factory.mktemp("other")
    (other / "mine.py").write_text("def graded(*given): return 0.25")
    monkeypatch.chdir(other)
    assert score(mine("graded"), "four", "18") == 0.25


def test_a_function_of_a_module_is_found(functions: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (functions / "reward_package").mkdir()
    (functions / "reward_package" / "inner.py").write_text("def one(prompt, response, answer, row): return 1")
    monkeypatch.syspath_prepend(functions)
    assert score(build(RewardSection(type="python", function="reward_package.inner:one")), "") == 1.0


@pytest.mark.usefixtures("functions")
@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            "mine.py:broken",
            r"rows\.jsonl:7: reward\.function mine\.py:broken raised KeyError: 'absent' \(mine\.py, line 16\)",
        ),
        ("mine.py:word", r"rows\.jsonl:7: .* returned 'good'; return a finite number, or None"),
        ("mine.py:endless", r"rows\.jsonl:7: .* returned nan"),
    ],
)
def test_a_function_that_fails_names_the_row(function: str, message: str) -> None:
    reward = build(RewardSection(type="python", function=function))
    with pytest.raises(RewardError, match=message):
        score(reward, "x")


@pytest.mark.usefixtures("functions")
@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("mine.py", "not of the form"),
        ("absent.py:f", r"absent\.py cannot be imported \(FileNotFoundError"),
        ("no_such_package.inner:f", r"cannot be imported \(ModuleNotFoundError"),
        ("mine.py:absent", r"no function absent in mine\.py; it has .*graded, right"),
        ("mine.py:constant", "no function constant"),
        ("mine.py:narrow", r"takes \(prompt, response\), but is called with \(prompt, response, answer, row\)"),
    ],
)
def test_a_function_that_is_not_there_is_an_error_at_once(function: str, message: str) -> None:
    with pytest.raises(RewardError, match=message):
        build(RewardSection(type="python", function=function))


@pytest.mark.usefixtures("functions")
def test_what_a_function_keeps_stays_and_what_it_prints_is_seen(capsys: pytest.CaptureFixture[str]) -> None:
    reward = mine("counting")
    assert [score(reward, "x"), *reward([PROMPT] * 2, ["y", "z"], ["", ""])] == [1.0, 2.0, 3.0]
    assert capsys.readouterr().out == "asked 1\nsaid 1\nasked 2\nsaid 2\nasked 3\nsaid 3\n"


@pytest.mark.usefixtures("functions")
def test_a_function_that_hangs_is_ended_and_the_row_named() -> None:
    reward = mine("hanging", timeout_s=0.3)
    with pytest.raises(RewardError, match=r"rows\.jsonl:7: .* did not answer within 0\.3 s and was ended; .*timeout_s"):
        reward([PROMPT] * 2, ["short", "long"], ["", ""])
    assert reward._child.pid is None
    assert score(reward, "short") == 1.0


@pytest.mark.usefixtures("functions")
def test_a_deadline_is_of_one_response_and_not_of_a_batch() -> None:
    Path("slow.py").write_text("import time\ndef f(*given):\n    time.sleep(0.1)\n    return 1.0\n")
    assert PythonReward("slow.py:f", 0.5)([PROMPT] * 8, [""] * 8, [""] * 8) == [1.0] * 8


@pytest.mark.usefixtures("functions")
def test_a_function_that_ends_its_process_names_the_row() -> None:
    with pytest.raises(RewardError, match=r"rows\.jsonl:7: .* ended its process \(killed by SIGKILL\)"):
        score(mine("crashing"), "x")


@pytest.mark.usefixtures("functions")
def test_no_process_outlives_its_reward() -> None:
    reward = mine("right")
    pid = reward._child.pid
    assert pid is not None
    del reward
    gc.collect()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.usefixtures("functions")
def test_rewards_cross_a_process_border() -> None:
    for reward in (MathReward("####"), mine("graded")):
        again = pickle.loads(pickle.dumps(reward))
        assert again == reward
        assert score(again, "#### 18", "18") is not None


def test_the_recipe_chooses() -> None:
    assert build(RewardSection(type="math", marker="####")) == MathReward("####")
