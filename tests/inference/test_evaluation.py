"""`lockstep eval` on a real model and real questions, on runs, and as the trainer's validation."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from row_files import read_rows, results, write_rows
from training import train_rows

from lockstep.cli import main
from lockstep.inference.eval_recipe import eval_recipe
from lockstep.inference.evaluate import evaluate
from lockstep.models import digests
from lockstep.objectives.estimates import share
from lockstep.report.evaluation import results_table
from lockstep.report.log import read_metrics
from lockstep.report.summary import summarize_run
from lockstep.run.stop import StoppedRun
from lockstep.samplers.torch.sampler import TorchSampler

Run = Callable[..., list[dict[str, Any]]]
SMALL = [
    "data.max_prompt_tokens=400", "data.max_validation_samples=6", "greedy.max_tokens=8", "sampling.max_tokens=8",
    "sampling.num_samples=4", "learner.device=cpu", "learner.dtype=fp32", "run.save_every=4",
]  # fmt: skip
ANSWERS = """
def early_t(prompt, response, answer, row):
    return None if "e" not in response else float("t" in response)
"""


def samples(folder: Path) -> list[dict[str, Any]]:
    return read_rows(folder / "samples.jsonl")


def figures(folder: Path, setting: str) -> dict[str, float]:
    return {
        name: figure["value"]
        for name, figure in results(folder)["settings"][setting]["figures"].items()
    }


@pytest.fixture
def ask(assets: Path, in_tmp: Path) -> Callable[..., Path]:
    """Evaluates the real model on the first questions of GSM8K, a few tokens each."""
    (in_tmp / "rewards.py").write_text(ANSWERS)

    def go(folder: str | None, *overrides: str) -> Path:
        model, data = f"{assets}/models/stories260K/hf", f"{assets}/data/gsm8k/test.jsonl"
        return evaluate(eval_recipe(model, data, [*SMALL, *overrides], folder=folder))

    return go


JUDGED = "reward={type: python, function: 'rewards.py:early_t', marker: null, pass_score: 1.0}"
UNRATED = "reward={type: python, function: 'rewards.py:early_t', marker: null}"


def test_evaluation_saves_every_response_and_pass_at_1_matches_scores(
    ask: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ask("asked", JUDGED)
    rows, found = samples(folder), results(folder)
    assert [row["setting"] for row in rows] == ["greedy"] * 6 + ["sampled"] * 24
    assert [(row["question"], row["draw"]) for row in rows[6:]] == [
        (q, d) for q in range(6) for d in range(4)
    ]
    judged = [row["score"] for row in rows[6:] if row["score"] is not None]
    sampled = found["settings"]["sampled"]
    assert sampled["responses"]["no_verdict"] == 24 - len(judged)
    by_question = [
        [row["score"] for row in rows[6:] if row["question"] == q and row["score"] is not None]
        for q in range(6)
    ]
    assert 0 < len(judged) < 24
    assert len(set(judged)) == 2
    means = [sum(own) / len(own) for own in by_question if own]
    assert sampled["figures"]["pass@1"]["value"] == pytest.approx(sum(means) / len(means))
    assert sampled["figures"]["pass@1"]["questions"] == len(means)
    assert sampled["responses"]["response_length"] == sum(row["tokens"] for row in rows[6:]) / 24
    shown = capsys.readouterr().out
    assert "4 samples at temperature 1" in shown
    assert f"{sampled['figures']['pass@1']['value']:.3f} [" in shown


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_evaluation_files_do_not_depend_on_batch_size_or_save_interval(
    ask: Callable[..., Path], dtype: str
) -> None:
    asked = (f"learner.dtype={dtype}", "sampling.max_tokens=24")
    plain, other = (
        ask("plain", *asked),
        ask("other", *asked, "sampler.max_batch_size=3", "run.save_every=1"),
    )
    assert (plain / "samples.jsonl").read_bytes() == (other / "samples.jsonl").read_bytes()
    assert results(plain) == results(other)


def test_interrupted_evaluation_resumes_with_the_same_samples(
    ask: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, generate, asked = ask("plain"), TorchSampler.generate, []

    def interrupted(self: TorchSampler, *arguments: Any) -> Any:
        asked.append(arguments)
        if len(asked) == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return generate(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(TorchSampler, "generate", interrupted)
        with pytest.raises(
            StoppedRun, match="stopped after step 1: Ctrl-C was received"
        ) as stopped:
            ask("stopped")
    assert (stopped.value.code, len(asked)) == (130, 1)
    assert samples(ask("stopped")) == samples(plain)


def test_finished_evaluation_is_shown_again_without_sampling(
    ask: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ask(None)
    first = capsys.readouterr().out
    (folder / "samples.jsonl").unlink()
    assert ask(None) == folder
    assert capsys.readouterr().out == first
    assert not (folder / "samples.jsonl").exists()
    assert ask(None, "seed=1") != folder
    assert folder.parent.name == "evals"


def test_changed_weights_or_rows_start_a_new_evaluation(
    in_tmp: Path, assets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "_SMALL_BYTES", 1 << 18)  # the weights, a megabyte, are then large
    shutil.copytree(assets / "models/stories260K/hf", "model", copy_function=shutil.copyfile)
    rows, weights = in_tmp / "one.jsonl", in_tmp / "model/model.safetensors"
    rows.write_text('{"question": "Once upon a time", "answer": "#### 1"}\n')

    def go(folder: str | None) -> Path:
        return evaluate(eval_recipe("model", "one.jsonl", [*SMALL, "sampling=null"], folder=folder))

    first = go(None)
    assert go("named") == Path("named")
    content = bytearray(weights.read_bytes())
    content[-2] ^= 1  # one bit of the last weight
    weights.unlink()
    weights.write_bytes(content)
    second = go(None)
    with pytest.raises(
        ValueError, match=r"named holds another evaluation:\n  model.model.safetensors was"
    ):
        go("named")
    rows.write_text('{"question": "Once upon a time", "answer": "#### 2"}\n')
    assert len({first, second, go(None)}) == 3


@pytest.mark.parametrize(
    ("option", "setting"),
    [
        ("greedy.max_tokens=3", "greedy"),
        ("sampling.max_tokens=3", "sampled"),
        ("sampling.temperature=0.3", "sampled"),
        ("seed=5", "sampled"),
        ("data.prompt='{question} So'", "greedy"),
    ],
)
def test_each_evaluation_option_changes_only_its_own_setting(
    ask: Callable[..., Path], option: str, setting: str
) -> None:
    plain, changed = samples(ask("plain")), samples(ask("changed", option))
    for name in ("greedy", "sampled"):
        same = [row["response"] for row in plain if row["setting"] == name] == [
            row["response"] for row in changed if row["setting"] == name
        ]
        assert same == (name != setting and not option.startswith("data."))


def test_larger_num_samples_keeps_the_earlier_samples(ask: Callable[..., Path]) -> None:
    few, many = (
        samples(ask("few", "greedy=null")),
        samples(ask("many", "greedy=null", "sampling.num_samples=6")),
    )
    assert [row for row in many if row["draw"] < 4] == few


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["MODEL", "DATA", "sampling.temperature=0", "sampling.num_samples=1"],
            "use the section greedy",
        ),
        (
            ["MODEL", "DATA", "sampling.k=[32]"],
            "k is 32, but each question has only num_samples=16 responses",
        ),
        (
            ["MODEL", "DATA", *SMALL, "sampling.k=[2]", UNRATED],
            "sampling.k requires a passing score",
        ),
        (["MODEL", "DATA", "greedy=null", "sampling=null"], "set at least one"),
        (["MODEL", "DATA", "reward.pass_score=1"], "pass_score requires type: python"),
    ],
)
def test_eval_rejects_invalid_sampling_and_reward_options(
    assets: Path,
    in_tmp: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    sentence: str,
) -> None:
    real = {"MODEL": f"{assets}/models/stories260K/hf", "DATA": f"{assets}/data/gsm8k/test.jsonl"}
    assert main(["eval", *(real.get(word, word) for word in arguments)]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert "Traceback" not in error
    assert not Path("evals").exists()


def test_evaluation_of_run_uses_its_validation_sampling_and_matches_its_reward(
    run: Run, in_tmp: Path
) -> None:
    ways = [
        "num_samples=3",
        "temperature=0.8",
        "stop=['3', '7']",
        "repetition_penalty=1.1",
        "min_p=0.01",
    ]
    rows = run(*[f"validation_sampling.{way}" for way in ways], "seed=3")
    loaded = eval_recipe("run", "run/data/validation.jsonl", ["sampling.num_samples=3"])
    folder = evaluate(loaded)
    assert (
        figures(folder, "sampled")["reward"]
        == [row for row in rows if "validation/reward" in row][-1]["validation/reward"]
    )
    assert loaded.dump_options()["sampling"]["temperature"] == 0.8
    assert {name: value for name, value in loaded.dump_options()["greedy"].items() if value} == {
        "max_tokens": 12,
        "stop": ["3", "7"],
        "repetition_penalty": 1.1,
    }
    ended = [row["response"] for row in samples(folder) if {"3", "7"} & set(row["response"])]
    assert ended, "some response has a stop string"
    assert all(not {"3", "7"} & set(response[:-2]) for response in ended), (
        "and none goes past a token, of 2 digits at most"
    )
    shape = 'repetition_penalty 1.1, stop ["3", "7"]'
    heading = results_table(folder).splitlines()[2]
    assert f"greedy, {shape}" in heading
    assert f"3 samples at temperature 0.8, min_p 0.01, {shape}" in heading
    assert {row["prompt"][-1] for row in samples(folder)} == {"\n"}
    assert folder.name.startswith("run-validation-")


def test_validation_metrics_depend_on_validation_sampling_not_training_sampling(run: Run) -> None:
    """Training's are changed and validation stays; validation's are changed and it does not."""

    def first(folder: str, *overrides: str) -> dict[str, float]:
        many = [
            "validation_sampling={temperature: 1.0, num_samples: 4}",
            "reward.pass_score=0.1",
            "run.max_steps=1",
        ]
        return run(f"run.folder={folder}", *many, *overrides)[0]

    plain = first("plain")
    assert {"validation/reward", "validation/pass@1", "validation/pass@4"} <= plain.keys()
    assert "validation/maj@4" not in plain
    assert plain["validation/pass@1"] <= plain["validation/pass@4"]
    assert (
        first(
            "training",
            "sampling={temperature: 0.2, top_k: 3, max_tokens: 5}",
            "ppo.num_generations=4",
        )
        == plain
    )
    for number, option in enumerate(
        ("temperature=0.2", "top_p=0.3", "top_k=2", "max_tokens=5", "num_samples=2")
    ):
        assert first(f"own-{number}", f"validation_sampling.{option}") != plain, option
    assert first("fewer", "data.max_validation_samples=2") != plain


def test_validation_accuracy_is_shown_with_confidence_interval(
    run: Run, in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = run("reward={type: math, function: null}", "run.validate_every=1", "run.max_steps=2")
    told, shown = capsys.readouterr().err, [row for row in rows if "validation/accuracy" in row]
    assert [row["step"] for row in shown] == [0, 1, 2]
    for row in shown:
        right = round(8 * row["validation/accuracy"])
        expected = share([1.0] * right + [0.0] * (8 - right))
        low, high = row["validation/accuracy_low"], row["validation/accuracy_high"]
        assert (low, high) == (expected.low, expected.high)
        assert (
            f"after step {row['step']}: held-out accuracy {expected.value:.3f} [{low:.3f}, "
            f"{high:.3f}]" in told
        )
    last = shown[-1]
    ends = f"[{last['validation/accuracy_low']:.3f}, {last['validation/accuracy_high']:.3f}]"
    assert f"→ {last['validation/accuracy']:.3f} {ends}" in summarize_run(Path("run"))
    assert "|   best | " in Path("run/final/README.md").read_text()


SFT = {
    "algorithm": "sft",
    "model": {
        "scratch": {
            "config": {
                "model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
                "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 96,
            }
        }
    },
    "learner": {"device": "cpu"},
    "data": {
        "task": {"name": "arithmetic", "train_questions": 64, "validation_questions": 8, "demonstrations": 64},
        "prompt": "{question}\n", "max_prompt_tokens": 64,
    },
    "sft": {"global_batch_size": 16, "max_tokens": 96},
    "optimizer": {"lr": 1e-2},
    "run": {"max_steps": 3, "validate_every": 2, "folder": "sft"},
}  # fmt: skip


def tuned(*overrides: str) -> list[dict[str, float]]:
    Path("sft.yaml").write_text(yaml.safe_dump(SFT))
    rows = train_rows("sft.yaml", *overrides)
    return [row for row in rows if "validation/loss" in row]


def test_sft_validates_by_held_out_loss(in_tmp: Path) -> None:
    rows = tuned()
    assert [row["step"] for row in rows] == [0, 2, 3]
    assert rows[-1]["validation/loss"] < rows[0]["validation/loss"]
    assert all(
        row["validation/perplexity"] == pytest.approx(2.718281828 ** row["validation/loss"])
        for row in rows
    )
    assert tuned("run.folder=few", "data.max_validation_samples=2")[0] != rows[0]
    assert [row["step"] for row in tuned("run.folder=rare", "run.validate_every=0")] == [0, 3]
    assert "held-out loss" in summarize_run(Path("sft"))


def test_sft_validation_loss_equals_training_loss_on_the_same_rows(in_tmp: Path) -> None:
    """One step on the held-out rows, all in one batch, reports what validation found before it."""
    tuned()
    rows = (
        "data={train: sft/data/validation.jsonl, validation: sft/data/validation.jsonl, task: null}"
    )
    whole = [
        rows,
        "run.folder=whole",
        "sft.global_batch_size=8",
        "run.max_steps=1",
        "learner.micro_batch_tokens=100",
    ]
    held_out = tuned(*whole)[0]
    trained = next(row for row in read_metrics(Path("whole")) if "policy/loss" in row)
    assert held_out["validation/loss"] == pytest.approx(trained["policy/loss"], rel=1e-5)


CHAT = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def test_sft_on_packed_conversations_lowers_held_out_loss(assets: Path, in_tmp: Path) -> None:
    """A real model with a chat template; several conversations are packed into each micro-batch."""
    shutil.copytree(assets / "models/stories260K/hf", "model")
    Path("model/chat_template.jinja").write_text(CHAT)
    ask = {"role": "user", "content": "Tell me of Lily."}
    talks = [[ask, {"role": "assistant", "content": f"Lily saw {n} cats."}] for n in range(24)]
    write_rows("talks.jsonl", ({"talk": talk} for talk in talks))
    said = [
        "model={path: model, scratch: null}",
        "data={train: talks.jsonl, validation: talks.jsonl, task: null}",
    ]
    options = [
        *said,
        "data.messages=talk",
        "optimizer.lr=1e-3",
        "sft.global_batch_size=8",
        "run.max_steps=12",
    ]
    rows = tuned(*options, "learner.micro_batch_tokens=200")
    assert rows[-1]["validation/loss"] < 0.5 * rows[0]["validation/loss"]
    alone = tuned(*options, "learner.micro_batch_tokens=1", "run.folder=alone")
    assert alone[-1]["validation/loss"] == pytest.approx(rows[-1]["validation/loss"], rel=1e-3)
