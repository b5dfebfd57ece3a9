"""The recipe and options of `lockstep generate MODEL DATA`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field, PositiveInt

from lockstep.config.loading import LoadedRecipe, RecipeError
from lockstep.config.machinery import ClusterSection, Computation, EngineSection, SamplerSection
from lockstep.config.model_recipe import ModelCommand
from lockstep.config.recipe import Recipe
from lockstep.config.sampling import Sampling
from lockstep.config.section import rule
from lockstep.config.sources import DataPaths, DataSection, ModelFolder, PromptSection
from lockstep.inference.run_options import ResultsRun


class GenerateData(PromptSection):
    """The rows of a generation."""

    prompts: DataPaths = Field(
        description="data file, or a list of files: JSONL (also .gz), a JSON list, Parquet"
    )
    max_prompts: PositiveInt | None = Field(default=None, description="maximum number of rows")

    @property
    def in_order(self) -> DataSection:
        """The same rows as a data section, in the order of the file, without right answers."""
        return self.as_data(self.prompts, answer="")


class GenerateRecipe(Recipe):
    """`algorithm: generate`"""

    command = "generate MODEL DATA --recipe {recipe}"
    # a block has one sampler, so bits do not depend on it
    placement = (*Recipe.placement, "replicas")
    seed: int = Field(default=0, description="key of every random number")
    model: ModelFolder
    data: GenerateData
    sampling: Sampling
    num_generations: PositiveInt = Field(default=1, description="responses per prompt")
    logprobs: bool = Field(
        default=False,
        description=(
            "write the log-probability of each sampled token under its sampling "
            "distribution, after temperature, top_k and top_p"
        ),
    )
    sampler: EngineSection = SamplerSection()
    learner: Computation = Computation()
    cluster: ClusterSection = ClusterSection()
    run: ResultsRun = ResultsRun()

    @property
    def folder(self) -> str | None:
        return self.run.folder

    @rule
    def _responses_differ(self) -> None:
        if self.sampling.temperature == 0 and self.num_generations > 1:
            raise ValueError(
                "sampling.temperature 0 gives the same response every time, so num_generations "
                "must be 1"
            )


def generate_recipe(
    model: str,
    data: str,
    overrides: Sequence[str] = (),
    recipe: str | None = None,
    folder: str | None = None,
) -> LoadedRecipe:
    """Resolves a generation. Arguments and errors: `ModelCommand.resolve_recipe`."""
    return _GENERATE.resolve_recipe(model, data, overrides, recipe, folder)


def _derive_sampling(tree: dict[str, Any], room: dict[str, int] | None) -> dict[str, Any]:
    """The distribution of a run's rollouts; without one, the length of its demonstrations.

    Raises:
        RecipeError: The run's prompts listed tools, which `lockstep generate` cannot do.
    """
    environment = tree.get("environment")
    if environment is not None and environment["tool_format"] is not None:
        raise RecipeError(
            f"the run was trained with the tools of {environment['class_name']}, which generate "
            "does not support; use lockstep eval, which runs its episodes, or pass the model in "
            "its final/"
        )
    sampling = tree.get("sampling") or room
    if sampling is None:
        return {}
    return {"sampling": sampling}


_GENERATE = ModelCommand(
    "generate",
    GenerateRecipe,
    "generate",
    "prompts",
    ("seed", "sampler"),
    PromptSection,
    _derive_sampling,
)
