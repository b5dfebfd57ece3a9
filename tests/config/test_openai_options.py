"""The options of a server that is there already: where they go, and what is refused when a recipe
is resolved.
"""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from lockstep.config import SamplerSection
from lockstep.config.loading import RecipeError, load_recipe

SERVER = {"base_url": "http://localhost:8000/v1", "model": "m"}


def refusal(**options: Any) -> str:
    with pytest.raises(ValidationError) as refused:
        SamplerSection.model_validate(options)
    return str(refused.value)


@pytest.mark.parametrize("recipe", ["ppo_arithmetic", "eval_gsm8k", "generate"])
def test_openai_sampler_is_rejected_for_recipes_that_load_weights_into_sampler(
    recipe: str,
) -> None:
    server = "sampler={backend: openai, openai: {base_url: http://localhost:8000/v1, model: m}}"
    with pytest.raises(
        RecipeError, match=r"sampler: a server cannot receive weights .* choose torch or vllm$"
    ):
        load_recipe(recipe, [server])
    with pytest.raises(
        RecipeError,
        match=r"sampler: backend: openai requires sampler.openai.base_url",
    ):
        load_recipe(recipe, ["sampler=openai"])


def test_openai_server_address_and_concurrency_do_not_change_recipe_digest() -> None:
    engine = "judge.sampler"
    here = [
        "judge.path=null",
        f"{engine}.backend=openai",
        f"{engine}.openai={{base_url: http://a/v1, model: m}}",
    ]
    there = [
        *here,
        f"{engine}.openai.base_url=http://other:9000/v1",
        f"{engine}.openai.max_concurrency=2",
    ]
    assert load_recipe("eval_judge", here).digest == load_recipe("eval_judge", there).digest
    assert (
        load_recipe("eval_judge", [*here, f"{engine}.openai.model=n"]).digest
        != load_recipe("eval_judge", here).digest
    )


@pytest.mark.parametrize(
    "base_url", ["http://me:secret@localhost/v1", "http://localhost/v1?key=secret"]
)
def test_openai_base_url_that_contains_a_key_is_rejected(base_url: str) -> None:
    said = refusal(backend="openai", openai=SERVER | {"base_url": base_url})
    assert (
        "an address cannot contain a key; put the key in the environment variable named by "
        "api_key_env"
    ) in said
