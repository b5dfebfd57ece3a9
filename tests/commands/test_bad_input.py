"""Every bad input gets the sentence of messages.md, in time, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from bad_conversions import CONVERTED
from bad_hub import HUB
from bad_inputs import CATALOGUE as OWN
from bad_options import OPTIONS
from hub_server import environment_of, serve_hub
from workspace import furnish

from lockstep.cli import main
from lockstep.core import exit_codes
from lockstep.core.errors import InputError
from lockstep.data.files import FileGroup, open_rows
from lockstep.run.folder.files import lock_folder

CATALOGUE = {**OWN, **OPTIONS, **HUB, **CONVERTED}
PAGE = Path(__file__).with_name("messages.md")
ROW = re.compile(r"\| (?P<name>[^|]+: [^|]+) \| (?P<ticks>`+)(?P<sentence>.+?)(?P=ticks) \|")
SENTENCES = {
    row["name"]: row["sentence"] for row in map(ROW.fullmatch, PAGE.read_text().splitlines()) if row
}
BREAKING = "train tiny.yaml critic.lr=1e30 run.max_steps=3"
NOTES = {name for name in SENTENCES if name.startswith("note: ")}


@pytest.fixture(scope="session")
def furnished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("furnished")
    furnish(folder)
    return folder


@pytest.fixture
def here(furnished: Path, in_tmp: Path) -> Path:
    """A furnished folder of the test's own."""
    return Path(shutil.copytree(furnished, in_tmp, dirs_exist_ok=True))


@pytest.fixture
def spoiled(
    name: str, here: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[Path]]:
    """What is in the folder of a bad input; a hub answers where it asks one."""
    bad = CATALOGUE[name]
    if bad.spoil is not None:
        bad.spoil(here)
    if bad.hub is None:
        yield left(here)
        return
    cache = tmp_path_factory.mktemp("hub")
    with serve_hub() as hub:
        for variable, value in environment_of(hub.url, cache).items():
            monkeypatch.setenv(variable, value)
        bad.hub(hub, cache)
        yield left(here)


def is_said(name: str, text: str) -> bool:
    """`…` on the page is any text, but of one line."""
    return re.fullmatch(".*".join(map(re.escape, SENTENCES[name].split("…"))), text) is not None


def left(folder: Path) -> list[Path]:
    """All that is in a folder, but for what Python keeps of modules that it imports."""
    return sorted(path for path in folder.rglob("*") if "__pycache__" not in path.parts)


def refusal(command: str, capsys: pytest.CaptureFixture[str], code: int = exit_codes.INPUT) -> str:
    """What is said of a command that must fail: the last line, and the only one that says so."""
    assert main(shlex.split(command)) == code
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if line.startswith("lockstep: ")] == lines[-1:]
    assert not any("Traceback" in line for line in lines)
    return lines[-1].removeprefix("lockstep: ")


def test_messages_page_and_bad_input_catalogue_have_the_same_entries() -> None:
    assert set(SENTENCES) - NOTES == set(CATALOGUE)
    assert len(CATALOGUE) > 90


@pytest.mark.parametrize("name", CATALOGUE)
def test_bad_input_gives_documented_error_and_leaves_no_files(
    name: str, here: Path, spoiled: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    bad = CATALOGUE[name]
    sentence = refusal(bad.command, capsys, bad.code)
    assert is_said(name, sentence), sentence
    if bad.early:
        assert left(here) == spoiled


TRAINED = [name for name, bad in CATALOGUE.items() if bad.dry and bad.command.startswith("train")][
    ::5
]
"""One in five: what differs between a dry run and a run is where they end, not what they read."""


@pytest.mark.parametrize("name", TRAINED)
def test_dry_run_gives_documented_error_and_leaves_no_files(
    name: str, here: Path, spoiled: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    sentence = refusal(f"{CATALOGUE[name].command} --dry-run", capsys)
    assert is_said(name, sentence), sentence
    assert left(here) == spoiled


def test_dry_run_reports_all_errors_together(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "model/model.safetensors").unlink()
    overrides = (
        "data.validation=absent.jsonl reward.marker=null reward.type=python "
        "reward.function=rewards.py:narrow"
    )
    assert (
        main(
            shlex.split(
                f"train own.yaml {overrides} learner.device=cuda run.folder=rewards.py/run "
                "--dry-run"
            )
        )
        == 2
    )
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("note: reward.function rewards.py:narrow runs ")
    assert len(lines) == 6
    for text in (
        "learner.device",
        "run folder",
        "absent.jsonl",
        "model.safetensors missing",
        "narrow",
    ):
        assert sum(text in line for line in lines[1:]) == 1, text


def test_all_lengths_that_exceed_the_context_are_reported_together(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = "sampling.max_tokens=100 validation_sampling.max_tokens=200"
    assert main(shlex.split(f"train tiny.yaml {options} --dry-run")) == exit_codes.INPUT
    text = capsys.readouterr().err
    assert "max_prompt_tokens + sampling.max_tokens allows" in text
    assert "max_prompt_tokens + validation_sampling.max_tokens allows" in text


def test_command_that_a_refused_file_names_converts_it(in_tmp: Path) -> None:
    Path("rows.csv").write_text('prompt,answer\n"a, ""b""",1\n')
    Path("prompts.txt").write_text("Once upon\n\na time\n")
    for name, rows in (
        ("rows.csv", [{"prompt": 'a, "b"', "answer": "1"}]),
        ("prompts.txt", [{"prompt": "Once upon"}, {"prompt": "a time"}]),
    ):
        with pytest.raises(InputError) as caught:
            open_rows(FileGroup((Path(name),)))
        subprocess.run(str(caught.value).split("convert it: ")[1], shell=True, check=True)
        found = open_rows(FileGroup((Path("rows.jsonl"),)))
        assert found.read_rows(range(len(found))) == rows


def test_dry_run_rejects_model_that_needs_more_memory_than_machine_has(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(["train", "tiny.yaml", "model.scratch.config.hidden_size=1048576", "--dry-run"]) == 2
    )
    assert "the run needs about 123 TB of memory, but this machine has" in capsys.readouterr().err


def test_dry_run_rejects_run_folder_of_different_recipe_unless_changes_are_allowed(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "sft.yaml"]) == 0
    assert main(["train", "sft.yaml", "--dry-run"]) == 0
    assert main(["train", "sft.yaml", "seed=1", "--dry-run"]) == 2
    assert (
        "holds a run of a different recipe:\n  recipe.seed was 0, is 1" in capsys.readouterr().err
    )
    assert main(["train", "sft.yaml", "seed=1", "--dry-run", "--allow-changes"]) == 0


@pytest.mark.parametrize("recipe", ["tiny.yaml", "own.yaml", "sft.yaml"])
def test_dry_run_of_valid_recipe_reports_plan_and_leaves_no_files(
    recipe: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = left(here)
    assert main(["train", recipe, "--dry-run", "run.max_steps=7", "run.save_every=3"]) == 0
    assert left(here) == before
    report = capsys.readouterr().out
    assert report.startswith(f"{Path(recipe).stem} can start")
    assert "steps: 7;" in report
    assert "checkpoints: 3" in report
    assert main(["train", recipe]) == 0


def test_max_epochs_override_replaces_max_steps_of_recipe(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "tiny.yaml", "--dry-run", "run.max_epochs=2"]) == 0
    assert "steps: 16;" in capsys.readouterr().out


def test_dry_run_also_checks_warm_start_recipe(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "later.yaml").write_text(
        "base: own.yaml\nmodel: {path: null, from_recipe: ./sft.yaml}\n"
    )
    assert main(["train", "later.yaml", "--dry-run"]) == 0
    assert "sft trains first" in capsys.readouterr().out
    (here / "model/tokenizer.json").unlink()
    assert "sft: model: has no tokenizer" in refusal("train later.yaml --dry-run", capsys)


def test_generate_without_data_names_only_the_missing_argument(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["generate", "model"])
    assert capsys.readouterr().err.endswith("the following arguments are required: DATA\n")


def test_traceback_option_is_accepted_after_command(here: Path) -> None:
    with pytest.raises(InputError, match=r"recipe absent\.yaml not found"):
        main(["train", "absent.yaml", "--traceback"])


def test_all_unreadable_overrides_are_reported_together(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "own.yaml", "run.keep=", "ppo.clip = 0.1"]) == exit_codes.INPUT
    said = capsys.readouterr().err.splitlines()
    assert is_said("override: no value", said[0].removeprefix("lockstep: "))
    assert is_said("override: a space", said[1])


@pytest.mark.needs("gloo")
def test_non_finite_numbers_on_two_ranks_give_the_documented_error(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sentence = refusal(f"{BREAKING} learner.parallel.dp=2", capsys, exit_codes.CRASH)
    assert is_said("run: numbers break", sentence)


def test_equal_rewards_are_noted(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reward = "reward.type=python reward.marker=null reward.function=rewards.py:constant"
    assert main(shlex.split(f"train tiny.yaml {reward} run.max_steps=6")) == 0
    lines = capsys.readouterr().err.splitlines()
    assert [is_said("note: equal rewards", line) for line in lines if "all rewards" in line] == [
        True
    ]


def test_a_step_that_trained_on_nothing_is_noted(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", "tiny.yaml", "ppo.overlong_filtering=true", "sampling.max_tokens=1"]
    assert main(command) == exit_codes.INCONCLUSIVE
    assert any(
        is_said("note: nothing to train on", line) for line in capsys.readouterr().err.splitlines()
    )


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("note: validation that is trained on", "train own.yaml data.validation=copy.jsonl"),
        ("note: more ranks than cores", "train own.yaml learner.parallel.dp=4096"),
        ("note: a high learning rate", "train own.yaml policy.lr=1e6 learner.parallel.dp=4096"),
    ],
)
def test_recipe_that_is_probably_not_meant_is_reported_in_note(
    name: str, command: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy("rows.jsonl", "copy.jsonl")
    assert main([*shlex.split(command), "--dry-run"]) == 0
    assert any(
        is_said(name, line.removeprefix("note: ").strip())
        for line in capsys.readouterr().out.splitlines()
    )
    if "4096" not in command:
        main(shlex.split(command))
        assert any(
            is_said(name, line.removeprefix("note: "))
            for line in capsys.readouterr().err.splitlines()
        )


def test_failed_start_removes_only_folders_it_created(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refusal("train tiny.yaml sampling.max_tokens=100 run.folder=deep/er/run", capsys)
    assert not Path("deep").exists()
    Path("mine").mkdir()
    Path("mine/notes.txt").write_text("keep")
    refusal("train tiny.yaml sampling.max_tokens=100 run.folder=mine", capsys)
    assert os.listdir("mine") == ["notes.txt"]


def test_start_refused_by_run_lock_leaves_run_folder_unchanged(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("run").mkdir()
    with lock_folder(Path("run")):
        assert "in use by another process" in refusal("train tiny.yaml", capsys)
        assert os.listdir("run") == [".lock"]
