"""Every command of the documentation is run: `lockstep …` for two steps, `make …` as far as make says without doing."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.cli import main
from lockstep.config import load
from lockstep.recipe import Common

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHORT = ["run.max_steps=2", "run.validate_every=0", "learner.device=cpu"]
TINY = [
    "data.max_prompt_tokens=400", "data.max_validation_samples=4", "sampling.max_tokens=32",
    "validation_sampling.max_tokens=32", "ppo.num_prompts_per_step=4", "ppo.global_batch_size=4",
]  # fmt: skip

FEW = [
    "data.max_prompt_tokens=400", "data.max_validation_samples=2", "greedy.max_tokens=8", "sampling.max_tokens=8",
    "learner.device=cpu",
]  # fmt: skip

EXAMINED = [
    "backends=[hf,torch]", "grid.lengths=[16]", "grid.methods=[{temperature: 1.0}]", "grid.batch_sizes=[8]",
    "grid.repeats=2",
]  # fmt: skip
CHATTED = [
    "data.max_prompt_tokens=100", "sft.max_tokens=200", "dpo.max_tokens=200", "sft.global_batch_size=4",
    "dpo.global_batch_size=4",
]  # fmt: skip
CHAT = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
ANSWERED = ["data.max_prompts=2", "data.overlong_prompts=skip", "sampling.max_tokens=8", "learner.device=cpu"]

JUDGED = [
    "judge.chat=false", "judge.max_prompt_tokens=400", "judge.sampling.max_tokens=8", "data.max_prompts=2",
    "learner.device=cpu",
]  # fmt: skip
SIZES = re.findall(r"`(\w+\.json)`:\n\n```json\n(.*?)```", (ROOT / "docs/guides/plan.md").read_text(), re.DOTALL)
"""Names and content of the configurations of models that are not here."""
[MIXED] = re.findall(r"```jsonl\n(.*?)```", (ROOT / "docs/guides/rewards.md").read_text(), re.DOTALL)


def commands(program: str) -> list[str]:
    """Lines of shell blocks that call a program, continuation lines joined."""
    blocks = [block for page in PAGES for block in re.findall(r"```(?:bash|sh)\n(.*?)```", page.read_text(), re.DOTALL)]
    lines = [
        re.sub(r"^(exec |\.venv/bin/)+", "", line.strip())
        for block in blocks
        for line in block.replace("\\\n", " ").splitlines()
    ]
    return sorted({" ".join(line.split()) for line in lines if line.startswith(f"{program} ")})


def test_there_is_something_to_run() -> None:
    assert any("ppo_arithmetic" in command for command in commands("lockstep"))
    assert "make quickstart" in commands("make")
    assert len(SIZES) == 2


@pytest.mark.parametrize("command", commands("make"))
def test_make_knows_the_target(command: str) -> None:
    subprocess.run([*shlex.split(command), "--dry-run"], cwd=ROOT, check=True, capture_output=True)


@pytest.mark.needs("gloo")
@pytest.mark.parametrize("command", commands("python"))
def test_example_runs(command: str) -> None:
    """Each says how far it is from one process; what that may be, only rounding in fp32 decides."""
    _, *arguments = shlex.split(command)
    run = subprocess.run([sys.executable, *arguments], cwd=ROOT, check=True, capture_output=True, text=True)
    differences = [float(number) for number in re.findall(r"\d\.\de-\d+", run.stdout)]
    assert differences
    assert max(differences) < 1e-4


@pytest.fixture(scope="session")
def my_run() -> str:
    """The run that documentation speaks of; made in the working folder of the first who asks, which is `workplace`."""
    options = ["run=my_run", "run.best.metric=train/reward", *SHORT, *warmed_up_shortly("ppo_arithmetic")]
    assert main(["train", "ppo_arithmetic", *options]) == 0
    return "my_run"


def warmed_up_shortly(recipe: str) -> list[str]:
    """What is trained first stops after two steps, too; neither makes more rows than they take."""
    training = load(recipe).training
    few = [f"data.{kind}.demonstrations=2048" for kind in made(training) if getattr(training.data, kind).demonstrations]
    first = training.model.from_recipe
    if first is None:
        return few
    [kind] = made(load(first).training)
    data = f"data: {{{kind}: {{demonstrations: 2048}}}}"
    Path(f"{first}_shortly.yaml").write_text(f"base: {first}\nrun: {{max_steps: 2, validate_every: 0}}\n{data}\n")
    return [*few, f"model.from_recipe={first}_shortly.yaml"]


def made(recipe: Common) -> list[str]:
    """The section that makes a recipe's rows, if any does."""
    return [kind for kind in ("arithmetic", "letters") if getattr(recipe.data, kind, None) is not None]


@pytest.fixture(scope="session")
def chat_model(assets: Path, workplace: Path) -> str:
    """A real model with a chat template, and beside it rows to learn from, under the names of the documentation."""
    shutil.copytree(assets / "models/stories260K/hf", workplace / "chat_model")
    (workplace / "chat_model/chat_template.jinja").write_text(CHAT)
    for number, prefix in enumerate(("", "held_out_")):
        talks, pairs = [], []
        for n in range(8):
            ask, better = f"Who was there, {n}?", [{"role": "assistant", "content": f"Lily and {n + number} cats."}]
            talks.append({"messages": [{"role": "user", "content": ask}, *better]})
            pairs.append(
                {"prompt": ask, "chosen": better, "rejected": "Nobody.", "score_chosen": 5, "score_rejected": 1}
            )
        for name, rows in (("talks", talks), ("pairs", pairs)):
            (workplace / f"{prefix}{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return "chat_model"


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(command, marks=pytest.mark.needs("ray")) if "cluster=ray" in command else command
        for command in commands("lockstep")
    ],
)
def test_command_runs(
    command: str,
    assets: Path,
    workplace: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(workplace)
    if "my_run" in command:
        request.getfixturevalue("my_run")
    (workplace / "mixed.jsonl").write_text(MIXED)
    for name, fields in SIZES:
        (workplace / name).write_text(fields)
    chat = "CHAT_MODEL" in command
    if chat:
        command = command.replace("CHAT_MODEL", request.getfixturevalue("chat_model"))
    (workplace / "my_rewards.py").write_text("def fewest_words(prompt, response, answer, row):\n    return 1.0\n")
    real = {
        "MODEL": f"{assets}/models/stories260K/hf",
        "prompts.jsonl": f"{assets}/data/gsm8k/test.jsonl",
        "train.jsonl": f"{assets}/data/gsm8k/train.jsonl",
        "test.jsonl": f"{assets}/data/gsm8k/test.jsonl",
        "en_100_tree.jsonl": f"{assets}/data/oasst/en_100_tree.jsonl",
        "Natural_dataset.json": f"{assets}/data/llmbar/Natural_dataset.json",
    }
    _, *arguments = shlex.split(command)
    arguments = [re.sub(r"[^=]+$", lambda given: real.get(given[0], given[0]), word) for word in arguments]
    if arguments[0] == "train":
        own = {"sft": "sft_chat", "dpo": "dpo_chat"}
        fitting = [
            option for option in CHATTED if option.split(".")[0] in ("data", *(k for k in own if own[k] in command))
        ]
        arguments += warmed_up_shortly(arguments[1])
        tiny = [
            option.replace("ppo.", f"{algorithm}.")
            for algorithm in ("ppo", "grpo")
            for option in TINY
            if f"{algorithm}_gsm8k" in arguments
        ]
        arguments += SHORT + tiny + (fitting if chat else [])
    if arguments[0] == "eval":
        arguments += FEW
    if arguments[0] == "generate":
        arguments += ANSWERED + (["data.max_prompt_tokens=400"] if "MODEL" in command else [])
    if arguments[0] == "judge-eval":
        arguments += JUDGED
    if arguments[0] == "doctor":
        arguments += EXAMINED
    least = {0, 3} if arguments[0] in ("doctor", "train") else {0}  # a few tokens or steps may be too few to tell
    assert main(arguments) in least, capsys.readouterr().err
