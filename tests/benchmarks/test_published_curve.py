"""`make published-curve`, small: a random Qwen2, two steps, on the CPU; its runs, checks, and the file to send back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import published_curve
from benchmarks.curve_arms import LATE, Arm, Kit, arms_of
from benchmarks.curve_results import collect
from lockstep import exit_codes
from lockstep.models.load import build_causal_lm
from lockstep.models.tokenizer import words_tokenizer
from lockstep.report.log import read_metrics
from lockstep.tasks.arithmetic import distinct_problems

QWEN2 = {
    "model_type": "qwen2", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "max_position_embeddings": 128,
}  # fmt: skip
CHAT = (
    "{% for m in messages %}<{{ m.role }}> {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<reply>{% endif %}"
)
SMALL = (
    "learner.device=cpu", "learner.dtype=fp32", "learner.parallel.dp=1", "sampler=torch",
    "sampler.kv_cache_gib=null", "sampler.replicas=1", "data.max_prompt_tokens=100", "sampling.max_tokens=12",
    "validation_sampling.max_tokens=12", "ppo.num_prompts_per_step=8", "ppo.global_batch_size=4",
    "ppo.overlong_filtering=false", "run.max_steps=2", "run.validate_every=1",
)  # fmt: skip
WINDOWS = (
    "acceptance=[{metric: train/reward, steps: [1, 2], min: 0.0}, {metric: agreement/token_mult_prob_error, "
    "steps: [1, 2], statistic: median, max: 1.001}]"
)


@pytest.fixture
def places(in_tmp: Path) -> tuple[Path, Path]:
    """Folders of a model with a chat template, and of rows in GSM8K's form."""
    rows = [problem.row() for problem in distinct_problems(24, 0)]
    text = [
        *(text + "\n" for row in rows for text in row.values()),
        "<system> <user> <reply> Reason step by step, then",
    ]
    tokenizer = words_tokenizer(text)
    tokenizer.chat_template = CHAT
    model, data = in_tmp / "model", in_tmp / "gsm8k"
    build_causal_lm(QWEN2, tokenizer, 0).save_pretrained(model)
    tokenizer.save_pretrained(model)
    data.mkdir()
    for name, part in (("train.jsonl", rows[:16]), ("test.jsonl", rows[16:])):
        (data / name).write_text("".join(json.dumps(row) + "\n" for row in part))
    return model, data


def sent(out: Path) -> tuple[dict[str, Any], list[str], str]:
    """What is in the file to send back: `result.json`, the names of all, and the summary."""
    with tarfile.open(out / "published_curve.tar.gz") as archive:
        names = [name.removeprefix("published_curve/") for name in archive.getnames()]
        result, summary = (archive.extractfile(f"published_curve/{name}") for name in ("result.json", "summary.md"))
        assert result is not None
        assert summary is not None
        return json.loads(result.read()), names, summary.read().decode()


def states(out: Path) -> dict[str, str]:
    result, _, _ = sent(out)
    return {run["arm"]["backend"] + " late" * (not run["arm"]["shift"]): run["state"] for run in result["runs"]}


def kit_of(places: tuple[Path, Path], *options: str) -> Kit:
    model, data = places
    return Kit(model, data, Path("out").resolve(), (*SMALL, *options))


def command(places: Sequence[Path], *options: str) -> list[str]:
    return [*map(str, places), "--out", "out", "--seeds", "7", *options]


@pytest.mark.proof
@pytest.mark.needs("megatron")
@pytest.mark.usefixtures("megatron")
@pytest.mark.timeout(900)
def test_the_kit_runs_to_its_end_and_says_what_passed(places: tuple[Path, Path]) -> None:
    assert published_curve.main(command(places, *SMALL, WINDOWS)) == exit_codes.OK
    result, names, summary = sent(Path("out"))
    assert [run["state"] for run in result["runs"]] == 4 * ["finished and passed"]
    assert "4 of 4 runs finished." in summary
    assert "passed: mean of train/reward over steps 1 to 2, at least 0: " in summary
    assert {f"runs/{arm.name}/metrics.jsonl" for arm in arms_of([7])} < set(names)
    assert not [name for name in names if "safetensors" in name or "samples" in name]
    assert result["machine"]["packages"]["torch"]

    # Without the shift a critic learns something else, the same on both backends; the shift's own runs do not know it.
    kit = kit_of(places)
    right, late, megatron_right, megatron_late = (critic(kit.folder(arm)) for arm in arms_of([7]))
    assert (megatron_right, megatron_late) == (pytest.approx(right, rel=1e-4), pytest.approx(late, rel=1e-4))
    assert abs(late[0] / right[0] - 1) > 0.01
    assert [run["late"] > 0 for run in result["runs"]] == [False, True, False, True]

    # The checkpoints are gone, and the same command finds all done.
    assert not [arm for arm in arms_of([7]) if (kit.folder(arm) / "checkpoints").exists()]
    before = {file: file.read_bytes() for file in Path("out/logs").iterdir()}
    assert published_curve.main(command(places, *SMALL, WINDOWS)) == exit_codes.OK
    assert before == {file: file.read_bytes() for file in Path("out/logs").iterdir()}


def critic(folder: Path) -> list[float]:
    return [row["critic/loss"] for row in read_metrics(folder) if "critic/loss" in row]


@pytest.mark.proof
@pytest.mark.timeout(600)
def test_what_is_unfinished_is_resumed_and_what_fails_is_told(places: tuple[Path, Path]) -> None:
    arms = [Arm("dtensor", True, 7), Arm("dtensor", False, 7)]
    (result,) = published_curve.run_arms(kit_of(places, "run.max_time_s=0.01"), arms[:1])
    assert result.state == "unfinished after 1 step, exit code 75"
    (result, other) = published_curve.run_arms(kit_of(places, "run.max_steps=x"), arms)
    assert result.state == "unfinished after 1 step, exit code 2"
    assert other.state == "unfinished after 0 steps, exit code 2"
    (result,) = published_curve.run_arms(kit_of(places), arms[:1])
    assert [attempt.exit_code for attempt in result.attempts] == [75, 2, 0]
    assert states(Path("out")) == {"dtensor": "finished and failed"}
    assert [row["step"] for row in read_metrics(kit_of(places).folder(arms[0])) if "critic/loss" in row] == [1, 2]
    _, names, summary = sent(Path("out"))
    assert "runs/dtensor-shift-seed7/printed.txt" in names
    assert "steps 91 to 100, at least 0.86: not reached, the run has logged 2 steps" in summary


def test_a_run_whose_fault_was_not_there_is_void(places: tuple[Path, Path]) -> None:
    kit, arm = kit_of(places), Arm("dtensor", False, 7)
    folder = kit.folder(arm)
    (folder / "final").mkdir(parents=True)
    (folder / "recipe.yaml").write_text("base: ppo_arithmetic\nacceptance: [{metric: x, steps: [1, 1], min: 0}]\n")
    (folder / "metrics.jsonl").write_text('{"step": 1, "x": 1.0}\n')
    kit.log(arm).parent.mkdir()
    kit.log(arm).write_text("nothing\n")
    assert collect(kit, arm).state == "finished, but void: the right shift was not as the name says"
    kit.log(arm).write_text(f"{LATE} in process 9\n")
    assert collect(kit, arm).state == "finished and passed"


@pytest.mark.proof
@pytest.mark.timeout(600)
def test_a_signal_saves_the_run_and_ends_the_kit(places: tuple[Path, Path]) -> None:
    words = command(places, *SMALL, "run.max_steps=100000", "run.save_every=1000")
    child = subprocess.Popen([sys.executable, "-m", "benchmarks.published_curve", *words], env=in_repository())
    metrics = Path("out/runs/dtensor-shift-seed7/metrics.jsonl")
    deadline = time.monotonic() + 300
    while not (metrics.exists() and len(metrics.read_bytes().splitlines()) > 3) and time.monotonic() < deadline:
        time.sleep(0.1)
    child.terminate()
    assert child.wait(120) == exit_codes.CRASH
    told = states(Path("out"))
    assert told.pop("dtensor").endswith(f"exit code {exit_codes.TERMINATED}")
    assert set(told.values()) == {"not started"}
    assert list(Path("out/runs/dtensor-shift-seed7/checkpoints").iterdir())


def in_repository() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(published_curve.__file__).parents[1])}


def test_what_cannot_start_is_told_before_the_first_run(
    places: tuple[Path, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    assert published_curve.main(command(places, "data.max_prompt_tokens=100")) == exit_codes.INPUT
    told = capfd.readouterr().err
    assert "ppo_qwen2.5_1.5b_gsm8k_1n8g_dtensor cannot start" in told
    assert "learner.device is cuda, but torch sees no GPU here" in told
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["", "gsm8k"], "give MODEL, as in make published-curve"),
        (["elsewhere", "gsm8k"], "MODEL is 'elsewhere', which holds no config.json"),
        (["model", "elsewhere"], "DATA is 'elsewhere', which has no train.jsonl and test.jsonl"),
        (["model", "gsm8k", "seed=1"], "'seed=1' is no key=value, or one of those that the kit sets itself"),
        (["model", "gsm8k", "sampler"], "'sampler' is no key=value"),
    ],
)
def test_wrong_words_are_refused(
    places: tuple[Path, Path], words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        published_curve.main(words)
    assert sentence in capsys.readouterr().err


def make(*words: str) -> subprocess.CompletedProcess[str]:
    """`make published-curve` with an environment whose Python only notes in `acted` that it was called."""
    stub = Path("env/bin/python").absolute()
    stub.parent.mkdir(parents=True)
    stub.write_text(f"#!/bin/sh\necho called >> {stub.parent / 'acted'}\n")
    stub.chmod(0o755)
    command = ["make", "published-curve", f"VENV={stub.parents[1]}", f"PYTHON={sys.executable}", *words]
    return subprocess.run(command, cwd=published_curve.ROOT, capture_output=True, text=True, check=False)


@pytest.mark.usefixtures("in_tmp")
def test_make_that_only_prints_does_nothing() -> None:
    done = make("-n", "MODEL=x", "DATA=y")
    assert done.returncode == 0, done.stderr
    assert "-e '.[vllm,megatron]'" in done.stdout
    assert 'benchmarks.published_curve "x" "y"' in done.stdout
    assert [path.name for path in Path("env").rglob("*")] == ["bin", "python"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "give MODEL and DATA, as in make published-curve MODEL=FOLDER DATA=FOLDER"),
        (["MODEL=x"], "give DATA, as in make published-curve MODEL=FOLDER DATA=FOLDER"),
        (["-j2", "MODEL=x", "DATA=y"], "MODEL is 'x', which holds no config.json; name the folder of the model"),
    ],
)
@pytest.mark.usefixtures("in_tmp")
def test_make_names_a_missing_folder_before_it_installs(words: list[str], sentence: str) -> None:
    done = make(*words)
    assert done.returncode == 2
    assert sentence in done.stderr.splitlines()
    assert [path.name for path in Path("env").rglob("*")] == ["bin", "python"]


@pytest.mark.full
def test_the_fault_is_refused_where_it_would_not_arrive() -> None:
    command = [sys.executable, "-m", "benchmarks.unshifted", "train", "ppo_arithmetic", "cluster=ray"]
    done = subprocess.run(command, env=in_repository(), capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "actors of Ray would shift values" in done.stderr
