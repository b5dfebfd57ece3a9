"""Every shell command of the documentation, and what the tests do with it.

`python tests/docs/doc_commands.py` lists them. A command without one is a failure of
`test_docs.py`.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, assert_never

from lockstep.config.loading import load_recipe

ROOT = Path(__file__).parents[2]
AT_THE_TOP = ("README.md", "CONTRIBUTING.md", "AGENTS.md", "SECURITY.md")
PAGES = [*(ROOT / name for name in AT_THE_TOP), *sorted((ROOT / "docs").rglob("*.md"))]

Fate = Literal["run", "gpus", "check", "elsewhere"]
"""run: here; gpus: its dry run, where torch says there are some; check: all it names is there;
elsewhere: cannot be.
"""

ELSEWHERE = {
    "cd": (
        "goes where the next commands are typed; test_docs.py gives them the files that lie there"
    ),
    "docker": "wants a daemon; tests/docs/test_deploy.py tries what it runs",
    "hf": "downloads a model",
    "kubectl": "wants a Kubernetes cluster",
    "ray": "starts daemons that outlive it; tests of cluster=ray start a cluster within themselves",
    "sbatch": "is of Slurm",
}
"""Programs that are not run here, and why."""

OTHERS = {
    "lockstep train grpo_gsm8k model.path=hf:Qwen/Qwen2.5-0.5B-Instruct "
    "data.train=hf:datasets/openai/gsm8k/main/train "
    "data.validation=hf:datasets/openai/gsm8k/main/test": (
        "downloads a model; tests/config/test_hub.py has a hub of its own"
    ),
    "python -m vllm.entrypoints.openai.api_server --model MODEL": (
        "is a server of vLLM's build for GPUs"
    ),
    "python -m lockstep train benchmarks/ladder/rungs/self_rewarding_small.yaml --dry-run": (
        "makes a hundred thousand rows; tests/algorithms/self_rewarding/test_rewarding_itself.py "
        "trains a small one"
    ),
    **dict.fromkeys(
        (
            "lockstep train ppo_arithmetic model.path=my_model --trust "
            "my_model/modeling_sandwich.py",
            "lockstep eval RUN questions.jsonl --trust my_model/modeling_sandwich.py",
        ),
        "wants the page's own class; tests/docs/test_own_model_guide.py runs both",
    ),
    "lockstep serve MODEL --port 8000 --key sk-mine": (
        "serves until it is interrupted; tests/docs/test_serve_guide.py starts it"
    ),
    "lockstep watch my_run": (
        "serves until it is interrupted; tests/report/test_followed.py and "
        "tests/browser/test_live_page.py start it"
    ),
    (
        "lockstep eval http://localhost:8000/v1 ranked.jsonl --recipe eval_judge "
        "judge.sampler.openai.model=NAME"
    ): ("asks a server; tests/inference/test_eval_judge.py starts one"),
}
"""Commands that are not run here, and why."""

_PROGRAMS = {"lockstep", "make", "pip", "python", *ELSEWHERE}
_PREFIX = re.compile(r"^(?:(?:exec|\.venv/bin/|[A-Z_]+=\S+)\s*)+(?=\S)")
_LARGE = ("cluster.ray.address=", "Meta-Llama-3-8B-Instruct", "_1n8g_")
_BLANK = re.compile(r"…|\b(?:RECIPE|RUN|KEY|FILE|FOLDER|DATA|NAME)\b")
"""What a reader fills in and no test can."""


@dataclass(frozen=True)
class Command:
    """A command of the documentation.

    Attributes:
        text: On one line, without what only says where it is typed.
        page: Relative to the repository.
        place: A block to paste from, the middle of a sentence, or what another command prints.
    """

    text: str
    page: str
    place: Literal["block", "sentence", "output"]

    @property
    def program(self) -> str:
        """What is started."""
        return self.text.split()[0]

    @property
    def is_large(self) -> bool:
        """Whether it is for GPUs alone."""
        return any(sign in self.text for sign in _LARGE)


def fate(command: Command) -> Fate | None:
    """What becomes of a command; None where none is written."""
    if command.program in ELSEWHERE or command.text in OTHERS:
        return "elsewhere"
    if command.program not in _PROGRAMS:
        return None
    match command.place:
        case "sentence" | "output":
            return "check"
        case "block":
            pass
        case _:
            assert_never(command.place)
    if command.program == "pip" or _BLANK.search(command.text):
        return "check"
    if command.program != "lockstep" or not command.is_large:
        return "run"
    return "gpus" if command.text.split()[1] in ("plan", "train") else "check"


def commands() -> list[Command]:
    """Each once, in the order in which they are typed."""
    return list(dict.fromkeys(command for page in PAGES for command in _of(page)))


def blocks(page: Path) -> list[tuple[str, str]]:
    """Language and text of the blocks of a page."""
    return re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def with_files(command: str, real: Mapping[str, str]) -> list[str]:
    """What a command tells its program, with files that are here under other names."""
    _, *arguments = shlex.split(command)
    return [
        re.sub(r"[^=]+$", lambda given: real.get(given[0], given[0]), word) for word in arguments
    ]


def _of(page: Path) -> Iterator[Command]:
    name = str(page.relative_to(ROOT))
    for language, block in blocks(page):
        lines = [" ".join(line.split()) for line in block.replace("\\\n", " ").splitlines()]
        if language in ("bash", "sh"):
            texts = [_bare(line) for line in lines if line and not line.startswith("#")]
            yield from (Command(text, name, "block") for text in texts if text)
            continue
        for line in lines:
            text = _bare(line)
            if text.split(" ")[0] in _PROGRAMS and " " in text and language != "python":
                yield Command(text, name, "output")
    sentences = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for code in re.findall(r"(?<!`)`([^`]+)`(?!`)", sentences):
        text = _bare(" ".join(code.split()))
        if text.split(" ")[0] in _PROGRAMS and " " in text:
            yield Command(text, name, "sentence")


def _bare(line: str) -> str:
    """A line without comment, without what comes before its program, and not in the background."""
    line = _PREFIX.sub("", re.sub(r"\s(#|\|\|)\s.*$", "", line)).removesuffix("&").strip()
    return "" if re.fullmatch(r"\w+=(\$!|\$\(.*\))", line) else line  # a variable of a script


def warmed_up_shortly(recipe: str) -> list[str]:
    """What is trained first stops after two steps, too; neither makes more rows than they take."""
    tree = load_recipe(recipe).dump_options()
    task = tree["data"]["task"] or {"demonstrations": 0}
    few = ["data.task.demonstrations=2048"] if task["demonstrations"] else []
    first = tree["model"]["from_recipe"]
    if first is None:
        return few
    data = "data: {task: {demonstrations: 2048}}"
    Path(f"{first}_shortly.yaml").write_text(
        f"base: {first}\nrun: {{max_steps: 2, validate_every: 0}}\n{data}\n"
    )
    return [*few, f"model.from_recipe={first}_shortly.yaml"]


if __name__ == "__main__":
    for each in commands():
        print(f"{fate(each)!s:9} {each.page}: {each.text}")
    print(dict(Counter(fate(each) for each in commands())))
