"""What the doctor's table measures: cells, sequences, requests, prompts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from row_files import write_rows

from lockstep.config import ModelFolder
from lockstep.core.types import Prompt, Request
from lockstep_doctor.table.options import DoctorData, DoctorGrid, DoctorRecipe, SamplingMethod
from lockstep_doctor.table.plan import (
    PromptSource,
    TableCell,
    cells_of,
    clusters_of,
    count_sequences,
    put_text_before,
    requests_for,
)

SAMPLED, GREEDY = (
    TableCell(100, "real", SamplingMethod(), 8),
    TableCell(100, "real", SamplingMethod(temperature=0.0), 8),
)
MANY = 10**6
PROMPTS = [Prompt(f"p:{i}", "", (i, i + 1), {}) for i in (3, 5, 3, 7)]
SMALL = DoctorGrid(
    lengths=(50, 10),
    data=("real",),
    methods=(SamplingMethod(), SamplingMethod(temperature=0.0)),
    batch_sizes=(1, 4),
)


def recipe(
    folder: Path, grid: DoctorGrid = SMALL, prompts: str | None = None, prompt: str = "{question}"
) -> DoctorRecipe:
    section = DoctorData(max_prompt_tokens=12, prompts=prompts, prompt=prompt)
    return DoctorRecipe(
        algorithm="doctor", model=ModelFolder(path=str(folder)), data=section, grid=grid
    )


def test_grid_cells_cover_all_combinations_sorted_by_length() -> None:
    cells = cells_of(SMALL)
    assert [cell.name for cell in cells[:4]] == [
        "10 real, T=1, batch 1",
        "10 real, T=1, batch 4",
        "10 real, greedy, batch 1",
        "10 real, greedy, batch 4",
    ]
    assert [cell.length for cell in cells] == [10] * 4 + [50] * 4
    assert (
        TableCell(10, "real", SamplingMethod(temperature=0.5, top_k=3, top_p=0.9), 1).sampling.top_k
        == 3
    )


@pytest.mark.parametrize(
    ("method", "name"),
    [
        (SamplingMethod(temperature=0.0), "greedy"),
        (SamplingMethod(temperature=0.7), "T=0.7"),
        (SamplingMethod(top_k=5, top_p=0.9), "T=1 top_k=5 top_p=0.9"),
        (
            SamplingMethod(temperature=0.0, min_p=0.0, repetition_penalty=1.1),
            "greedy repetition_penalty=1.1",
        ),
    ],
)
def test_sampling_method_name_shows_non_default_options(method: SamplingMethod, name: str) -> None:
    assert method.name == name


def test_greedy_method_with_top_p_is_rejected() -> None:
    with pytest.raises(ValueError, match="temperature 0 is greedy"):
        SamplingMethod(temperature=0.0, top_p=0.9)


def test_cell_sequence_count_is_grid_setting_but_at_least_one_batch() -> None:
    assert count_sequences(SAMPLED, DoctorGrid(sequences=40)) == 40
    assert (
        count_sequences(TableCell(100, "real", SamplingMethod(), 64), DoctorGrid(sequences=40))
        == 64
    )


def test_max_steps_limits_sequences_of_long_cells_but_keeps_one_batch() -> None:
    one, batch = (
        TableCell(1000, "real", SamplingMethod(), 1),
        TableCell(1000, "real", SamplingMethod(), 32),
    )
    assert count_sequences(one, DoctorGrid(max_steps=5000, max_tokens=1000 * MANY)) == 5
    assert (
        count_sequences(batch, DoctorGrid(sequences=200, max_steps=5000, max_tokens=1000 * MANY))
        == 160
    )
    assert count_sequences(batch, DoctorGrid(max_steps=10, max_tokens=1000 * MANY)) == 32


def test_long_cells_decode_only_last_tokens_after_filler_text() -> None:
    short, long = cells_of(DoctorGrid(lengths=(10, 100), decoded_tokens=30))[::24]
    assert (short.beginning, short.decoded_tokens) == (0, 10)
    assert (long.beginning, long.decoded_tokens, long.sampling.max_tokens) == (70, 30, 30)
    plain = requests_for(long, PROMPTS, 3, seed=0)
    begun = put_text_before(plain, long, PROMPTS, 2)
    assert [request.key for request in begun] == [request.key for request in plain]
    assert begun[2] == plain[2], "it is not rescored"
    text = ([token for prompt in PROMPTS for token in prompt.tokens] * 9)[:70]
    assert [list(request.tokens) for request in begun[:2]] == [
        text + list(request.tokens) for request in plain[:2]
    ]
    assert put_text_before(plain, short, PROMPTS, 2) == plain


def test_requests_use_every_distinct_prompt_before_repeating_one() -> None:
    requests = requests_for(SAMPLED, PROMPTS, 7, seed=0)
    assert [request.tokens[0] for request in requests] == [3, 5, 7, 3, 5, 7, 3]
    assert len({request.key for request in requests}) == 7
    assert clusters_of(requests).tolist() == [0, 1, 2, 0, 1, 2, 0]


def test_greedy_cells_use_each_prompt_only_once() -> None:
    assert [request.tokens[0] for request in requests_for(GREEDY, PROMPTS, 7, seed=0)] == [3, 5, 7]


def test_draws_depend_on_seed_and_cell() -> None:
    def keys(requests: list[Request]) -> list[int]:
        return [request.key for request in requests]

    first = keys(requests_for(SAMPLED, PROMPTS, 3, seed=0))
    assert first == keys(requests_for(SAMPLED, PROMPTS, 3, seed=0))
    assert not set(first) & set(keys(requests_for(SAMPLED, PROMPTS, 3, seed=1)))
    assert not set(first) & set(keys(requests_for(GREEDY, PROMPTS, 3, seed=0)))


def test_shipped_prompts_are_at_least_60_and_vary_in_length(assets: Path) -> None:
    source = PromptSource(recipe(assets / "models/stories260K/hf"))
    prompts = source.read_prompts("real", 400)
    assert len({prompt.tokens for prompt in prompts}) >= 60
    assert len({len(prompt.tokens) for prompt in prompts}) > 5
    assert max(len(prompt.tokens) for prompt in prompts) == 12
    assert all(prompt.tokens[0] == 1 for prompt in prompts), (
        "the tokenizer puts a first token in front"
    )


def test_counting_prompts_are_tokenized_number_sequences(assets: Path) -> None:
    source = PromptSource(recipe(assets / "models/stories260K/hf"))
    assert source.tokenizer is not None
    prompts = source.read_prompts("counting", 400)
    assert prompts[0].text == "1 2 3 4"
    assert prompts[0].tokens == tuple(source.tokenizer(prompts[0].text)["input_ids"][:12])
    assert len({prompt.tokens for prompt in prompts}) >= 32


@pytest.mark.parametrize("data", ["real", "counting"])
def test_prompts_are_truncated_to_available_tokens(assets: Path, data: str) -> None:
    prompts = PromptSource(recipe(assets / "models/stories260K/hf")).read_prompts(data, 5)
    assert max(len(prompt.tokens) for prompt in prompts) == 5


def test_prompt_file_rows_are_formatted_with_recipe_template(assets: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    write_rows(file, ({"text": text} for text in ("A dog", "A cat", "A cow")))
    own = recipe(assets / "models/stories260K/hf", prompts=str(file), prompt="Say: {text}")
    assert [prompt.text for prompt in PromptSource(own).read_prompts("real", 400)] == [
        "Say: A dog",
        "Say: A cat",
        "Say: A cow",
    ]


def test_a_model_without_tokenizer_gets_random_tokens(models: Callable[..., Path]) -> None:
    source = PromptSource(recipe(models("llama")))
    assert source.tokenizer is None
    real, counting = source.read_prompts("real", 9), source.read_prompts("counting", 9)
    assert real != counting
    assert {len(prompt.tokens) for prompt in real} == set(range(1, 10))
    tokens = torch.tensor([token for prompt in real for token in prompt.tokens])
    assert 0 <= int(tokens.min()) < 4
    assert 60 <= int(tokens.max()) < 64
    assert (
        PromptSource(source.recipe.model_copy(update={"seed": 1})).read_prompts("real", 9) != real
    )


def test_an_empty_file_of_prompts_is_refused(assets: Path, tmp_path: Path) -> None:
    (tmp_path / "none.jsonl").write_text("")
    own = recipe(assets / "models/stories260K/hf", prompts=str(tmp_path / "none.jsonl"))
    with pytest.raises(ValueError, match=r"none\.jsonl"):
        PromptSource(own).read_prompts("real", 400)
