"""Every command of the documentation is tried, as `doc_commands.fate` says.

`lockstep …` is run here, `train` for two steps, or as a dry run where another test trains so, and
`make …` as far as make says without doing; of the others is asked that what they name is there.
`test_docs_on_gpus.py` tries what may compute on GPUs.
"""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from doc_commands import PAGES, ROOT, blocks, commands, fate, warmed_up_shortly, with_files
from row_files import write_rows

from lockstep.cli import build_parser, main
from lockstep.config.loading import load_recipe

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
ANSWERED = [
    "data.max_prompts=2",
    "data.overlong_prompts=skip",
    "sampling.max_tokens=8",
    "learner.device=cpu",
]

JUDGED = [
    "judge.chat=false", "judge.max_prompt_tokens=400", "judge.sampling.max_tokens=8", "data.max_prompts=2",
    "learner.device=cpu",
]  # fmt: skip
SIZES = re.findall(
    r"`([\w/]+\.json)` is:\n\n```json\n(.*?)```",
    (ROOT / "docs/guides/plan.md").read_text(),
    re.DOTALL,
)
"""Names and content of the configurations of models that are not here."""
FOREIGN = re.findall(
    r"`(\w+\.\w+)`:\n\n```\w+\n(.*?)```", (ROOT / "docs/coming_from.md").read_text(), re.DOTALL
)
"""Names and content of configs of other libraries."""
RATHER_LONG = ("sampler=vllm", "vllm]", "megatron", "run=", "grpo_gsm8k", "lockstep sweep")
PROVEN = (
    *(file.stem for file in (ROOT / "tests/golden").glob("*.txt")),
    "learner",
    "cluster=",
    "_ahead",
    "run=",
    "=my_run",
)
"""What stands in a command whose training other tests have, on fewer rows: here its dry run is
tried.
"""
[REWARD] = re.findall(
    r"```python\n(.*?)```", (ROOT / "docs/guides/first_steps.md").read_text(), re.DOTALL
)
[MIXED] = re.findall(
    r"```jsonl\n(.*?)```", (ROOT / "docs/guides/rewards.md").read_text(), re.DOTALL
)


COMMANDS = commands()


def texts(program: str, what: str) -> list[str]:
    """Commands of a program with a fate, each once."""
    return list(
        dict.fromkeys(
            each.text for each in COMMANDS if each.program == program and fate(each) == what
        )
    )


def test_every_documented_command_has_a_declared_check() -> None:
    """Of a new program in tests/docs/doc_commands.py; what is to be typed is in blocks of bash, so
    that it is.
    """
    assert not [each for each in COMMANDS if fate(each) is None]
    assert not [
        each for each in COMMANDS if each.place == "output" and each.page != "docs/guides/plan.md"
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_bash_blocks_of_docs_have_valid_syntax(page: Path) -> None:
    for language, block in blocks(page):
        if language == "bash":
            subprocess.run(["bash", "-n"], input=block, check=True, capture_output=True, text=True)


def test_every_documented_make_target_exists() -> None:
    targets = {
        word
        for command in (*texts("make", "run"), *texts("make", "check"))
        for word in shlex.split(command)[1:]
    }
    assert targets
    subprocess.run(
        ["make", "--dry-run", *sorted(targets)], cwd=ROOT, check=True, capture_output=True
    )


@pytest.mark.parametrize("command", texts("pip", "check"))
def test_every_documented_pip_extra_exists(command: str) -> None:
    """Of packages of others, that constraints.txt or an extra knows them is not asked: those are
    taken away.
    """
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for word in shlex.split(command):
        name, _, extras = word.removesuffix("]").partition("[")
        if extras:
            assert name in (known["name"], ".")
            assert set(extras.split(",")) <= set(known["optional-dependencies"])


@pytest.mark.parametrize("command", texts("python", "check"))
def test_every_documented_python_script_or_module_exists(command: str) -> None:
    _, option, module, *_ = command.split()
    if option.endswith(".py"):
        assert (ROOT / option).is_file()
        return
    assert option == "-m"
    path = ROOT / module.replace(".", "/")
    assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()


@pytest.mark.parametrize("command", texts("lockstep", "check"))
def test_documented_lockstep_command_uses_existing_options_and_recipe_keys(command: str) -> None:
    """Subcommand, options, recipe and the recipe's keys; values that are left to the reader are not
    looked at.
    """
    words = [word for word in shlex.split(command)[1:] if word != "…"]
    if words[0] == "--traceback":
        del words[0]
    [named] = [
        action
        for action in build_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    ]
    parser = named.choices[words[0]]
    for inner in [
        action for action in parser._actions if isinstance(action, argparse._SubParsersAction)
    ]:
        parser = inner.choices[words[1]] if words[1:] else parser
    known = {option for action in parser._actions for option in action.option_strings}
    assert {word for word in words if word.startswith("--")} <= known
    if words[0] in ("train", "plan", "config") and words[1:] and words[1] != "RECIPE":
        assert load_recipe(
            words[1], [re.sub(r"=[A-Z]$", "=1", word) for word in words[2:] if "=" in word]
        )


@pytest.mark.needs("gloo")
@pytest.mark.parametrize("command", texts("python", "run"))
def test_documented_example_runs_with_differences_below_1e_4(command: str) -> None:
    """Each says how far it is from one process; what that may be, only rounding in fp32 decides."""
    _, *arguments = shlex.split(command)
    run = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, check=True, capture_output=True, text=True
    )
    differences = [float(number) for number in re.findall(r"\d\.\de-\d+", run.stdout)]
    assert differences
    assert max(differences) < 1e-4


@pytest.fixture(scope="session")
def my_run() -> str:
    """The run that documentation speaks of; made in the working folder of the first who asks, which
    is `workplace`.
    """
    options = [
        "run=my_run",
        "run.best.metric=train/reward",
        *SHORT,
        *warmed_up_shortly("ppo_arithmetic"),
    ]
    assert main(["train", "ppo_arithmetic", *options]) == 0
    return "my_run"


@pytest.fixture(scope="session")
def my_lora_run() -> str:
    """A run of adapters."""
    options = [
        "run=my_lora_run",
        "learner.lora.rank=4",
        *SHORT,
        *warmed_up_shortly("sft_arithmetic"),
    ]
    assert main(["train", "sft_arithmetic", *options]) == 0
    return "my_lora_run"


@pytest.fixture(scope="session")
def my_reward_run() -> str:
    """A reward model."""
    options = ["run=my_reward_run", *SHORT, *warmed_up_shortly("reward_arithmetic")]
    assert main(["train", "reward_arithmetic", *options]) == 0
    return "my_reward_run"


@pytest.fixture(scope="session")
def chat_model(assets: Path, workplace: Path) -> str:
    """A real model with a chat template, and beside it rows to learn from, under the names of the
    documentation.
    """
    shutil.copytree(assets / "models/stories260K/hf", workplace / "chat_model")
    (workplace / "chat_model/chat_template.jinja").write_text(CHAT)
    for number, prefix in enumerate(("", "held_out_")):
        talks, pairs = [], []
        for n in range(8):
            ask, better = (
                f"Who was there, {n}?",
                [{"role": "assistant", "content": f"Lily and {n + number} cats."}],
            )
            talks.append({"messages": [{"role": "user", "content": ask}, *better]})
            pairs.append(
                {
                    "prompt": ask,
                    "chosen": better,
                    "rejected": "Nobody.",
                    "score_chosen": 5,
                    "score_rejected": 1,
                }
            )
        for name, rows in (("talks", talks), ("pairs", pairs)):
            write_rows(workplace / f"{prefix}{name}.jsonl", rows)
    return "chat_model"


LABELED = '{{"prompt": "Once upon a time {}", "completion": " there was a cat.", "label": {}}}\n'


def marks(command: str) -> list[pytest.MarkDecorator]:
    """What starts another engine or takes several runs waits for `make test-all`."""
    dry = command.startswith("lockstep train") and is_proven(command)
    if "gpu-check" in command:
        return [pytest.mark.proof]
    return [pytest.mark.full] if not dry and any(part in command for part in RATHER_LONG) else []


def is_proven(command: str) -> bool:
    return any(part in command for part in PROVEN)


@pytest.mark.parametrize(
    "command", [pytest.param(command, marks=marks(command)) for command in texts("lockstep", "run")]
)
def test_documented_lockstep_command_runs(
    command: str,
    assets: Path,
    workplace: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(workplace)
    for made in ("my_run", "my_lora_run", "my_reward_run"):
        if re.search(rf"(?<!run=)\b{made}\b", command):
            request.getfixturevalue(made)
    for file in (ROOT / "examples/custom_algorithm").glob("*.*"):
        shutil.copy(file, workplace)
    (workplace / "mixed.jsonl").write_text(MIXED)
    for name, fields in [*SIZES, *FOREIGN]:
        (workplace / name).parent.mkdir(exist_ok=True)
        (workplace / name).write_text(fields)
    (workplace / "from_verl.yaml").unlink(missing_ok=True)
    if "from_verl.yaml" in command and "convert" not in command:
        main(["convert", "run_verl.sh", "--out", "from_verl.yaml"])
    chat = "CHAT_MODEL" in command
    if chat:
        command = command.replace("CHAT_MODEL", request.getfixturevalue("chat_model"))
    (workplace / "my_rewards.py").write_text(REWARD)
    (workplace / "labeled.jsonl").write_text(
        "".join(map(LABELED.format, range(64), ["true", "false"] * 32))
    )
    arguments = with_files(
        command,
        {
            "MODEL": f"{assets}/models/stories260K/hf",
            "prompts.jsonl": f"{assets}/data/gsm8k/test.jsonl",
            "train.jsonl": f"{assets}/data/gsm8k/train.jsonl",
            "test.jsonl": f"{assets}/data/gsm8k/test.jsonl",
            "en_100_tree.jsonl": f"{assets}/data/oasst/en_100_tree.jsonl",
            "Natural_dataset.json": f"{assets}/data/llmbar/Natural_dataset.json",
        },
    )
    if arguments[0] == "train":
        own = {"sft": "sft_chat", "dpo": "dpo_chat"}
        fitting = [
            option
            for option in CHATTED
            if option.split(".")[0] in ("data", *(k for k in own if own[k] in command))
        ]
        arguments += warmed_up_shortly(arguments[1])
        tiny = [
            option.replace("ppo.", f"{algorithm}.")
            for algorithm in ("ppo", "grpo")
            for option in TINY
            if f"{algorithm}_gsm8k" in arguments
        ]
        short = SHORT[1:] if "run.max_steps=1" in arguments else SHORT
        arguments += short + tiny + (fitting if chat else []) + ["--dry-run"] * is_proven(command)
    if arguments[0] == "eval":
        arguments += JUDGED if any("eval_judge" in word for word in arguments) else FEW
    if arguments[0] == "generate":
        arguments += ANSWERED + (["data.max_prompt_tokens=400"] if "MODEL" in command else [])
    if arguments[0] == "doctor":
        arguments += EXAMINED
    if arguments[0] == "certify":
        arguments += ["--count", "3", "--max-tokens", "4"]
    # a few tokens or steps may be too few to tell
    least = {0, 3} if arguments[0] in ("doctor", "train") else {0}
    assert main(arguments) in least, capsys.readouterr().err
