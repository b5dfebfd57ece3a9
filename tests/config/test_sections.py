"""Sections that become others, or what samplers are told: each option arrives, under its name."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from lockstep.config import (
    Computation,
    LearnerSection,
    Parallel,
    PromptSection,
    QuestionSection,
    Sampling,
)
from lockstep.inference.eval_recipe import EvalData
from lockstep.inference.generate_recipe import GenerateData

FIELDS = PromptSection.model_fields
TALKS = PromptSection(
    messages="talk", max_prompt_tokens=7, overlong_prompts="skip", bad_rows="skip"
)
CHATS = PromptSection(
    prompt="{q}",
    chat=True,
    system_prompt="Be brief.",
    template_args={"thinking": False},
    max_prompt_tokens=7,
)


def options(section: PromptSection, of: type[PromptSection] = PromptSection) -> dict[str, object]:
    return section.model_dump(include=set(of.model_fields))


def test_example_prompt_sections_cover_every_option() -> None:
    talks, chats = options(TALKS), options(CHATS)
    assert all(
        field.default != talks[name] or talks[name] != chats[name] for name, field in FIELDS.items()
    )


def test_sampling_section_passes_every_option_to_sampler() -> None:
    section = Sampling(max_tokens=3, temperature=0.5, top_k=4, top_p=0.9)
    assert Sampling(max_tokens=3, top_k=-1) == Sampling(max_tokens=3)
    assert asdict(section.params((1, 2))) == {**section.model_dump(), "stop_token_ids": (1, 2)}


def test_learner_section_keeps_every_computation_option() -> None:
    computation, parallel = Computation(device="cpu", dtype="bf16"), Parallel(dp=2)
    section = LearnerSection.from_computation(computation, "megatron", parallel)
    assert section.model_dump(include=set(Computation.model_fields)) == computation.model_dump()
    assert section == LearnerSection(
        device="cpu", dtype="bf16", backend="megatron", parallel=parallel
    )


@pytest.mark.parametrize("said", [TALKS, CHATS], ids=["messages", "prompt"])
def test_generate_and_eval_data_keep_every_prompt_option(said: PromptSection) -> None:
    given = options(said)
    answered = GenerateData.model_validate({"prompts": "rows.jsonl", **given}).in_order
    asked = EvalData.model_validate(
        {"validation": "rows.jsonl", "answer": "{a}", "max_validation_samples": 5, **given}
    )
    for data in (answered, asked.in_order):
        assert options(data) == given
        assert (data.train, data.shuffle) == ("rows.jsonl", False)
    assert answered.answer == ""
    assert options(asked.in_order, QuestionSection) == options(asked, QuestionSection)
