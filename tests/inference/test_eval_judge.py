"""`lockstep eval` of a judge: a real model, which judges nothing, and a server that judges as a
test wants.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from judge_server import JudgeServer, Said, serve_judge
from row_files import read_rows, results, write_rows

from lockstep.cli import main
from lockstep.inference.eval_recipe import eval_recipe
from lockstep.inference.evaluate_judge import evaluate_judge
from lockstep.run.stop import StoppedRun
from lockstep.samplers.openai.client import ServerError
from lockstep.system.whole_files import append_lines

KEY_NAME, KEY = "LOCKSTEP_TEST_KEY", "sesame-77d0"
ASKED = [
    "judge.template='P {prompt} R {response}'", ("pairs.template='P {prompt} A {response_a} B "
                                                "{response_b}'"),
    "judge.sampling.max_tokens=16", "learner.device=cpu", "learner.dtype=fp32",
]  # fmt: skip
ROWS = [
    {"prompt": "p0", "responses": ["worth 5 long long", "worth 1", "worth 3 x"], "ranks": [0, 2, 1]},
    {"prompt": "p1", "responses": ["worth 2", "worth 4"], "ranks": [0, 1]},
    {"prompt": "p2", "responses": ["worth ?", "worth 0"], "ranks": [0, 1]},
]  # fmt: skip


def honest(question: str) -> Said:
    """Says what each response says of itself; the better of two, and the first where that is not
    known.
    """
    worth = re.findall(r"worth ([0-9?])", question)
    if len(worth) == 1:
        return 200, f"I see.\n**Score:** {worth[0]}/5"
    return 200, "Winner: [Response A]" if worth[0] >= worth[1] else "Winner: Response B."


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[JudgeServer]:
    monkeypatch.setenv(KEY_NAME, KEY)
    with serve_judge(honest) as serving:
        yield serving


@pytest.fixture
def served(server: JudgeServer, in_tmp: Path) -> Callable[..., Path]:
    """Lets the server judge the rows."""
    write_rows(in_tmp / "rows.jsonl", ROWS)
    asked = [
        "judge.sampler.openai.model=m/7b",
        f"judge.sampler.openai.api_key_env={KEY_NAME}",
        *ASKED,
    ]
    asked += ["judge.sampler.openai.max_retries=0"]

    def go(folder: str | None, *overrides: str) -> Path:
        return evaluate_judge(
            eval_recipe(server.url, "rows.jsonl", [*asked, *overrides], "eval_judge", folder)
        )

    return go


def figures(folder: Path, way: str) -> dict[str, float]:
    return {
        name: figure["value"] for name, figure in results(folder)["ways"][way]["figures"].items()
    }


def lines(folder: Path) -> list[dict[str, Any]]:
    return read_rows(folder / "judgments.jsonl")


def test_judge_evaluation_computes_expected_metrics_from_known_scores(
    served: Callable[..., Path], server: JudgeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = served("out")
    rows, found = lines(folder), results(folder)
    assert [row["scores"] for row in rows] == [[5.0, 1.0, 3.0], [2.0, 4.0], [None, 0.0]]
    assert [len(own) for own in rows[0]["judgments"]] == [3, 3, 3]
    assert rows[2]["judgments"][0][0] == {
        "verdict": None, "cause": "not_a_number", "reply": "I see.\n**Score:** ?/5", "shortened": False,
    }  # fmt: skip
    assert [(pair["first"], pair["second"], pair["said"]["verdict"]) for pair in rows[1]["pairs"]] == [
        (0, 1, 1.0), (1, 0, 1.0),
    ]  # fmt: skip
    scores = figures(folder, "scores")
    assert (scores["pairwise_accuracy"], scores["exact_match"], scores["ties"]) == (0.5, 0.5, 0.0)
    assert (scores["spearman"], scores["kendall_tau"], scores["top_is_best"]) == (0.0, 0.0, 1.0)
    assert found["ways"]["scores"]["judgments"] == {
        "judgments": 21, "no_verdict": 3, "shortened": 0, "not_a_number": 3,
    }  # fmt: skip
    assert found["ways"]["scores"]["figures"]["pairwise_accuracy"]["questions"] == 2
    assert (found["unscored_responses"], found["responses"]) == (1, 7)
    pairs = figures(folder, "pairs")
    assert pairs["pairwise_accuracy"] == pytest.approx((1 + 0 + 1) / 3)
    assert (pairs["consistent"], pairs["first_preferred"]) == (1.0, 0.5)
    shown = capsys.readouterr().out
    assert "pairwise accuracy" in shown
    assert "3 of 21 (3 not a number)" in shown
    assert f"m/7b at {server.url} on rows.jsonl: 3 prompts, 7 responses, 0 rows skipped" in shown


def test_first_position_bias_of_judge_appears_in_pair_metrics(
    served: Callable[..., Path], server: JudgeServer
) -> None:
    server.judge = lambda question: (200, "Winner: A" if " A " in question else "Score: 3")
    folder = served("out")
    pairs, scores = figures(folder, "pairs"), figures(folder, "scores")
    assert (pairs["first_preferred"], pairs["consistent"], pairs["pairwise_accuracy"]) == (
        1.0,
        0.0,
        0.5,
    )
    assert pairs["consistent_accuracy"] is None
    assert (scores["pairwise_accuracy"], scores["ties"], scores["kendall_tau"]) == (0.5, 1.0, 0.0)


def test_length_bias_of_judge_appears_in_score_metrics(
    served: Callable[..., Path], server: JudgeServer, in_tmp: Path
) -> None:
    rows = [
        {"prompt": "p", "responses": ["x" * 9, "x"], "ranks": [1, 0]},
        {"prompt": "p", "responses": ["x", "x" * 4], "ranks": [1, 0]},
    ]
    write_rows(in_tmp / "long.jsonl", rows)
    server.judge = lambda question: (200, f"Score: {min(5, question.count('x'))}")
    folder = served("out", "data.ranked=long.jsonl", "pairs=null")
    found = figures(folder, "scores")
    assert (
        found["longer_preferred"],
        found["longer_preferred_by_people"],
        found["length_bias"],
    ) == (1.0, 0.5, 0.5)
    assert list(results(folder)["ways"]) == ["scores"]


def test_judge_requests_carry_key_and_settings_and_escape_control_tokens(
    served: Callable[..., Path],
    server: JudgeServer,
    in_tmp: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    row = {"prompt": "<|im_end|> p", "responses": ["worth 1</s>", "worth 2"], "ranks": [1, 0]}
    (in_tmp / "odd.jsonl").write_text(json.dumps(row) + "\n")
    settings = [
        "judge.sampling.temperature=0.25",
        "judge.num_evals_to_average=2",
        "judge.system_prompt='Be strict.'",
    ]
    folder = served("out", "data.ranked=odd.jsonl", "pairs=null", *settings)
    assert set(server.keys) == {f"Bearer {KEY}"}
    messages = [body["messages"] for body in server.bodies]
    system = {"role": "system", "content": "Be strict."}
    asked = [
        {"role": "user", "content": f"P < |im_end|> p R {said}"}
        for said in ("worth 1< /s>", "worth 2")
    ]
    assert all(messages.count([system, question]) == 2 for question in asked)
    assert {
        (body["temperature"], body["max_completion_tokens"], body["model"])
        for body in server.bodies
    } == {(0.25, 16, "m/7b")}
    assert len({body["seed"] for body in server.bodies}) == len(server.bodies) == 4
    told = capsys.readouterr()
    written = "".join(path.read_text() for path in folder.iterdir() if path.is_file())
    assert KEY not in told.out + told.err + written


def test_unanswered_judge_questions_are_counted_and_dead_server_is_an_error(
    served: Callable[..., Path], server: JudgeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.judge = lambda question: (
        (500, "out of memory") if "worth 3" in question else honest(question)
    )
    folder = served("out")
    assert results(folder)["ways"]["scores"]["judgments"]["unreachable"] == 3
    assert lines(folder)[0]["scores"] == [5.0, 1.0, None]
    assert re.search(
        r"3 of 21 questions got no answer; last failure: .* returns 500 after 1 attempts",
        capsys.readouterr().err,
    )
    server.judge = lambda question: (500, "out of memory")
    with pytest.raises(ServerError, match=r"returns 500 after 1 attempts \(out of memory\)"):
        served("dead")
    with pytest.raises(ServerError, match=r"returns 500"):
        served("impatient", "judge.sampler.openai.max_concurrency=2")


def test_server_judge_with_local_tokenizer_drops_overlong_prompts(
    served: Callable[..., Path], assets: Path, in_tmp: Path
) -> None:
    model = chat_model(assets, in_tmp)
    folder = served(
        "out",
        f"judge.path={model}",
        "judge.max_prompt_tokens=14",
        "judge.overlong_judge_prompts=drop",
    )
    causes = [said["cause"] for row in lines(folder) for own in row["judgments"] for said in own]
    assert (causes.count("prompt_too_long"), causes.count(None)) == (6, 12)


def chat_model(assets: Path, folder: Path) -> Path:
    """The real model, with a chat template."""
    model = folder / "chat"
    shutil.copytree(assets / "models/stories260K/hf", model, copy_function=shutil.copyfile)
    template = "{% for message in messages %}{{ message.content }} {% endfor %}"
    (model / "chat_template.jinja").write_text(template)
    return model


@pytest.fixture
def ask(assets: Path, in_tmp: Path) -> Callable[..., Path]:
    """Lets the real model judge real conversations; it writes stories."""

    def go(folder: str | None, *overrides: str) -> Path:
        model, data = f"{assets}/models/stories260K/hf", f"{assets}/data/oasst/en_100_tree.jsonl"
        limits = [
            "judge.chat=false",
            "judge.max_prompt_tokens=400",
            "data.max_prompts=5",
            "run.save_every=2",
        ]
        return evaluate_judge(
            eval_recipe(model, data, [*ASKED, *limits, *overrides], "eval_judge_oasst", folder)
        )

    return go


def test_judge_without_verdicts_gets_no_metrics_and_a_warning(
    ask: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ask("out")
    found = results(folder)
    judgments = found["ways"]["scores"]["judgments"]
    assert judgments["no_verdict"] == judgments["judgments"] == 3 * found["responses"]
    assert {"unfinished", "prompt_too_long"} <= judgments.keys()
    assert found["ways"]["scores"]["figures"]["pairwise_accuracy"] == {
        "value": None,
        "low": None,
        "high": None,
        "questions": 0,
    }
    shown = capsys.readouterr().out
    assert "pairwise accuracy" not in shown
    assert (
        "scores: no judgment has a verdict, so these figures do not measure the judge; check"
        in shown
    )
    assert all(score is None for row in lines(folder) for score in row["scores"])
    assert any(said["reply"] for row in lines(folder) for own in row["judgments"] for said in own)


def test_judge_replies_do_not_depend_on_batch_size_and_stopped_evaluation_resumes(
    ask: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = ask("plain")

    def interrupted(log: Path, lines: bytes) -> None:
        append_lines(log, lines + b'{"torn')
        os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr("lockstep.inference.evaluate_judge.append_lines", interrupted)
        with pytest.raises(StoppedRun, match="stopped after 2 of 5 prompts: Ctrl-C was received"):
            ask("stopped")
    assert not (Path("stopped") / "results.json").exists()
    log = Path("stopped/judgments.jsonl")
    whole = log.read_text().removesuffix('{"torn')
    marked = whole.replace("unfinished", "not_whole")
    log.write_text(marked + '{"torn')
    ask("stopped")
    assert "resumes: responses to 2 prompts are already judged" in capsys.readouterr().err
    content = log.read_text()
    assert content.startswith(marked), "what was judged is not judged again"
    assert content.replace(marked, whole) == (plain / "judgments.jsonl").read_text()
    other = ask("other", "run.save_every=5", "judge.sampler={backend: torch, max_batch_size: 3}")
    assert lines(other) == lines(plain)
    assert results(other) == results(plain)


def test_each_judge_option_changes_the_replies(
    ask: Callable[..., Path], assets: Path, in_tmp: Path
) -> None:
    def replies(folder: str, *overrides: str) -> list[str | None]:
        rows = lines(ask(folder, "pairs=null", "judge.num_evals_to_average=1", *overrides))
        return [said["reply"] for row in rows for own in row["judgments"] for said in own]

    plain = replies("plain")
    changes = (
        "seed=1",
        "judge.sampling.temperature=0.1",
        "judge.sampling.max_tokens=9",
        "judge.max_prompt_tokens=200",
    )
    for number, option in enumerate((*changes, "judge.template='{prompt} {response}'")):
        assert replies(f"changed-{number}", option) != plain, option
    assert replies("model", f"judge.path={chat_model(assets, in_tmp)}", "judge.chat=true") != plain
    assert replies("drop", "judge.overlong_judge_prompts=drop").count(None) > plain.count(None)


def test_eval_command_runs_llmbar_recipe_and_rejects_wrong_data_or_long_prompts(
    assets: Path, in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, data = f"{assets}/models/stories260K/hf", f"{assets}/data/llmbar/Natural_dataset.json"
    few = ["judge.chat=false", "judge.max_prompt_tokens=400", "data.max_prompts=2", *ASKED]
    assert main(["eval", model, data, "--recipe", "eval_judge_llmbar", "--out", "here", *few]) == 0
    assert [row["ranks"] for row in lines(Path("here"))] == [[0.0, 1.0], [0.0, 1.0]]
    assert (
        main(
            [
                "eval",
                model,
                data,
                "--recipe",
                "eval_judge_llmbar",
                "judge.max_prompt_tokens=600",
                *ASKED,
            ]
        )
        == 2
    )
    assert (
        "judge.max_prompt_tokens + judge.sampling.max_tokens allows sequences of 616"
        in capsys.readouterr().err
    )
    assert main(["eval", model, data, "--recipe", "eval_judge", *few]) == 2
    assert "Natural_dataset.json, item 1: has no field 'responses'" in capsys.readouterr().err
