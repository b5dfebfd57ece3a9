"""A loop of your own: the README's code runs as it stands, and its parts are those that recipes
run.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import subprocess
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, cast

import pytest
import torch
from tiers import full
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

import lockstep
from lockstep.api.loop import TextSampler
from lockstep.core.batch import Batch
from lockstep.core.errors import InputError
from lockstep.losses.base import Outputs
from lockstep.models.folder import ModelError

ROOT = Path(__file__).parents[2]
CODE = (ROOT / "examples/rl_loop.py").read_text().split('"""\n\n', 1)[1]


@dataclass(frozen=True)
class Reinforce:
    denominator: Literal["tokens"] = "tokens"

    def __call__(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, lockstep.Metrics]:
        assert outputs.logprob is not None
        return -(outputs.logprob * batch["advantage"]).sum(), lockstep.Metrics()


def score(prompt: str, response: str, answer: str, row: object) -> float:
    return float(len(response))


@pytest.fixture(autouse=True)
def nothing_is_left_open() -> Iterator[None]:
    yield
    lockstep.close_all()
    assert not multiprocessing.active_children()


@pytest.fixture
def model(assets: Path) -> str:
    return str(assets / "models/stories260K/hf")


def test_readme_contains_the_rl_loop_example() -> None:
    assert CODE.rstrip() in (ROOT / "README.md").read_text()
    assert len([line for line in CODE.splitlines() if line.strip()]) <= 27


def test_rl_loop_example_more_than_doubles_its_reward(model: str, in_tmp: Path) -> None:
    command = [sys.executable, str(ROOT / "examples/rl_loop.py"), model]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    lines = subprocess.run(
        command, capture_output=True, text=True, check=True, env=env
    ).stdout.splitlines()
    rewards = [float(re.findall(r"reward ([\d.]+)", line)[0]) for line in lines]
    assert len(rewards) == 10
    assert rewards[-1] > 2 * rewards[0]
    assert all("49 tensors proven, gap 0.0e+00" in line for line in lines)


@dataclass(frozen=True)
class Returning:
    """A loss that returns what it was given in place of two values."""

    kind: str
    denominator: Any = "tokens"

    def __call__(self, outputs: Outputs, batch: Batch) -> Any:
        assert outputs.logprob is not None
        total = -outputs.logprob.sum()
        return {
            "sum": total,
            "tokens": (-outputs.logprob, lockstep.Metrics()),
            "detached": (total.detach(), lockstep.Metrics()),
            "number": (total, lockstep.Metrics({"loss": cast(Any, total.detach())})),
            "right": (
                total,
                lockstep.losses.Metrics(
                    loss=lockstep.losses.Mean(total.detach(), batch.mask.sum())
                ),
            ),
        }[self.kind]


class Undivided:
    """A loss without a denominator."""

    def __call__(self, outputs: Outputs, batch: Batch) -> Any:
        raise AssertionError("refused before")


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (
            Returning("sum"),
            "loss Returning returned Tensor; return a pair: the sum over the batch",
        ),
        (Returning("tokens"), "loss Returning returned tuple; return a pair"),
        (
            Returning("detached"),
            "returned tuple; return a pair: .* scalar tensor with a gradient",
        ),
        (
            Returning("number"),
            r"its metric loss is a Tensor; use a type .* lockstep\.losses\.Mean\(total, count\)",
        ),
        (
            Returning("right", "token"),
            "has the denominator 'token'; .* one of: tokens, rows, pairs",
        ),
        (Undivided(), "loss Undivided has no denominator; .* one of: tokens, rows, pairs"),
        (score, r"loss score has no denominator; .* returns the sum and lockstep\.Metrics\(\)"),
        ("importance_sampling", "the loss is 'importance_sampling'; pass a loss object"),
    ],
)
def test_loss_with_invalid_result_or_denominator_is_rejected_with_expected_form(
    model: str, loss: Any, message: str
) -> None:
    learner = lockstep.open_learner(model, optimizer={"lr": 1e-3})
    batch = lockstep.rollout(lockstep.open_sampler(model), ["Once"], score, max_tokens=4).batch
    with pytest.raises(InputError, match=message):
        learner.forward_backward(batch, loss)


def test_forward_backward_rejects_a_list_as_a_batch(model: str) -> None:
    learner = lockstep.open_learner(model, optimizer={"lr": 1e-3})
    with pytest.raises(InputError, match="the batch is a list; pass a Batch"):
        learner.forward_backward(cast(Any, [{"tokens": [1]}]), Returning("right"))


def test_sampler_names_the_functions_that_sample(model: str) -> None:
    sampler = lockstep.open_sampler(model)
    with pytest.raises(AttributeError, match=r"has no generate; lockstep\.sample\(sampler"):
        getattr(sampler, "generate")("Once")  # noqa: B009
    assert not hasattr(sampler, "sample")


def test_script_without_main_guard_is_told_so_in_one_sentence(model: str, in_tmp: Path) -> None:
    Path("loop.py").write_text(
        f"import lockstep\nlockstep.open_sampler({model!r}, replicas=2)\nprint('unreached')\n"
    )
    ended = subprocess.run(
        [sys.executable, "loop.py"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.count("Traceback") == 1
    sentence = 'each worker imports loop.py, which then starts workers; put its code under if __name__ == "__main__":'
    assert sentence in ended.stderr


def test_guide_loss_logs_loss_entropy_grad_norm_and_lr(model: str) -> None:
    guide = (ROOT / "docs/guides/python.md").read_text()
    [block] = [
        block
        for block in re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
        if "def __call__" in block
    ]
    names: dict[str, Any] = {"__name__": "guide"}
    sys.modules["guide"] = ModuleType("guide")  # where dataclasses looks types up
    exec(block, names)
    learner = lockstep.open_learner(model, optimizer={"lr": 1e-3})
    batch = lockstep.rollout(lockstep.open_sampler(model), ["Once"], score, max_tokens=4).batch
    batch = batch.with_columns({"advantage": batch.mask.float()})
    logged = (
        learner.forward_backward(batch, names["WithEntropy"]()) + learner.optim_step()
    ).floats()
    assert set(logged) == {"loss", "entropy", "grad_norm", "lr"}
    assert logged["entropy"] > 0


@pytest.mark.parametrize("schedule", [{"decay": "linear"}, {"warmup_steps": 0.1}])
def test_schedule_that_ends_with_a_run_is_rejected_in_a_loop(
    model: str, schedule: dict[str, Any]
) -> None:
    optimizer: Any = {"lr": 1e-3, "schedule": schedule}
    with pytest.raises(InputError, match=r"set schedule\.decay_steps"):
        lockstep.open_learner(model, optimizer=optimizer)


def test_optim_step_without_gradient_is_rejected_and_without_rows_is_skipped(model: str) -> None:
    learner = lockstep.open_learner(model, optimizer={"lr": 1e-3})
    batch = lockstep.rollout(lockstep.open_sampler(model), ["Once"], score, max_tokens=4).batch
    nothing = batch.with_columns({"mask": torch.zeros_like(batch.mask)})
    with pytest.raises(
        InputError, match=r"optim_step: no gradient .*; call forward_backward\(batch, loss\) first"
    ):
        learner.optim_step()
    learner.forward_backward(nothing, Returning("right"))
    assert learner.optim_step().floats() == {"updates_skipped": 1.0}
    learner.forward_backward(batch, Returning("right"))
    assert learner.optim_step().floats()["grad_norm"] > 0
    with pytest.raises(InputError, match="optim_step: no gradient"):
        learner.optim_step()


def test_rl_loop_example_without_a_model_prints_its_usage() -> None:
    command = [sys.executable, str(ROOT / "examples/rl_loop.py")]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, capture_output=True, text=True, env=env)
    assert (ended.returncode, ended.stderr) == (1, "usage: python rl_loop.py MODEL\n")


def test_sample_draws_the_responses_of_rollout_from_texts_or_tokens(model: str) -> None:
    sampler = lockstep.open_sampler(model)
    drawn = lockstep.rollout(sampler, ["Once", "A dog"], score, max_tokens=8, num_generations=2)
    for prompts in (["Once", "A dog"], [sampler.source.prompt_ids("Once"), "A dog"]):
        batch = lockstep.sample(sampler, prompts, max_tokens=8, num_generations=2)
        assert torch.equal(batch.tokens, drawn.batch.tokens)
        assert torch.equal(batch["sampler_logprob"], drawn.batch["sampler_logprob"])


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ("Once", "prompts is a single string; pass a list"),
        ([], "prompts is empty; pass at least one"),
        ([1, 2], "prompt 0 is 1.*; pass a string, or a list of token ids from 0 to 511"),
        ([[1, 512]], "pass a string, or a list of token ids from 0 to 511"),
        ([[]], "request 0 has 0 prompt tokens"),
    ],
)
def test_sample_rejects_what_is_no_list_of_prompts(model: str, prompts: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        lockstep.sample(lockstep.open_sampler(model), prompts, max_tokens=4)
    assert len(traceback.extract_tb(caught.value.__traceback__)) <= 3


def test_logprob_gap_appears_after_update_and_vanishes_after_weight_sync(model: str) -> None:
    learner = lockstep.open_learner(model, optimizer={"lr": 1e-2})
    sampler = lockstep.open_sampler(model)  # with weights of its own
    rollouts = lockstep.rollout(sampler, ["Once"], score, max_tokens=8, num_generations=4)
    batch = rollouts.batch.with_columns({"advantage": rollouts.batch.mask.float()})
    learner.forward_backward(batch, Reinforce())
    learner.optim_step()
    assert (learner.logprobs(batch) - batch["sampler_logprob"]).abs().max() > 1e-3
    assert lockstep.sync(learner, sampler).version == 1
    fresh = lockstep.rollout(
        sampler, ["Once"], score, max_tokens=8, num_generations=4, seed=1
    ).batch
    assert (learner.logprobs(fresh) - fresh["sampler_logprob"]).abs().max() < 1e-4
    assert fresh["version"].tolist() == [1] * 4


def train_once(learner: lockstep.Learner, sampler: TextSampler) -> None:
    batch = lockstep.rollout(sampler, ["Once"], score, max_tokens=4).batch
    learner.forward_backward(batch.with_columns({"advantage": batch.mask.float()}), Reinforce())
    learner.optim_step()


def test_sampling_requires_the_weights_of_the_last_optimizer_step(model: str) -> None:
    learner = lockstep.open_learner(model, optimizer={"lr": 1e-3})
    sampler = lockstep.open_sampler(model)
    lockstep.sync(learner, sampler)
    train_once(learner, sampler)
    for draw in (
        lambda: lockstep.rollout(sampler, ["Once"], score, max_tokens=4),
        lambda: lockstep.sample(sampler, ["Once"], max_tokens=4),
    ):
        with pytest.raises(InputError, match=r"of optimizer step 0, but .* step 1; call .*sync"):
            draw()
    lockstep.sync(learner, sampler)
    train_once(learner, sampler)
    sampler.requires_sync = False
    train_once(learner, sampler)
    shared = lockstep.open_sampler(model, learner)
    train_once(learner, shared)
    lockstep.sync(learner, shared)
    train_once(learner, shared)
    train_once(learner, shared)


def test_sampler_of_a_trained_learner_requires_a_first_sync(model: str) -> None:
    learner = lockstep.open_learner(model, optimizer={"lr": 1e-3}, exact=False, dtype="bf16")
    train_once(learner, lockstep.open_sampler(model))
    sampler = lockstep.open_sampler(model, learner, replicas=2)
    with pytest.raises(InputError, match=r"of optimizer step 0, but the learner is at step 1"):
        lockstep.rollout(sampler, ["Once"], score, max_tokens=4)


@pytest.mark.parametrize(("dtype", "shared"), [("fp32", True), ("bf16", True), full("fp32", False)])
def test_sampler_logprobs_equal_learner_logprobs_bit_for_bit_after_each_sync(
    model: str, dtype: Literal["fp32", "bf16"], shared: bool
) -> None:
    learner = lockstep.open_learner(
        model, optimizer={"lr": 1e-2}, dtype=dtype, micro_batch_tokens=100
    )
    sampler = lockstep.open_sampler(model, learner, max_batch_size=3, replicas=1 if shared else 2)
    compared = 0
    for step in range(4):
        assert lockstep.sync(learner, sampler).exact
        rollouts = lockstep.rollout(
            sampler, ["Once upon a time", "A dog"], score, max_tokens=12, num_generations=4, temperature=0.9,
            top_p=0.95, min_p=0.001, repetition_penalty=1.1, stop=["."], seed=step,
        )  # fmt: skip
        batch = rollouts.batch.with_columns({"advantage": rollouts.batch.mask.float()})
        assert torch.equal(
            learner.logprobs(batch)[batch.mask], batch["sampler_logprob"][batch.mask]
        )
        compared += int(batch.mask.sum())
        learner.forward_backward(batch, Reinforce())
        learner.optim_step()
    assert compared > 200


def test_sync_reports_exactness_and_lora_learner_prints_reason(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = lockstep.open_learner(model, exact=False)
    assert not lockstep.sync(chosen, lockstep.open_sampler(model, chosen)).exact
    assert "exact" not in capsys.readouterr().err
    learner = lockstep.open_learner(model, optimizer={"lr": 1e-2}, lora={"rank": 2})
    told = capsys.readouterr().err
    assert "not exact: learner.lora adapters" in told
    assert "so samplers agree with this learner up to rounding (E1), not bitwise (E2)" in told
    sampler = lockstep.open_sampler(model)  # has no place for adapters, and gets them merged
    assert not lockstep.sync(learner, sampler).exact
    assert not lockstep.sync(lockstep.open_learner(model, dtype="bf16"), sampler).exact
    assert lockstep.sync(lockstep.open_learner(model), sampler).exact
    assert "exact" not in capsys.readouterr().err
    lockstep.open_learner(model, head="value", optimizer={"lr": 1e-2}, lora={"rank": 2})
    assert "exact" not in capsys.readouterr().err


def test_rollout_is_reproducible_by_seed_and_passes_row_answer_to_reward(model: str) -> None:
    sampler = lockstep.open_sampler(model)
    rows = [{"question": "Once", "answer": "upon"}]
    seen: list[tuple[str, str]] = []

    def judge(prompt: str, response: str, answer: str, row: object) -> float | None:
        seen.append((prompt, answer))
        return None

    first, again, other = (
        lockstep.rollout(
            sampler, rows, judge, max_tokens=48, num_generations=2, temperature=1.5, seed=seed
        ).responses
        for seed in (0, 0, 1)
    )
    assert first == again != other
    assert seen[0] == ("Once", "upon")
    assert lockstep.rollout(sampler, rows, judge, max_tokens=2).batch["score"].isnan().all()


def test_open_sampler_rejects_model_with_incorrect_decoding(tmp_path: Path) -> None:
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    fields = {
        **sizes,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 64,
        "num_local_experts": 2,
    }
    config = AutoConfig.for_model(
        "minimax", **fields, layer_types=["linear_attention", "full_attention"]
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="minimax"):
        lockstep.open_sampler(tmp_path)
    learner = lockstep.open_learner(tmp_path)
    with pytest.raises(ModelError, match="minimax"):
        lockstep.open_sampler(tmp_path, learner)


def test_value_head_gives_value_per_token_and_frozen_learner_rejects_optim_step(model: str) -> None:
    critic = lockstep.open_learner(model, head="value", optimizer={"lr": 1e-3}, seed=3)
    sampler = lockstep.open_sampler(model)
    batch = lockstep.rollout(sampler, ["Once"], score, max_tokens=4).batch
    value_N, final_B = critic.values(batch)
    assert value_N.shape == batch.tokens.shape
    assert final_B.shape == (1,)
    assert isinstance(sampler, TextSampler)
    reference = lockstep.open_learner(model)
    with pytest.raises(AssertionError, match="has no optimizer"):
        reference.optim_step()


@pytest.mark.full
@pytest.mark.needs("gloo")
def test_python_loop_on_two_ranks_and_two_samplers_matches_one_of_each(
    model: str, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, lockstep\n"
        "from lockstep.losses.cross_entropy import CrossEntropyLoss\n"
        "def main(model, ranks, replicas):\n"
        "    learner = lockstep.open_learner(model, optimizer={'lr': 1e-3}, parallel={'dp': "
        "ranks})\n"
        "    sampler = lockstep.open_sampler(model, learner, replicas=replicas)\n"
        "    tensors = lockstep.sync(learner, sampler).tensors\n"
        "    score = lambda *asked: 1.0\n"
        "    batch = lockstep.rollout(sampler, ['Once', 'A dog'], score, max_tokens=8, "
        "num_generations=2).batch\n"
        "    learner.forward_backward(batch, CrossEntropyLoss())\n"
        "    learner.optim_step()\n"
        "    print(batch.tokens.tolist(), tensors, round(float(learner.logprobs(batch).sum()), "
        "3))\n"
        "if __name__ == '__main__':\n"
        "    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))\n"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    results = [
        subprocess.run(
            [sys.executable, str(program), model, *sizes],
            capture_output=True,
            text=True,
            env=env,
            check=True,
        )
        for sizes in (("1", "1"), ("2", "2"))
    ]
    assert results[0].stdout == results[1].stdout


def test_reward_receives_response_as_exact_continuation_of_prompt(model: str) -> None:
    """Also by a tokenizer that drops the space before the first word of a text."""
    sampler = lockstep.open_sampler(model)
    seen: list[str] = []
    rollouts = lockstep.rollout(
        sampler, ["Once upon a time there was"], lambda _, response, *__: seen.append(response), max_tokens=8,
        num_generations=4,
    )  # fmt: skip
    whole = [
        sampler.source.tokenizer.decode(tokens[1:].tolist())
        for tokens in rollouts.batch.sequences()
    ]
    assert whole == [f"Once upon a time there was{response}" for response in seen]
    assert seen == rollouts.responses
    assert all(response.startswith(" ") for response in seen)


def test_loaded_learner_has_same_logprobs_and_save_rejects_existing_folder(
    model: str, tmp_path: Path
) -> None:
    learner = lockstep.open_learner(model, optimizer={"lr": 1e-2})
    batch = lockstep.rollout(lockstep.open_sampler(model), ["Once"], score, max_tokens=4).batch
    batch = batch.with_columns({"advantage": batch.mask.float()})
    learner.forward_backward(batch, Reinforce())
    learner.optim_step()
    lockstep.save(learner, str(tmp_path / "kept"))
    assert (tmp_path / "kept" / "model.safetensors").is_file()
    other = lockstep.open_learner(model, optimizer={"lr": 1e-2})
    lockstep.load(other, tmp_path / "kept")
    assert torch.equal(other.logprobs(batch), learner.logprobs(batch))
    with pytest.raises(InputError, match="already exists and is not an empty folder"):
        lockstep.save(learner, tmp_path / "kept")
    with pytest.raises(InputError, match="has no learner; use a folder written by"):
        lockstep.load(learner, tmp_path / "absent")
