"""Commands of the documentation that may compute on GPUs, tried where torch says that there are
eight of 80 GB.

`train` is dry-run as it stands in the guide; of a command without a dry run is asked that its
sampler can be had there. The models are small, so whether one of the size that a guide speaks of
has room is asked of `lockstep plan`.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
from pathlib import Path

import pytest
from doc_commands import ROOT, Command, commands, fate, warmed_up_shortly, with_files
from gpus import show_gpus

from lockstep.cli import main
from lockstep.cluster.placement import ProcessCounts, choose_placement
from lockstep.cluster.specs import require_sampler
from lockstep.config import SamplerSection
from lockstep.config.loading import load_recipe
from lockstep.inference.eval_recipe import EvalJudgeRecipe, EvalRecipe
from lockstep.inference.generate_recipe import GenerateRecipe

CHAT = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ eos_token }}{% endfor %}"
ANSWER = [{"role": "assistant", "content": "Lily."}]
ROWS = {
    "talks.jsonl": {"messages": [{"role": "user", "content": "Who?"}, *ANSWER]},
    "pairs.jsonl": {
        "prompt": "Who?",
        "chosen": ANSWER,
        "rejected": "Nobody.",
        "score_chosen": 5,
        "score_rejected": 1,
    },
    "prompts.jsonl": {"prompt": "Who?", "question": "Who?"},
    "train.jsonl": {"question": "How many?", "answer": "#### 3"},
    "labeled.jsonl": {"prompt": "Who?", "completion": "Lily.", "label": True},
}
EXAMPLE = ROOT / "examples/custom_algorithm"
COUNT = 1024
"""Rows of a file: as many as the largest step of these recipes takes."""


def may_use_gpus(command: Command) -> bool:
    """Whether it computes on GPUs where there are some."""
    words = shlex.split(command.text)
    if fate(command) != "run" or words[0] != "lockstep":
        return fate(command) == "gpus"
    match words[1]:
        case "eval" | "generate":
            return "learner.device=cpu" not in words
        case "train":
            with contextlib.chdir(EXAMPLE):  # where the guide of one's own algorithm is
                return load_recipe(
                    words[2], [word for word in words[3:] if "=" in word]
                ).training_recipe.learner.may_use_gpu
        case _:
            return False


COMMANDS = [each for each in commands() if may_use_gpus(each)]
TRAINING = [each.text for each in COMMANDS if each.text.split()[1] == "train"]
ASKING = [each.text for each in COMMANDS if each.text.split()[1] in ("eval", "generate")]


@pytest.fixture(scope="module")
def real(assets: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Where a model and rows are, by the names of the documentation."""
    folder = tmp_path_factory.mktemp("shared")
    model = shutil.copytree(assets / "models/stories260K/hf", folder / "model")
    (model / "chat_template.jinja").write_text(CHAT)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 8192}))
    found: dict[str, str] = dict.fromkeys(
        ("MODEL", "CHAT_MODEL", "Meta-Llama-3-8B-Instruct"), str(model)
    )
    for name, row in ROWS.items():
        for file in (name, f"held_out_{name}", name.replace("train", "test")):
            lines = [
                json.dumps(row | {"number": number + COUNT * (file != name)})
                for number in range(COUNT)
            ]
            (folder / file).write_text("\n".join(lines))
            found[file] = str(folder / file)
    return found


@pytest.mark.full
@pytest.mark.parametrize("text", TRAINING)
def test_documented_train_command_passes_dry_run_with_8_gpus(
    text: str,
    real: dict[str, str],
    in_tmp: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(EXAMPLE, in_tmp, dirs_exist_ok=True)
    (in_tmp / "my_rewards.py").write_text(
        "def brief(prompt, response, answer, row):\n    return -float(len(response))\n"
    )
    show_gpus(monkeypatch, 8)
    arguments = [word for word in with_files(text, real) if word != "--dry-run"]
    assert main([*arguments, *warmed_up_shortly(arguments[1]), "--dry-run"]) == 0, (
        capsys.readouterr().err
    )


@pytest.mark.parametrize("text", ASKING)
def test_documented_eval_or_generate_command_has_available_sampler_on_8_gpus(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    show_gpus(monkeypatch, 8)
    _, program, *words = shlex.split(text)
    recipe = (
        words[words.index("--recipe") + 1]
        if "--recipe" in words
        else {"eval": "eval_gsm8k"}.get(program, program)
    )
    overrides = [word for word in words if "=" in word and not word.startswith("data.prompt")]
    asked = load_recipe(recipe.replace("-", "_"), overrides).recipe
    match asked:
        case EvalRecipe() | GenerateRecipe():
            sampler = asked.sampler
        case EvalJudgeRecipe():
            sampler = asked.judge.sampler or SamplerSection()
        case _:
            raise AssertionError(f"{recipe} trains")
    require_sampler(sampler, asked.learner)
    choose_placement(
        asked.cluster, asked.learner, ProcessCounts.from_sections(asked.cluster, 0, sampler)
    )


FILES = ("data.train=train.jsonl", "data.validation=test.jsonl")
SIZES: list[tuple[int, int, str, tuple[str, ...]]] = [
    (1, 1, "grpo_gsm8k", ("sampler=vllm",)),
    (1, 8, "grpo_gsm8k", (
        "sampler=vllm", "learner.parallel.dp=8", "sampler.replicas=4", "sampler.tensor_parallel=2",
    )),
    (1, 8, "ppo_gsm8k", (
        "sampler=vllm", "learner.parallel.dp=2", "learner.parallel.tp=4", "critic.parallel.dp=8", "sampler.replicas=8",
    )),
    (2, 8, "grpo_gsm8k", (
        "sampler=vllm", "learner.parallel.dp=16", "sampler.replicas=16", "cluster=ray",
        "grpo.global_batch_size=32",
    )),
]  # fmt: skip


@pytest.mark.parametrize("case", SIZES, ids=lambda case: f"{case[2]} {case[0]}x{case[1]}")
def test_dry_run_and_plan_place_a_run_alike(
    case: tuple[int, int, str, tuple[str, ...]],
    in_tmp: Path,
    real: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    machines, gpus, recipe, options = case
    show_gpus(monkeypatch, gpus)
    words = [
        f"model.path={real['MODEL']}",
        *(word.replace("=", f"={in_tmp}/") for word in FILES),
        *options,
    ]
    for name in ("train.jsonl", "test.jsonl"):
        shutil.copy(real[name], in_tmp / name)
    assert main(["train", recipe, *words, "--dry-run"]) == 0
    dry = capsys.readouterr().out
    assert main(["plan", recipe, *words, "--gpus", str(machines * gpus), "--memory", "80GB"]) == 0
    page = capsys.readouterr().out
    assert "It fits: " in page
    placed = next(
        line.split(maxsplit=1)[1] for line in page.splitlines() if line.startswith("placement")
    )
    assert placed in dry
    command = shlex.split(
        next(
            line[line.index("lockstep train") :]
            for line in page.splitlines()
            if "lockstep t" in line
        )
    )
    assert any(word.startswith("sampler.kv_cache_gib=") for word in command), (
        "the engine is told what the plan assumes"
    )
    assert main([*command[1:], "--dry-run"]) == 0


def test_run_with_unsatisfiable_gpu_placement_is_rejected_by_option(
    in_tmp: Path,
    real: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    show_gpus(monkeypatch, 8)
    words = [
        f"model.path={real['MODEL']}",
        f"data.train={real['train.jsonl']}",
        f"data.validation={real['test.jsonl']}",
    ]
    for options, sentence in {
        ("learner.parallel.dp=16",): "learner.parallel asks for 16 GPUs",
        (
            "sampler.replicas=9",
            "cluster=ray",
            "sampler.transfer=shared_memory",
        ): "shared_memory a single machine",
        (
            "sampler.replicas=2",
            "sampler.transfer=cuda_ipc",
        ): "sampler.transfer=cuda_ipc cannot reach these engines",
        ("sampler.replicas=9",): "for 9 × 1, but there are 8 GPUs",
        (
            "learner.parallel.dp=8",
            "sampler.replicas=2",
            "cluster.placement=separate",
        ): "they take turns",
    }.items():
        assert (
            main(
                ["train", "grpo_gsm8k", *words, *options, "grpo.global_batch_size=32", "--dry-run"]
            )
            != 0
        )
        assert sentence in capsys.readouterr().err
