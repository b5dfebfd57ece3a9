"""An algorithm as an object: the recipe that the command line would load, the run that it would
train.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import yaml
from training import train_rows

import lockstep
from lockstep.algorithms.grpo.options import PolicyGradient
from lockstep.api.values import build_tree
from lockstep.config import user_code
from lockstep.core.errors import InputError

ROWS = [
    {"question": f"Once upon a time there was a {name}"} for name in ("dog", "cat", "boy", "girl")
]
SMALL: dict[str, Any] = {
    "data": {"max_prompt_tokens": 32, "answer": ""},
    "sampling": {"max_tokens": 8},
    "validation_sampling": {"max_tokens": 8, "temperature": 0.0},
    "policy": {"lr": 1e-3},
    "grpo": {"num_prompts_per_step": 4, "num_generations": 4, "global_batch_size": 16},
}


def letters(prompt: str, response: str, answer: str, row: Mapping[str, Any]) -> float:
    return response.count("e") / 10


def shifted(by: float) -> Any:
    return lambda prompt, response, answer, row: response.count("e") / 10 + by


def grpo(assets: Path, **options: Any) -> lockstep.GRPO:
    options = {"train": ROWS, "reward": shifted(0.0), "run": {"max_steps": 2}, **SMALL, **options}
    return lockstep.GRPO(model=assets / "models/stories260K/hf", **options)


def test_python_trainer_gives_same_metrics_as_command_line_recipe(
    assets: Path, in_tmp: Path
) -> None:
    Path("rewards.py").write_text(
        "def letters(prompt, response, answer, row):\n    return response.count('e') / 10\n"
    )
    Path("own.yaml").write_text(
        yaml.safe_dump(
            {
                "base": "grpo",
                **SMALL,
                "model": {"path": str(assets / "models/stories260K/hf")},
                "data": {
                    **SMALL["data"],
                    "train": build_tree({"train": ROWS})["data"]["train"],
                },  # part of prompts' keys
                "reward": {"type": "python", "function": "rewards.py:letters"},
                "run": {"max_steps": 2},
            }
        )
    )
    seen: list[int] = []
    run = grpo(assets).train(on_step=lambda step, values: seen.append(step))
    assert run.metrics == train_rows("own.yaml")
    assert seen == [1, 2]
    assert run.is_finished
    assert "trained on anything" not in run.summary
    assert (run.model / "model.safetensors").is_file()
    assert run.agreement is not None
    assert run.agreement.word == "AGREE"
    assert [step for step, _ in run.curve("train/reward")] == [1, 2]
    assert {row["step"] for row in run.samples} == {1, 2}
    assert run.report().read_bytes().startswith(b"<!")
    assert "sampled reward" in run.summary
    assert re.search(r"<svg.*reward over steps.*<pre>.*sampled reward", run._repr_html_(), re.S)


def test_on_step_callback_receives_validation_before_first_step(assets: Path, in_tmp: Path) -> None:
    seen: list[tuple[int, bool]] = []

    def note(step: int, values: Mapping[str, float]) -> None:
        seen.append((step, "validation/reward" in values))

    grpo(assets, validation=ROWS[:2]).train(on_step=note)
    assert seen == [(0, True), (1, False), (2, True)]


def test_interrupted_trainer_saves_and_same_call_resumes_with_same_metrics(
    assets: Path, in_tmp: Path
) -> None:
    def interrupt(step: int, values: Mapping[str, float]) -> None:
        if step == 1:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.5)  # the handler runs in this thread before the step's end

    stopped = grpo(assets, run={"max_steps": 3}).train(on_step=interrupt)
    assert not stopped.is_finished
    assert len(stopped.metrics) == 2  # the step that was under way is finished
    whole = grpo(assets, run={"max_steps": 3, "folder": "whole"}).train()
    assert grpo(assets, run={"max_steps": 3}).train().metrics == whole.metrics


def test_input_error_has_few_frames_and_a_crash_keeps_its_own(assets: Path, in_tmp: Path) -> None:
    def crash(step: int, metrics: Mapping[str, float]) -> None:
        raise KeyError(step)

    with pytest.raises(InputError) as caught:
        grpo(assets, train=[{"text": "Once"}]).train()
    with pytest.raises(KeyError) as crashed:
        grpo(assets).train(on_step=crash)
    assert len(traceback.extract_tb(caught.value.__traceback__)) <= 3
    assert caught.value.__suppress_context__
    assert traceback.extract_tb(crashed.value.__traceback__)[-1].name == "crash"


def test_changed_reward_function_changes_the_run_folder(assets: Path, in_tmp: Path) -> None:
    assert grpo(assets).folder == grpo(assets).folder
    assert grpo(assets).folder != grpo(assets, reward=shifted(1.0)).folder


def run_program(text: str) -> str:
    """The reference of `reward` in a program without a file, as `python -` and some notebooks have
    it.
    """
    code = f"{text}\nfrom lockstep.config.user_code import make_reference\nprint(make_reference(reward))"
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout


REWARD = """
K = 3
def helper(x):
    return [x * K for _ in 'ab']
def reward(prompt, response, answer, row):
    return helper(response.count('e'))[0]
"""


@pytest.mark.parametrize(
    ("then", "now"),
    [
        ("count('e')", "count('a')"),
        ("K = 3", "K = 30"),
        ("K = 3", "K = [3]"),
        ("x * K for", "x + K for"),
    ],
)
def test_function_reference_changes_with_helpers_and_globals_it_uses(then: str, now: str) -> None:
    assert (
        run_program(REWARD)
        == run_program(f"{REWARD}  # and a remark")
        == run_program(f"{REWARD}\nM = 4")
    )
    assert run_program(REWARD) != run_program(REWARD.replace(then, now))


def test_class_reference_changes_with_its_attributes_and_methods() -> None:
    text = "class reward:\n    turns = 2\n    def step(self, r):\n        return 'x' in {'a', 'b'}"
    assert run_program(text) == run_program(text)  # sets have another order in each process
    assert run_program(text) != run_program(text.replace("turns = 2", "turns = 3"))
    assert run_program(text) != run_program(text.replace("'a'", "'c'"))
    text = f"import functools\n{text}\n    @property\n    def a(self): return 1"
    text += "\n    @functools.cached_property\n    def b(self): return 2"
    assert run_program(text) != run_program(text.replace("return 1", "return 3"))
    assert run_program(text) != run_program(text.replace("return 2", "return 3"))


def test_module_function_is_referenced_by_module_and_name() -> None:
    assert user_code.make_reference(letters) == f"{__name__}:letters"
    assert not user_code.is_in_program(user_code.make_reference(letters))
    assert user_code.is_in_program(user_code.make_reference(shifted(0.0)))


class Echo:
    """An environment that ends after one answer."""

    cut_off_reward = "as_is"

    def reset(self, row: dict[str, Any], seed: int) -> None:
        self.turns = 0

    def step(self, response: str) -> tuple[str, float | None, bool]:
        self.turns += 1
        return "again", response.count("e") / 10, self.turns == 2


def test_environment_replaces_default_reward_unless_reward_is_given(
    assets: Path, in_tmp: Path
) -> None:
    """The recipe `grpo`, to begin with, has one, which knows nothing of the environment."""
    options: dict[str, Any] = {
        "train": ROWS,
        "model": "model",
        "environment": {"class_name": Echo, "max_tokens": 200},
    }
    assert lockstep.GRPO(**options)._loaded.dump_options()["reward"] is None
    assert (
        lockstep.GRPO(**options, reward="math")._loaded.dump_options()["reward"]["type"] == "math"
    )
    assert (
        lockstep.GRPO(**options, recipe="grpo")._loaded.dump_options()["reward"]["type"] == "math"
    ), "the run notes that"


@pytest.mark.full
def test_trainer_accepts_environment_class_from_module_or_main(assets: Path, in_tmp: Path) -> None:
    own = type("Own", (Echo,), {})
    own.__module__ = "__main__"
    for made in (Echo, own):
        run = grpo(
            assets,
            reward=None,
            environment={"class_name": made, "max_tokens": 64},
            run={"max_steps": 1},
        ).train()
        assert run.metrics[0]["train/turns"] == 1  # a response that is cut off ends the episode
        assert run.metrics[0]["train/reward"] > 0


def test_reward_function_with_wrong_result_or_signature_is_rejected(
    assets: Path, in_tmp: Path
) -> None:
    with pytest.raises(InputError, match=r"returned 'much'; return a finite number, or None"):
        grpo(assets, reward=lambda prompt, response, answer, row: "much").train()
    with pytest.raises(InputError, match=r"is called with \(prompt, response, answer, row\)"):
        grpo(assets, reward=lambda response: 1.0).train()


async def even(prompt: str, response: str, answer: str, row: dict[str, Any]) -> float:
    """Awaited in this process, since no other has it."""
    await asyncio.sleep(0)
    return float(len(response) % 2)


def test_reward_functions_are_summed_with_weights_under_their_names(
    assets: Path, in_tmp: Path
) -> None:
    def long(prompt: str, response: str, answer: str, row: dict[str, Any]) -> float:
        return len(response) / 100

    run = grpo(assets, reward={"odd": (even, 0.25), "long": long}, run={"max_steps": 1}).train()
    [row] = [row for row in run.metrics if "reward/odd" in row]
    assert row["train/reward"] == pytest.approx(0.25 * row["reward/odd"] + row["reward/long"])
    parts = grpo(assets, reward=[even, long])._loaded.dump_options()["reward"]["parts"]
    assert {name: part["weight"] for name, part in parts.items()} == {"even": 1.0, "long": 1.0}
    for wrong in ([long, long], [long, "math"]):
        with pytest.raises(InputError, match="which has no distinct name; name each"):
            grpo(assets, reward=wrong)


def test_keywords_and_model_objects_of_trl_are_explained(in_tmp: Path) -> None:
    with pytest.raises(InputError) as caught:
        cast(Any, lockstep.GRPO)(model="model", reward_funcs=[letters], train_dataset=ROWS, args={})
    assert str(caught.value).splitlines() == [
        "instead of TRL's reward_funcs, pass reward=…",
        "instead of TRL's train_dataset, pass train=…",
        "instead of TRL's args, pass one mapping per section, such as run={'max_steps': …}",
    ]
    model = torch.nn.Linear(2, 2)
    for call in (lockstep.GRPO, lockstep.open_learner, lockstep.open_sampler):
        with pytest.raises(InputError, match=r"model is a Linear; pass .*save_pretrained wrote"):
            cast(Any, call)(model=model)


def test_trainer_dry_run_and_describe_create_no_run_folder(assets: Path, in_tmp: Path) -> None:
    trainer = grpo(assets)
    assert "1 optimizer step of 16 responses" in trainer.dry_run()
    plain = {"share_prefixes": False, "micro_batch_tokens": 8}
    found = grpo(assets, learner=plain).dry_run()
    assert "shared prefixes computed again: learner.share_prefixes=false" in found
    assert "gets its own pass, above learner.micro_batch_tokens=8" in found
    assert "num_prompts_per_step: 4" in trainer.describe()
    assert not Path("runs").joinpath(trainer.folder.name).exists()
    assert repr(trainer) == f"<lockstep.GRPO → {trainer.folder}>"


def test_run_folder_is_named_after_algorithm_class_of_program() -> None:
    own = type("Own", (PolicyGradient,), {})
    own.__module__ = "__main__"
    trainer = lockstep.Trainer(
        own, model="m", train=ROWS, reward="math", run={"max_steps": 2}, **SMALL
    )
    assert trainer.folder.name.startswith("own-")


def test_hugging_face_dataset_gives_same_run_as_equal_row_list(assets: Path, in_tmp: Path) -> None:
    datasets = pytest.importorskip("datasets")
    assert grpo(assets, train=datasets.Dataset.from_list(ROWS)).folder == grpo(assets).folder
