"""`lockstep generate` on a real model: every record, in order, whatever is killed."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from killing import meanwhile, sampler_process, wait_for
from row_files import write_rows
from tiers import full

from lockstep.algorithms.rows import group_files, open_prompts
from lockstep.cli import main
from lockstep.cluster.sampler_pool import RequestBlock
from lockstep.cluster.specs import LearnerSpec, SamplerSpec
from lockstep.config import LearnerSection, SamplerSection
from lockstep.core.batch import Batch
from lockstep.core.types import SamplingParams
from lockstep.inference import generate as module
from lockstep.inference.generate import generate
from lockstep.inference.generate_recipe import GenerateRecipe, generate_recipe
from lockstep.models.source import open_source
from lockstep.report.progress import RunProgress
from lockstep.rollouts.rollout import build_requests
from lockstep.samplers.base import gather_pieces

Go = Callable[..., Path]
SMALL = [
    "sampling.max_tokens=8",
    "data.max_prompt_tokens=64",
    "learner.device=cpu",
    "learner.dtype=fp32",
]
JAGGED = (
    '{"question": "Once upon a time", "zip": "007", "price": 3.10, "big": 123456789012345678901, '
    '"small": 1e-7}',
    '{"question": "The dog", "nested": {"a": [1.50, null, true, "\u2028"], "b": {}}}',
    '{"zip": 7, "question": "A girl\\nnamed \\"Lily\\"", "price": "3.10"}',
    '{"question": "Tom and Sam"}',
    '{"question": "The sun", "answer": "is a star", "minus": -0}',
)
CHAT = (
    "{% for m in messages %}{% if m.role not in ['system', 'user', 'assistant'] %}{{ "
    "raise_exception('no ' + m.role) }}{% endif %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% "
    "if add_generation_prompt %}assistant:{% endif %}"
)


class Here:
    """Stands where replicas do, with one sampler in this process: quick, where processes are not
    what is tested.
    """

    def __init__(
        self, spec: SamplerSpec, shown: RunProgress, workers: contextlib.ExitStack
    ) -> None:
        self._sampler = spec.build()

    def generate_blocks(
        self, blocks: Iterable[RequestBlock], sampling: SamplingParams
    ) -> Iterator[tuple[int, Batch]]:
        """Each block twice as late as it could be, so that they come in another order."""
        waiting: list[RequestBlock] = []
        for block in blocks:
            waiting.append(block)
            if len(waiting) == 2:
                yield self._answered(waiting.pop(), sampling)
        for block in waiting:
            yield self._answered(block, sampling)

    def _answered(self, block: RequestBlock, sampling: SamplingParams) -> tuple[int, Batch]:
        number, requests = block
        return number, gather_pieces(self._sampler.pieces(requests, sampling))


def furnish(folder: Path, assets: Path) -> None:
    """Copies the real model, and gives it a chat template."""
    shutil.copytree(
        assets / "models/stories260K/hf", folder / "model", copy_function=shutil.copyfile
    )
    os.chmod(folder / "model", 0o755)
    (folder / "model/chat_template.jinja").write_text(CHAT)


@pytest.fixture
def model(assets: Path, in_tmp: Path) -> str:
    furnish(in_tmp, assets)
    (in_tmp / "rows.jsonl").write_text("\n\r\n".join(JAGGED))
    return "model"


@pytest.fixture
def go(model: str, monkeypatch: pytest.MonkeyPatch) -> Go:
    """Generates in this process, with overrides; returns the folder."""
    monkeypatch.setattr(module, "start_sampler_pool", Here)

    def generated(folder: str | None, *overrides: str, data: str = "rows.jsonl") -> Path:
        return generate(generate_recipe(model, data, [*SMALL, *overrides], folder=folder))

    return generated


def lines(folder: Path | str) -> list[str]:
    return (Path(folder) / "generations.jsonl").read_text(encoding="utf-8").split("\n")[:-1]


def records(folder: Path | str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines(folder)]


def test_generation_record_keeps_row_text_and_every_response(go: Go) -> None:
    folder = go("out", "num_generations=3", "run.save_every=2", "sampling.max_tokens=40")
    found = records(folder)
    assert [record["id"] for record in found] == [f"rows.jsonl:{line}" for line in (1, 3, 5, 7, 9)]
    for line, row in zip(lines(folder), JAGGED, strict=True):
        assert line.endswith(f'"metadata": {row}}}')
    for record in found:
        assert record["prompt"] == record["metadata"]["question"]
        assert len(set(record["responses"])) == 3
        for text, tokens, reason in zip(
            record["responses"], record["num_tokens"], record["finish_reasons"], strict=True
        ):
            assert text
            assert (tokens == 40) if reason == "length" else (reason == "stop" and 0 < tokens <= 40)
        assert not {"messages", "logprobs"} & record.keys()
    assert sorted(path.name for path in folder.iterdir()) == [
        ".lock", "environment.json", "generations.jsonl", "inputs.json", "recipe.yaml", "summary.json",
    ]  # fmt: skip


def test_truncated_generations_are_kept_flagged_and_counted(
    go: Go, capsys: pytest.CaptureFixture[str]
) -> None:
    """The model ends a story of itself where it is asked for the end."""
    write_rows("ends.jsonl", [{"question": "They lived happily ever after. The"}] * 6)
    folder = go("out", "num_generations=8", "sampling.max_tokens=48", data="ends.jsonl")
    reasons = [reason for record in records(folder) for reason in record["finish_reasons"]]
    summary = json.loads((folder / "summary.json").read_text())
    assert 0 < reasons.count("length") < len(reasons) == summary["responses"] == 48
    assert summary["unfinished_responses"] == reasons.count("length")
    assert summary["tokens"] == sum(sum(record["num_tokens"]) for record in records(folder))
    ended = [text for r in records(folder) for text, why in zip(r["responses"], r["finish_reasons"], strict=True)
             if why == "stop"]  # fmt: skip
    assert not any("</s>" in text or "<s>" in text for text in ended)
    assert (
        f"6 prompts, 48 responses ({reasons.count('length')} truncated)" in capsys.readouterr().out
    )


def test_generated_logprobs_equal_sampler_and_learner_logprobs(go: Go) -> None:
    shaped = ["sampling.temperature=0.8", "sampling.top_k=20", "num_generations=2"]
    folder = go("out", "logprobs=true", *shaped)
    recipe = generate_recipe("model", "rows.jsonl", [*SMALL, *shaped]).recipe
    assert isinstance(recipe, GenerateRecipe)
    source, section = open_source("model"), LearnerSection(device="cpu").compute_exactly()
    prompts = open_prompts(
        group_files("rows.jsonl"), recipe.data.in_order, source.tokenizer
    ).read_first()
    sampler, requests = (
        SamplerSpec("model", SamplerSection(), section).build(),
        build_requests(prompts, 0, 2, 0, "generation"),
    )
    batch = gather_pieces(sampler.pieces(requests, source.sampling(recipe.sampling)))
    scored = batch.with_columns(
        {"scored": LearnerSpec("model", "logits", section, None, 0).build().logprobs(batch)}
    )
    written = [own for record in records(folder) for own in record["logprobs"]]
    for own, mask, drawn, learned in zip(
        written, *map(scored.sequences, ("mask", "sampler_logprob", "scored")), strict=True
    ):
        assert own == drawn[mask].tolist() == learned[mask].tolist()
    assert [len(own) for own in written] == [
        n for record in records(folder) for n in record["num_tokens"]
    ]


@pytest.mark.parametrize(
    "option",
    [
        "seed=5", "sampling.temperature=0.3", "sampling.top_k=2", "sampling.top_p=0.2", "sampling.max_tokens=3",
        "data.prompt='{question} and'",
    ],
)  # fmt: skip
def test_each_generation_option_changes_the_responses(go: Go, option: str) -> None:
    plain, changed = records(go("plain")), records(go("changed", option))
    assert [record["responses"] for record in plain] != [record["responses"] for record in changed]


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "shaped", [(), full(("sampling.temperature=0.8", "sampling.top_k=20", "sampling.top_p=0.9"))]
)
def test_generation_file_does_not_depend_on_batch_size_or_block_size(
    go: Go, dtype: str, shaped: tuple[str, ...]
) -> None:
    write_blocks("some.jsonl", 8)
    asked = (
        f"learner.dtype={dtype}",
        "num_generations=2",
        "sampling.max_tokens=24",
        "logprobs=true",
        *shaped,
    )
    first, *others = (
        go(
            f"by-{size}-{block}",
            *asked,
            f"sampler.max_batch_size={size}",
            f"run.save_every={block}",
            data="some.jsonl",
        )
        for size, block in ((1, 32), (7, 32), (256, 32), (256, 3))
    )
    assert all(content(str(other)) == content(str(first)) for other in others)
    assert len({text for record in records(first) for text in record["responses"]}) > 20


def test_over_long_prompts_can_be_skipped_and_are_counted(go: Go) -> None:
    long = "Once upon a time there was a dog. " * 4 + "The cat"
    write_rows("long.jsonl", [{"question": "A cat"}, {"question": long}, {"question": "A cow"}])
    skipped = go(
        "skip", "data.max_prompt_tokens=12", "data.overlong_prompts=skip", data="long.jsonl"
    )
    assert [record["id"] for record in records(skipped)] == ["long.jsonl:1", "long.jsonl:3"]
    assert json.loads((skipped / "summary.json").read_text())["skipped_rows"] == 1


def test_finished_generation_is_reused_and_changed_options_use_another_folder(
    go: Go, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = go(None, "run.save_every=2")
    told, before = capsys.readouterr().out, (folder / "generations.jsonl").stat()
    for same in ("sampler.replicas=3", "sampler.timeout_s=60"):
        assert go(None, "run.save_every=2", same) == folder
        assert capsys.readouterr().out == told
    assert (folder / "generations.jsonl").stat() == before
    assert folder.parent.name == "generations"
    assert folder.name.startswith("model-rows-")
    others = {
        go(None, "run.save_every=2", other)
        for other in ("seed=1", "run.save_every=3", "num_generations=2")
    }
    assert len(others | {folder}) == 4
    with pytest.raises(ValueError, match=r"holds other generations:\n  recipe\.seed was 0, is 1"):
        go(str(folder), "run.save_every=2", "seed=1")


@pytest.mark.parametrize(("left", "resumed"), [(0, 0), (20, 0), (-30, 4), (None, 5)])
def test_generation_resumes_from_partial_or_torn_file_to_identical_bytes(
    go: Go, capsys: pytest.CaptureFixture[str], left: int | None, resumed: int
) -> None:
    """Nothing, a torn block, a torn block after whole ones, and all without a summary."""
    whole = go("whole", "run.save_every=2")
    content = (whole / "generations.jsonl").read_bytes()
    torn = Path(shutil.copytree(whole, "torn"))
    (torn / "generations.jsonl").write_bytes(content[:left])
    (torn / "summary.json").unlink()
    capsys.readouterr()
    assert go("torn", "run.save_every=2") == torn
    assert (torn / "generations.jsonl").read_bytes() == content
    assert (torn / "summary.json").read_bytes() == (whole / "summary.json").read_bytes()
    assert (f"resumes: {resumed} prompts" in capsys.readouterr().err) == (0 < resumed < 5)


def test_generation_from_run_uses_its_sampling_seed_and_prompt_template(
    run: Callable[..., Any], in_tmp: Path
) -> None:
    run("sampling.temperature=0.7", "seed=3", "sampler.max_batch_size=5")
    loaded = generate_recipe("run", "run/data/validation.jsonl", ["data.max_prompts=3"])
    tree = loaded.dump_options()
    assert (tree["model"]["path"], tree["data"]["prompt"], tree["data"]["max_prompt_tokens"]) == (
        "run/final", "{question}\n", 64,
    )  # fmt: skip
    assert (tree["sampling"]["temperature"], tree["sampling"]["max_tokens"]) == (0.7, 12)
    assert (tree["seed"], tree["sampler"]["max_batch_size"]) == (3, 5)
    assert loaded.name == "run-validation"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["model", "rows.jsonl", "sampling.temperature=0", "num_generations=2"],
            "so num_generations must be 1",
        ),
        (
            ["model", "rows.jsonl", *SMALL, "--out", "rows.jsonl/out"],
            "rows.jsonl is not a writable folder",
        ),
    ],
)
def test_generate_rejects_invalid_arguments_and_creates_no_files(
    model: str, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    before = sorted(Path().rglob("*"))
    assert main(["generate", *arguments]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert "Traceback" not in error
    assert sorted(Path().rglob("*")) == before


# From here on with samplers in processes of their own.

LONG = [*SMALL, "sampling.max_tokens=24", "num_generations=4", "run.save_every=2", "logprobs=true"]
BLOCKS, MANY_BLOCKS = 24, 160


def write_blocks(name: str, count: int) -> None:
    """An odd number of prompts, so that the last block is smaller."""
    names = ("Lily", "Tom", "The cat", "A big red ball", "Mom", "In the park, a dog", "Sam and Max")
    write_rows(
        name, ({"question": names[i % 7] + " ran" * (i % 5), "n": i} for i in range(2 * count - 1))
    )


def words(data: str, folder: str, *overrides: str) -> list[str]:
    return ["generate", "model", data, "--out", folder, *LONG, *overrides]


def content(folder: str) -> bytes:
    return Path(folder, "generations.jsonl").read_bytes()


@pytest.fixture(scope="module")
def furnished(assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and prompts, and in `whole` what one sampler makes of them when nothing
    disturbs it.
    """
    folder = tmp_path_factory.mktemp("generations")
    furnish(folder, assets)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_blocks("some.jsonl", BLOCKS)
        assert main(words("some.jsonl", "whole")) == 0
    return folder


@pytest.fixture
def whole(furnished: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """The undisturbed file, from within its folder."""
    monkeypatch.chdir(furnished)
    return content("whole")


def written(folder: str) -> bytes:
    file = Path(folder, "generations.jsonl")
    return file.read_bytes() if file.exists() else b""


def blocks_written(folder: str) -> int:
    return written(folder).count(b"\n") // 2


def once_written(
    folder: str, count: int, action: Callable[[], object]
) -> AbstractContextManager[None]:
    """While the block generates in this process, does something as soon as so many blocks are
    written.
    """
    return meanwhile((lambda: blocks_written(folder) >= count, action))


def kill_a_sampler() -> None:
    pid = sampler_process()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


def test_lost_sampler_stops_generation_and_rerun_gives_identical_file(
    whole: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    with once_written("ended", 3, kill_a_sampler):
        assert main(words("some.jsonl", "ended", "sampler.replicas=3")) == 1
    assert "killed by SIGKILL" in capsys.readouterr().err
    assert 3 <= blocks_written("ended") < BLOCKS
    assert whole.startswith(written("ended"))
    assert main(words("some.jsonl", "ended", "sampler.replicas=3")) == 0
    assert content("ended") == whole


@pytest.mark.parametrize(
    ("number", "code", "replicas"), [(signal.SIGINT, 130, 1), (signal.SIGTERM, 143, 2)]
)
def test_signal_stops_generation_after_current_blocks(
    whole: bytes,
    capsys: pytest.CaptureFixture[str],
    number: signal.Signals,
    code: int,
    replicas: int,
) -> None:
    folder = f"stopped_{code}"
    with once_written(folder, 2, lambda: os.kill(os.getpid(), number)):
        assert main(words("some.jsonl", folder, f"sampler.replicas={replicas}")) == code
    told = capsys.readouterr().err
    answered = written(folder).count(b"\n")
    assert 0 < answered < 2 * BLOCKS - 1
    assert f"stopped after {answered} of {2 * BLOCKS - 1} prompts: " in told
    assert whole.startswith(written(folder))


def command(data: str, folder: str, *overrides: str) -> list[str]:
    return [sys.executable, "-m", "lockstep", *words(data, folder, *overrides)]


def killed_at_any_instant(data: str, kills: int, chance: random.Random) -> list[int]:
    """Kills so many times: mostly among its blocks, now and then at any time after its start.

    Returns:
        How many blocks were written after each kill.
    """
    counts = []
    for kill in range(kills):
        before = written("killed")
        process = subprocess.Popen(
            command(data, "killed", f"sampler.replicas={1 + kill % 3}"), stderr=subprocess.DEVNULL
        )
        if kill % 4 == 3:
            time.sleep(chance.uniform(0.0, 6.0))
        else:
            there = blocks_written("killed")
            wait_for(lambda there=there: blocks_written("killed") > there, process)
            time.sleep(chance.uniform(0.0, 0.2))
        process.kill()
        assert process.wait() == -signal.SIGKILL, (
            "it was over before it could be killed; give it more prompts"
        )
        assert written("killed").startswith(before), "a block that was there is lost"
        counts.append(blocks_written("killed"))
    return counts


@pytest.mark.full
@pytest.mark.parametrize(
    ("kills", "count"), [(2, BLOCKS), pytest.param(20, MANY_BLOCKS, marks=pytest.mark.proof)]
)
def test_killed_generation_resumes_to_identical_file_without_repeating_blocks(
    whole: bytes, kills: int, count: int
) -> None:
    if count != BLOCKS:
        write_blocks("many.jsonl", count)
        assert main(words("many.jsonl", "whole_of_many")) == 0
    data, undisturbed = (
        ("some.jsonl", whole) if count == BLOCKS else ("many.jsonl", content("whole_of_many"))
    )
    shutil.rmtree("killed", ignore_errors=True)
    after = killed_at_any_instant(data, kills, random.Random(kills))
    answered = 2 * blocks_written("killed")
    last = subprocess.run(command(data, "killed"), check=True, capture_output=True, text=True)
    assert f"resumes: {answered} prompts are already answered" in last.stderr
    assert content("killed") == undisturbed
    print(
        f"{kills} kills over {count} blocks, after which there were {', '.join(map(str, after))}: "
        "none of them was"
        " lost or made again, and the file is that of an undisturbed run, byte for byte"
    )
