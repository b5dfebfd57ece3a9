"""`lockstep eval`: from a resolved evaluation to a folder with every response and what they come to.

    samples.jsonl   one response per line, as it was judged (`experience.evaluation.Sample`) and in which setting
    results.json    figures with intervals, made of the samples alone
    recipe.yaml, inputs.json, environment.json   every option, the sums of model and data, versions and machine

Questions are answered in blocks, and a block is written when it is judged. A stopped evaluation goes on after the last
whole one, and comes to the same numbers, for every draw is keyed by its question and its number.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lockstep.config import Loaded
from lockstep.experience.evaluation import Grading, Sample, answered, grading, lengths
from lockstep.experience.rewards import build as build_reward
from lockstep.experience.rollout import Experience
from lockstep.recipe import EvalRecipe
from lockstep.report.evaluation import RESULTS, SAMPLES, results_table
from lockstep.runtime import prepare
from lockstep.runtime.prepare import Source
from lockstep.runtime.progress import Progress, progress
from lockstep.runtime.workers import SamplerSpec
from lockstep.types import Prompt, SamplingParams

_MODEL_FILES = (".safetensors", ".json", ".jinja", ".model", ".txt")


@dataclass(frozen=True)
class Setting:
    """One way to answer every question.

    Attributes:
        name: `greedy` or `sampled`.
        sampling: The distribution that responses are drawn from.
        num_samples: Responses per question.
        ks: The k of pass@k and maj@k.
    """

    name: str
    sampling: SamplingParams
    num_samples: int
    ks: tuple[int, ...]


@dataclass(frozen=True)
class Block:
    """Questions `start` … `start + count − 1`, answered in one setting."""

    setting: Setting
    start: int
    count: int

    @property
    def responses(self) -> int:
        return self.count * self.setting.num_samples


def evaluate(loaded: Loaded) -> Path:
    """Answers and judges every question, from the first that has not been answered yet, and prints what it came to.

    Returns:
        The folder of the results.
    """
    recipe = loaded.recipe
    if not isinstance(recipe, EvalRecipe):
        raise ValueError(f"{loaded.name} is a recipe that trains; it is for: lockstep train {loaded.name}")
    source = prepare.open_source(recipe.model.path)
    settings = list(_settings(recipe, source))
    folder = _folder(loaded, recipe)
    with prepare.locked(folder):
        if not (folder / RESULTS).exists():
            _examine(recipe, settings, source, folder)
    print(f"{results_table(folder)}\n\nevaluation: {folder}")
    return folder


def _folder(loaded: Loaded, recipe: EvalRecipe) -> Path:
    """The evaluation's own: other options, weights or rows are another evaluation."""
    sums = json.dumps(_sums(Path(recipe.model.path), Path(recipe.data.validation)), indent=1) + "\n"
    digest = hashlib.sha256(f"{loaded.digest}{sums}".encode()).hexdigest()[:10]
    named = recipe.run.folder
    folder = prepare.noted_folder(loaded, Path("evals") / f"{loaded.name}-{digest}" if named is None else Path(named))
    inputs = folder / "inputs.json"
    prepare.note(inputs, sums)
    if inputs.read_text() != sums:
        raise ValueError(
            f"{folder} holds an evaluation of other weights or rows (see {inputs}); choose another folder or remove it"
        )
    return folder


def _sums(model: Path, data: Path) -> dict[str, str]:
    """SHA-256 of everything that is read from disk."""
    if not data.is_file():
        raise ValueError(f"{data}: there is no such file; name a JSONL file that exists")
    files = [path for path in sorted(model.iterdir()) if path.suffix in _MODEL_FILES]
    return {f"model/{path.name}": _sum(path) for path in files} | {f"data/{data.name}": _sum(data)}


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _settings(recipe: EvalRecipe, source: Source) -> Iterator[Setting]:
    """What the recipe asks for, where the model has room for it."""
    greedy, sampled, longest = recipe.greedy, recipe.sampling, recipe.data.max_prompt_tokens
    if greedy is not None:
        source.require_room("data.max_prompt_tokens + greedy.max_tokens", longest + greedy.max_tokens)
        sampling = SamplingParams(greedy.max_tokens, temperature=0.0, stop_token_ids=source.stop_token_ids)
        yield Setting("greedy", sampling, 1, (1,))
    if sampled is not None:
        source.require_room("data.max_prompt_tokens + sampling.max_tokens", longest + sampled.max_tokens)
        yield Setting("sampled", source.sampling(sampled), sampled.num_samples, sampled.ks)


def _examine(recipe: EvalRecipe, settings: Sequence[Setting], source: Source, folder: Path) -> None:
    """Answers what has not been answered, and writes the results."""
    with progress(f"{recipe.model.path} on {recipe.data.validation} → {folder}") as shown:
        rows = prepare.prompts(Path(recipe.data.validation), recipe.data.in_order, source.tokenizer)
        sampler = SamplerSpec(source.folder, recipe.sampler, recipe.learner).build()
        experience = Experience(sampler, rows, build_reward(recipe.reward), source.decode, recipe.seed)
        prompts, graded = rows.first(recipe.data.max_validation_samples), grading(recipe.reward)
        blocks = list(_blocks(settings, len(prompts), recipe.run.save_every))
        responses = sum(block.responses for block in blocks)
        shown.total(
            len(blocks),
            f"{len(prompts)} questions ({rows.skipped} rows skipped) → {responses} responses; "
            f"a step is {recipe.run.save_every} questions",
        )
        samples = _answered(blocks, prompts, experience, graded, folder / SAMPLES, shown)
    results = {
        "model": recipe.model.path,
        "data": recipe.data.validation,
        "questions": len(prompts),
        "skipped_rows": rows.skipped,
        "settings": {setting.name: _results(setting, samples[setting.name], graded) for setting in settings},
    }
    prepare.note(folder / RESULTS, json.dumps(results, indent=1, allow_nan=False) + "\n")


def _blocks(settings: Sequence[Setting], questions: int, size: int) -> Iterator[Block]:
    for setting in settings:
        for start in range(0, questions, size):
            yield Block(setting, start, min(size, questions - start))


def _answered(
    blocks: Sequence[Block],
    prompts: Sequence[Prompt],
    experience: Experience,
    graded: Grading,
    path: Path,
    shown: Progress,
) -> dict[str, list[Sample]]:
    """Answers the blocks that are not in the file yet. Returns the samples of each setting."""
    samples: dict[str, list[Sample]] = {block.setting.name: [] for block in blocks}
    done = _kept(blocks, path, samples)
    if done:
        shown.note(f"goes on after step {done}")
    for number, block in enumerate(blocks[done:], done + 1):
        setting, own = block.setting, prompts[block.start : block.start + block.count]
        with shown.phase(setting.name):
            new = answered(experience, own, block.start, setting.sampling, setting.num_samples)
        _append(path, setting.name, new)
        samples[setting.name] += new
        figures = graded.figures(samples[setting.name], (1,))
        tokens = sum(sample.tokens for sample in new)
        shown.step(number, {name: figure.value for name, figure in figures.items()}, tokens)
    return samples


def _kept(blocks: Sequence[Block], path: Path, samples: dict[str, list[Sample]]) -> int:
    """Reads back the whole blocks that the file begins with, and cuts off the rest. Returns how many they are."""
    if not path.exists():
        return 0
    lines = [line for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
    done = position = 0
    while done < len(blocks) and position + blocks[done].responses <= len(lines):
        own = lines[position : position + blocks[done].responses]
        samples[blocks[done].setting.name] += [_sample(line) for line in own]
        position += len(own)
        done += 1
    os.truncate(path, sum(map(len, lines[:position])))
    return done


def _sample(line: bytes) -> Sample:
    row = json.loads(line)
    del row["setting"]
    return Sample(**row)


def _append(path: Path, setting: str, samples: Sequence[Sample]) -> None:
    """One write, which the operating system has when it returns."""
    rows = ({"setting": setting, **asdict(sample)} for sample in samples)
    with path.open("ab", buffering=0) as file:
        file.write(b"".join(json.dumps(row, allow_nan=False).encode() + b"\n" for row in rows))


def _results(setting: Setting, samples: Sequence[Sample], graded: Grading) -> dict[str, Any]:
    figures = graded.figures(samples, setting.ks)
    return {
        "sampling": asdict(setting.sampling),
        "num_samples": setting.num_samples,
        "figures": {name: _plain(asdict(figure)) for name, figure in figures.items()},
        "responses": lengths(samples).floats(),
    }


def _plain(figure: dict[str, float]) -> dict[str, float | None]:
    """JSON has no word for what is no number."""
    return {name: value if value == value else None for name, value in figure.items()}
