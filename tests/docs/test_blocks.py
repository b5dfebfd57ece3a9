"""Every block of Python on every page is run: here, or by the test that `ELSEWHERE` names."""

from __future__ import annotations

import asyncio
import io
import re
import shutil
import sys
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from doc_commands import PAGES, ROOT, blocks
from openai_server import OpenAIServer, Said, listening
from row_files import read_rows

import lockstep
from lockstep.core.types import SamplingParams
from lockstep.environments.tools import ToolSet
from lockstep.judge.options import JudgeSection
from lockstep.models.load import load_causal_lm
from lockstep.models.tokenizer import load_tokenizer
from lockstep.samplers.torch.sampler import TorchSampler

ELSEWHERE = {
    "docs/guides/sweeps.md": "tests/sweeps/test_sweep.py",
    "README.md": "tests/api/test_loop.py",
    "docs/guides/agents.md": "tests/environments/test_agents.py",
    "docs/guides/add_a_model.md": "tests/dist/test_new_family.py",
    "docs/guides/first_steps.md": "tests/docs/test_docs.py",
    "docs/guides/dumps.md": "tests/docs/test_dumps_guide.py",
    "docs/guides/logprobs.md": "tests/docs/test_logprobs_guide.py",
    "docs/guides/own_algorithm.md": "tests/docs/test_own_algorithm_guide.py",
    "docs/guides/own_model.md": "tests/docs/test_own_model_guide.py",
    "docs/guides/serve.md": "tests/docs/test_serve_guide.py",
}
"""Pages whose blocks another test runs."""
CONCEPTS = [page for page in PAGES if page.parent.name == "concepts"]
SHOWN = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```)?", re.DOTALL | re.MULTILINE)
"""A block, and what it prints where that follows."""


def python_of(name: str) -> list[str]:
    """The blocks of Python of a guide."""
    return [
        text for language, text in blocks(ROOT / f"docs/guides/{name}.md") if language == "python"
    ]


def await_elsewhere(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """What a coroutine returns; in a thread of its own, since tests with a browser leave a loop in
    theirs.
    """
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


@pytest.fixture
def run_block() -> Callable[..., dict[str, Any]]:
    """`run_block(text, **names)` runs a block as a module, and returns what it defines."""

    def run(text: str, **names: Any) -> dict[str, Any]:
        module = sys.modules["block"] = ModuleType("block")  # where dataclasses look types up
        vars(module).update(names)
        exec(text, vars(module))
        return vars(module)

    return run


def test_each_page_with_python_has_a_test() -> None:
    with_python = {
        str(p.relative_to(ROOT))
        for p in PAGES
        if any(language == "python" for language, _ in blocks(p))
    }
    here = {
        f"docs/guides/{name}.md"
        for name in re.findall(r'python_of\("(\w+)"\)', Path(__file__).read_text())
    }
    here |= {str(page.relative_to(ROOT)) for page in CONCEPTS}
    assert with_python <= here | ELSEWHERE.keys()
    assert not here & ELSEWHERE.keys()
    for page, test in ELSEWHERE.items():
        assert Path(page).name in (ROOT / test).read_text(), test


@pytest.mark.parametrize("page", CONCEPTS, ids=lambda page: page.stem)
def test_concept_page_code_prints_the_shown_output(
    page: Path, assets: Path, run_block: Callable[..., dict[str, Any]]
) -> None:
    names: dict[str, Any] = {"MODEL": str(assets / "models/stories260K/hf")}
    for text, expected in SHOWN.findall(page.read_text()):
        printed = io.StringIO()
        with redirect_stdout(printed):
            names = run_block(text, **names)
        assert printed.getvalue() == expected


def test_data_guide_custom_task_writes_correct_rows(
    in_tmp: Path, run_block: Callable[..., dict[str, Any]]
) -> None:
    [block] = python_of("data")
    files = run_block(block)["Doubles"](name="my_task.py:Doubles", highest=20).write(in_tmp)
    rows = read_rows(files.train)
    assert len(rows) == 12
    assert all(
        int(row["answer"]) == 2 * int(re.findall(r"\d+", row["question"])[0]) for row in rows
    )


def test_environments_guide_examples_give_expected_rewards_and_end(
    run_block: Callable[..., dict[str, Any]],
) -> None:
    guess, slow, shop, _ = python_of("environments")
    game = run_block(guess)["Guess"]()
    game.reset({"largest": 9}, seed=0)
    said = [game.step(text) for text in ("?", *map(str, range(1, 10)))]
    assert said[0] == ("A number, please.\n", 0.0, False)
    assert ("", 1.0, True) in said

    store = run_block(shop)["Shop"]()
    store.reset({"prices": {"pear": "2 crowns"}, "answer": "4 crowns"}, seed=0)
    tools = ToolSet(store.tools())
    assert (
        tools.schemas[0]["function"]["parameters"]["properties"]["item"]["description"]
        == "Its name, in the singular."
    )
    assert store.tools()[0]("pear") == "2 crowns"
    assert store.step("Two are 4 crowns.") == ("", 1.0, True)

    async def play() -> list[tuple[str, float, bool]]:
        service = run_block(slow)["Slow"]()
        await service.reset({}, seed=0)
        return [await service.step("?") for _ in range(3)]

    assert [end for _, _, end in await_elsewhere(play())] == [False, False, True]


def score_as_openrlhf(
    queries: list[str], prompts: list[str], labels: list[str], **kwargs: Any
) -> dict[str, Any]:
    right = [
        float(query == prompt + label)
        for query, prompt, label in zip(queries, prompts, labels, strict=True)
    ]
    return {"rewards": torch.tensor(right), "scores": torch.tensor(right), "extra_logs": {}}


def test_rewards_guide_functions_give_expected_scores(
    run_block: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, of_trl, of_openrlhf, batch, slow, several = python_of("rewards")
    score = run_block(one)["short_and_right"]
    assert score("2 + 2 =", "", "4", {}) is None
    assert score("2 + 2 =", " 4", "4", {}) == pytest.approx(0.998)
    assert run_block(of_trl)["brief"]([[{"content": " 4"}]], solution=["4"]) == [-0.002]
    monkeypatch.setitem(sys.modules, "reward_func", SimpleNamespace(reward_func=score_as_openrlhf))
    wrapped = run_block(of_openrlhf)["from_openrlhf"]
    assert [wrapped("2 + 2 =", said, " 4", {}) for said in (" 4", " 5")] == [1.0, 0.0]
    assert run_block(batch)["by_rank"](["?"] * 2, ["long", "no"], [""] * 2, [{}] * 2) == [0.5, 1.0]
    assert await_elsewhere(run_block(slow)["ask_slowly"]("2 + 2 =", " 4", "4", {})) == 1.0
    rows = [{"question": "2 + 2 =", "answer": "4"}]
    names = {"lockstep": lockstep, "rows": rows, "right": score, "well_formed": score}
    parts = run_block(several, **names)["trainer"]._loaded.recipe.reward.parts
    assert {name: part.weight for name, part in parts.items()} == {"format": 0.2, "answer": 1.0}


def test_servers_guide_code_reads_verdicts_from_judge_server(
    run_block: Callable[..., dict[str, Any]],
) -> None:
    class Polite(OpenAIServer):
        def answer(self, body: dict[str, Any]) -> Said:
            text = "yes" if "Good day" in body["messages"][0]["content"] else "no"
            message = {"role": "assistant", "content": text}
            usage = {"prompt_tokens": 9, "completion_tokens": 1}
            return 200, {
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                "usage": usage,
            }

    [block] = python_of("servers")
    server = Polite(model="my-model")
    with listening(server):
        found = run_block(block.replace("http://localhost:8000/v1", server.url))
    assert found["verdicts"] == {0: "yes", 1: "no"}


def test_judge_guide_code_gives_no_score_for_unreadable_verdict(
    assets: Path, run_block: Callable[..., dict[str, Any]]
) -> None:
    [block] = python_of("judge")
    folder = assets / "models/stories260K/hf"
    sampler, sampling = TorchSampler(load_causal_lm(folder), 1), SamplingParams(8)
    section = JudgeSection.model_validate(
        {
            "sampling": {"max_tokens": 8},
            "max_prompt_tokens": 400,
            "chat": False,
            "max_no_verdict_rate": 1.0,
        }
    )
    prompt = SimpleNamespace(messages=({"role": "user", "content": "Who?"},), id=0)
    names = {
        "section": section,
        "sampler": sampler,
        "tokenizer": load_tokenizer(folder),
        "sampling": sampling,
    }
    text = block.replace("True, 2048", "False, 400")  # this model has no chat template
    assert run_block(text, **names, prompt=prompt, response="Lily.", step=1, draw=0)["scores"] == [
        None
    ]


@pytest.mark.full
@pytest.mark.parametrize(
    ("block", "options"),
    [
        (
            python_of("evaluation")[0],
            ["data.max_validation_samples=2", "greedy.max_tokens=4", "sampling.max_tokens=4"],
        ),
        (python_of("generation")[0], ["data.max_prompts=2", "sampling.max_tokens=4"]),
    ],
    ids=["evaluation", "generation"],
)
def test_evaluation_and_generation_guide_code_writes_result_folder(
    block: str,
    options: list[str],
    assets: Path,
    in_tmp: Path,
    run_block: Callable[..., dict[str, Any]],
) -> None:
    shutil.copytree(assets / "models/stories260K/hf", in_tmp / "MODEL")
    for name in ("test.jsonl", "prompts.jsonl"):
        shutil.copy(assets / "data/gsm8k/test.jsonl", in_tmp / name)
    few = ", ".join(f'"{option}"' for option in [*options, "data.max_prompt_tokens=480"])
    text = block.replace("runs/mine", "MODEL").replace('=4"]', f'=4", {few}]')
    assert (run_block(text)["folder"] / "recipe.yaml").is_file()


@pytest.mark.full
def test_python_guide_code_trains_to_end_and_gives_doctor_verdict(
    assets: Path, in_tmp: Path, run_block: Callable[..., dict[str, Any]]
) -> None:
    """Its loss is run by `tests/api/test_loop.py`."""
    trains, examines, _ = python_of("python")
    model = str(assets / "models/stories260K/hf")
    assert run_block(trains, MODEL=model, __name__="__main__")["run"].is_finished
    assert run_block(examines, MODEL=model)["found"].verdict
