"""Runs that are killed, stopped, changed or damaged go on exactly, or say why they do not."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from killing import (
    assert_same_run,
    command,
    contents,
    copy_unfinished,
    killed_and_continued,
    started,
    steps_logged,
    wait_for,
)
from safetensors.torch import load_file
from tiers import full
from training import step_rows

from lockstep.cli import main
from lockstep.config.loading import load_recipe
from lockstep.core import exit_codes
from lockstep.report.log import read_metrics
from lockstep.run.checkpoint import checkpoints
from lockstep.run.folder.identity import (
    ChangedError,
    collect_identity,
    collect_inputs,
    list_differences,
)
from lockstep.run.stop import StoppedRun
from lockstep.run.train import train_recipe
from lockstep.system import disk

Run = Callable[..., list[dict[str, Any]]]

LASTING = ("run.save_every=1", "ppo.ppo_epochs=2", "ppo.kl.coef=0.1")


@pytest.mark.parametrize("kills", [1, pytest.param(20, marks=pytest.mark.proof)])
def test_run_killed_repeatedly_leaves_bit_identical_run_folder(
    run: Run, in_tmp: Path, kills: int
) -> None:
    overrides = (*LASTING, f"run.max_steps={kills + 4}")
    run("run.folder=whole", *overrides)
    hits = killed_and_continued("killed", kills, overrides, random.Random(kills))
    print(f"{kills} kills, {hits} of them while a checkpoint was written")
    left = assert_same_run("whole", "killed")
    assert f"checkpoints/step_{kills + 4:06d}/critic/optimizer.safetensors" in left
    rows = step_rows(read_metrics(Path("killed")))
    assert [row["step"] for row in rows] == list(range(1, kills + 5))
    found = json.loads(left["certificate.json"])
    assert found["tokens"] == sum(row["agreement/tokens"] for row in rows)
    assert (found["level"], found["mismatches"]) == ("E2", 0)


def test_resume_gives_same_metrics_and_drops_later_and_torn_log_lines(
    run: Run, in_tmp: Path
) -> None:
    """With schedules that end with the run: of 6 updates of the policy, and 8 of the critic."""
    options = ("run.max_steps=4", "run.save_every=2", "ppo.critic_warmup_steps=1")
    options += ("policy.schedule={decay: linear, warmup_steps: 0.3}",)
    options += ("critic.schedule={decay: linear, cooldown_steps: 0.5}",)
    whole = run("run.folder=whole", *options)
    assert [row["policy/lr"] for row in whole if "policy/lr" in row] == pytest.approx(
        [1e-3, 3e-3 / 4, 1e-3 / 4]
    )
    assert [row["critic/lr"] for row in whole if "critic/lr" in row] == pytest.approx(
        [1e-3, 1e-3, 3e-3 / 4, 1e-3 / 4]
    )
    copy_unfinished(4)
    with Path("stopped/metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "train/reward": 9.0}\n{"step": 5, "torn')
    assert run("run.folder=stopped", *options) == whole


@pytest.mark.parametrize(
    ("number", "send"),
    [
        (signal.SIGTERM, os.kill),
        full(signal.SIGINT, os.kill),
        pytest.param(signal.SIGHUP, os.kill, marks=pytest.mark.proof),
        full(signal.SIGTERM, os.killpg),
        full(signal.SIGINT, os.killpg),
    ],
)
def test_a_signal_ends_the_run_after_its_step_with_a_checkpoint(
    run: Run, in_tmp: Path, number: signal.Signals, send: Callable[[int, int], None]
) -> None:
    """A terminal sends Ctrl-C, and a job system SIGTERM, to the run's children as well."""
    overrides = ("run.max_steps=100", "run.save_every=100")
    with started("run", *overrides) as process:
        wait_for(lambda: steps_logged("run") >= 2, process)
        send(process.pid, number)
        assert process.wait(300) == 128 + number
        assert process.stderr is not None
        told = process.stderr.read()
    last = steps_logged("run")
    assert f"stopped after step {last}: " in told
    assert "Traceback" not in told
    assert [path.name for path in Path("run/checkpoints").iterdir()] == [f"step_{last:06d}"]


def test_run_that_no_longer_improves_ends_early_wherever_it_is_killed(
    run: Run, in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Greedy answers of a policy that stands still: validations 1 and 2 are as good as the first."""
    options = ("run.max_steps=9", "run.validate_every=1", "policy.lr=1e-12")
    options += ("run.best={metric: validation/reward, patience: 2}",)
    whole = run("run.folder=whole", *options)
    assert whole[-1]["step"] == 2
    assert (
        "finished after step 2: validation/reward has not improved in 2" in capsys.readouterr().err
    )
    copy_unfinished(2)
    assert run("run.folder=stopped", *options) == whole
    assert_same_run("whole", "stopped")
    shutil.rmtree("stopped/final")
    assert run("run.folder=stopped", *options) == whole


SLOW = """
import pathlib
import time

calls = []


def slow(prompt, response, answer, row):
    calls.append(row)
    if len(calls) > 8:  # not in the validation before the first step
        pathlib.Path("slow").touch()
        time.sleep(300)
    return 1.0
"""


@pytest.mark.full
def test_second_interrupt_stops_run_during_step(run: Run, in_tmp: Path) -> None:
    Path("slow.py").write_text(SLOW)
    with started("run", "reward.function=slow.py:slow", "run.max_steps=100") as process:
        assert process.stderr is not None
        shown = iter(process.stderr.readline, "")
        while not Path("slow").exists():
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        next(line for line in shown if "finishing this step" in line)
        process.send_signal(signal.SIGINT)
        assert process.wait(300) == 130
        assert "rerun the command to resume" in "".join(shown)


def test_max_time_stops_run_with_checkpoint_and_resume_gives_same_metrics(
    run: Run, in_tmp: Path
) -> None:
    whole = run("run.folder=whole", "run.max_steps=8")
    with pytest.raises(StoppedRun, match=r"the next step would exceed run\.max_time_s") as stopped:
        run("run.folder=short", "run.max_steps=8", "run.max_time_s=0.01", "run.save_every=100")
    assert stopped.value.code == 75
    assert [path.name for path in Path("short/checkpoints").iterdir()] == ["step_000001"]
    assert run("run.folder=short", "run.max_steps=8", "run.save_every=100") == whole


@pytest.fixture
def two_threads() -> Iterator[None]:
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


@pytest.mark.proof
@pytest.mark.usefixtures("two_threads")
def test_resumed_run_keeps_thread_count_of_first_session(
    run: Run, in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = run("run.folder=whole", "run.max_steps=4")
    with pytest.raises(StoppedRun):
        run("run.folder=short", "run.max_steps=4", "run.max_time_s=0.01")
    torch.set_num_threads(1)
    assert run("run.folder=short", "run.max_steps=4") == whole
    assert (
        "short keeps the 2 threads it started with; the default is now 1" in capsys.readouterr().out
    )
    assert json.loads(Path("short/environment.json").read_text())["threads"] == 2
    assert torch.get_num_threads() == 1


@pytest.mark.full
@pytest.mark.needs("gloo")
def test_resumed_data_parallel_run_has_bit_identical_weights(run: Run, in_tmp: Path) -> None:
    two = ("learner.parallel.dp=2", "run.max_steps=3")
    whole = run("run.folder=whole", *two)
    with pytest.raises(StoppedRun):
        run("run.folder=stopped", *two, "run.max_time_s=0.01")
    assert run("run.folder=stopped", *two) == whole
    assert (
        contents("whole")["final/model.safetensors"]
        == contents("stopped")["final/model.safetensors"]
    )


@pytest.mark.full
@pytest.mark.needs("gloo")
def test_run_resumes_in_other_rank_layout_and_both_layouts_export(run: Run, in_tmp: Path) -> None:
    run("run.folder=whole", "run.max_steps=3", "run.keep=3")
    with pytest.raises(StoppedRun):
        run(
            "run.folder=moved",
            "learner.parallel.dp=2",
            "run.max_steps=3",
            "run.keep=3",
            "run.max_time_s=0.01",
        )
    parts = sorted(Path("moved/checkpoints/step_000001/policy").glob("model*"))
    assert [path.name for path in parts] == [
        f"model-0000{rank}-of-00002.safetensors" for rank in (1, 2)
    ]
    assert max(path.stat().st_size for path in parts) < 0.7 * sum(
        path.stat().st_size for path in parts
    )
    moved = ["run.folder=moved", "learner.parallel.tp=2", "run.max_steps=3", "run.keep=3"]
    assert main(["train", "tiny.yaml", *moved, "--allow-changes"]) == 0
    for step in (1, 3):
        for folder in ("whole", "moved"):
            assert main(["export", folder, f"{folder}-{step}", "--checkpoint", str(step)]) == 0
        expected, weights = (
            load_file(f"{folder}-{step}/model.safetensors") for folder in ("whole", "moved")
        )
        assert weights.keys() == expected.keys()
        for name, tensor in weights.items():
            torch.testing.assert_close(tensor, expected[name], atol=1e-4, rtol=0.0)


@pytest.mark.proof
def test_max_time_includes_warm_start_training(in_tmp: Path) -> None:
    first = [
        "model.from_recipe=sft_arithmetic",
        "learner.device=cpu",
        "run.max_time_s=0.01",
        "run.folder=run",
    ]
    with pytest.raises(StoppedRun, match="stopped after step 1"):
        train_recipe(load_recipe("ppo_arithmetic", first))
    assert not Path("run/checkpoints").exists()


def alter(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_run_with_only_damaged_checkpoints_fails_instead_of_restarting(
    run: Run, in_tmp: Path
) -> None:
    run("run.keep=1")
    shutil.rmtree("run/final")
    alter(Path("run/checkpoints/step_000002/policy/model.safetensors"))
    logged = Path("run/metrics.jsonl").read_bytes()
    with pytest.raises(OSError, match=r"every checkpoint in .* is damaged"):
        run("run.keep=1")
    assert Path("run/metrics.jsonl").read_bytes() == logged


def rows(values: list[int]) -> str:
    return "".join(
        json.dumps({"question": f"What is {value}?", "answer": str(value)}) + "\n"
        for value in values
    )


@pytest.fixture
def unfinished(run: Run, in_tmp: Path) -> Callable[..., list[dict[str, Any]]]:
    """A run on a data file that has done two of four steps; called, it goes on."""
    Path("train.jsonl").write_text(rows(list(range(64))))
    given = ("data.task=null", "data.train=train.jsonl", "run.max_steps=4")
    with pytest.raises(StoppedRun):
        run(*given, "run.max_time_s=0.01")
    return lambda *overrides: run(*given, *overrides)


def test_resume_with_changed_data_is_rejected_unless_allowed(
    unfinished: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("train.jsonl").write_text(rows(list(range(1, 65))))
    with pytest.raises(ChangedError, match=r"data\.train was .*, is ") as refused:
        unfinished()
    assert len([line for line in str(refused.value).splitlines() if line.startswith("  ")]) == 1
    assert "--allow-changes" in str(refused.value)
    same_recipe = load_recipe(
        "tiny.yaml", ["data.task=null", "data.train=train.jsonl", "run.max_steps=4"]
    )
    train_recipe(same_recipe, allow_changes=True)
    assert "resumes although data.train was" in capsys.readouterr().err


def test_resume_with_changed_recipe_lists_fields_and_is_rejected_unless_allowed(
    unfinished: Run,
) -> None:
    with pytest.raises(ChangedError) as refused:
        unfinished("ppo.clip=0.1", "policy.lr=1.0e-4")
    told = [line.strip() for line in str(refused.value).splitlines()[1:-1]]
    assert told == ["recipe.policy.lr was 0.001, is 0.0001", "recipe.ppo.clip was 0.2, is 0.1"]
    changed = ["data.task=null", "data.train=train.jsonl", "run.max_steps=4", "ppo.clip=0.1"]
    train_recipe(load_recipe("tiny.yaml", changed), allow_changes=True)
    assert yaml.safe_load(Path("run/recipe.yaml").read_text())["ppo"]["clip"] == 0.1


def test_resume_of_run_from_before_shared_prefixes_names_the_option(unfinished: Run) -> None:
    recipe = Path("run/recipe.yaml")
    recipe.write_text(recipe.read_text().replace("  share_prefixes: true\n", ""))
    with pytest.raises(ChangedError, match=r"recipe\.learner\.share_prefixes was false, is true"):
        unfinished()


def test_resume_with_other_lockstep_version_is_rejected(
    unfinished: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockstep.run.folder.identity.__version__", "9.9.9")
    with pytest.raises(ChangedError, match=r'code\.lockstep was ".*", is "9\.9\.9 '):
        unfinished()


def test_allow_changes_extends_finished_run_with_same_rewards(run: Run, in_tmp: Path) -> None:
    whole = run("run.folder=whole", "run.max_steps=4")
    run("run.max_steps=2")
    train_recipe(load_recipe("tiny.yaml", ["run.max_steps=4"]), allow_changes=True)
    rewards = [row["train/reward"] for row in read_metrics(Path("run")) if "train/reward" in row]
    assert rewards == [row["train/reward"] for row in whole if "train/reward" in row]


def test_longer_run_tells_how_to_continue_a_shorter_one(
    run: Run, in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("run.folder=null", "run.max_steps=1")
    [folder] = Path("runs").iterdir()
    recipe = folder / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("\nrun:", "\n# a comment\nrun:"))
    for options in (["--dry-run"], []):
        assert main(["train", "tiny.yaml", "run.folder=null", "run.max_steps=2", *options]) == 0
        shown = "".join(capsys.readouterr())
        assert shown.count(f"add run.folder={folder} --allow-changes") == 1
    main(["train", "tiny.yaml", f"run.folder={folder}", "run.max_steps=2", "--allow-changes"])
    assert len(step_rows(read_metrics(folder))) == 2


def test_best_mode_min_keeps_checkpoint_with_lowest_metric(run: Run, in_tmp: Path) -> None:
    logged = run("run.max_steps=5", "run.keep=1", "run.best={metric: train/reward, mode: min}")
    rewards = {int(row["step"]): row["train/reward"] for row in logged if "train/reward" in row}
    lowest, highest = min(rewards, key=rewards.__getitem__), max(rewards, key=rewards.__getitem__)
    assert 5 not in (lowest, highest), "the last is kept anyway; choose another seed"
    kept = {path.name for path in Path("run/checkpoints").iterdir()}
    assert kept == {f"step_{lowest:06d}", "step_000005"}


@pytest.mark.full
def test_failed_checkpoint_write_ends_run_that_resumes_with_same_metrics(
    run: Run, in_tmp: Path
) -> None:
    whole = run("run.folder=whole", "run.max_steps=4")
    with pytest.raises(StoppedRun):
        run("run.max_steps=4", "run.max_time_s=0.01")
    biggest = max(path.stat().st_size for path in Path("run/checkpoints").rglob("*.safetensors"))
    limited = f"ulimit -f {biggest // 1024 - 8}; exec " + " ".join(
        command("run", "run.max_steps=4")
    )
    failed = subprocess.run(["bash", "-c", limited], capture_output=True, text=True)
    assert failed.returncode == exit_codes.CRASH, failed.stderr
    assert "cannot save the checkpoint of step 2" in failed.stderr
    assert "the newest checkpoint is step_000001" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert run("run.max_steps=4") == whole


def test_checkpoint_files_are_synced_before_folder_is_renamed(
    run: Run, in_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order of things: all bytes are on the disk before the name is."""
    order: list[str] = []
    sync, rename = checkpoints.sync_path, Path.rename
    for module in (checkpoints, disk):
        monkeypatch.setattr(
            module, "sync_path", lambda path: (order.append(f"sync {path.name}"), sync(path))
        )
    monkeypatch.setattr(
        Path, "rename", lambda path, to: (order.append(f"rename {path.name}"), rename(path, to))[1]
    )
    run("run.max_steps=1")
    named = next(
        place for place, done in enumerate(order) if done.startswith("rename .aside_step_000001")
    )
    for name in (
        "model.safetensors",
        "optimizer.safetensors",
        "learner.json",
        "manifest.json",
        "policy",
        "critic",
    ):
        assert f"sync {name}" in order[:named]
    assert order[named + 1] == "sync checkpoints"


def test_resume_with_other_initial_model_is_rejected_even_with_allow_changes(
    run: Run, in_tmp: Path
) -> None:
    run()
    with pytest.raises(
        ChangedError, match=r"holds a run of a different recipe:\n  recipe\.model\."
    ):
        train_recipe(
            load_recipe("tiny.yaml", ["model.scratch.config.hidden_size=64"]), allow_changes=True
        )


def test_run_identity_includes_initial_model_libraries_data_and_reward_package(
    run: Run, in_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run()
    monkeypatch.syspath_prepend(in_tmp)
    Path("judges").mkdir()
    Path("judges/even.py").write_text("one")
    loaded = load_recipe("tiny.yaml", ["reward.function=judges.even:parity"])
    before = collect_identity(loaded, {"train": "1"}, Path("run/initial"))
    assert {
        "code.torch",
        "code.transformers",
        "code.math-verify",
        "model.config.json",
    } <= before.keys()
    Path("judges/even.py").write_text("two")
    alter(Path("run/initial/model.safetensors"))
    names = [
        line.split(" was ")[0]
        for line in list_differences(
            before, collect_identity(loaded, {"train": "2"}, Path("run/initial"))
        )
    ]
    assert sorted(names) == ["code.reward.function", "data.train", "model.model.safetensors"]


@pytest.mark.parametrize(
    ("recipe", "option"),
    [("self_rewarding", "judge"), ("self_rewarding_meta_llama3_8b", "meta_judge")],
)
def test_changed_judge_weights_change_run_inputs(recipe: str, option: str, tmp_path: Path) -> None:
    loaded = load_recipe(recipe, [f"{option}.path={tmp_path}"])
    (tmp_path / "weights").write_bytes(b"1")
    before = collect_inputs(loaded, {}, None)
    (tmp_path / "weights").write_bytes(b"2")
    assert [
        line.split()[0] for line in list_differences(before, collect_inputs(loaded, {}, None))
    ] == [f"{option}.weights"]


@pytest.mark.parametrize("name", ["metrics.jsonl", "samples.jsonl"])
def test_resume_with_altered_or_missing_log_is_rejected_unless_allowed(
    name: str, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(StoppedRun):
        run("run.max_steps=3", "run.max_time_s=0.01")
    content = (Path("run") / name).read_text()
    (Path("run") / name).write_text(content.replace("0", "1", 1))
    with pytest.raises(
        ChangedError, match=rf"run/{name} differs from what the run wrote\nrestore them"
    ):
        run("run.max_steps=3")
    (Path("run") / name).unlink()
    with pytest.raises(ChangedError, match=f"run/{name} is missing"):
        run("run.max_steps=3")
    capsys.readouterr()
    train_recipe(load_recipe("tiny.yaml", ["run.max_steps=3"]), allow_changes=True)
    assert f"resumes although run/{name} is missing" in capsys.readouterr().err
