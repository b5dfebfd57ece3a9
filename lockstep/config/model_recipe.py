"""What `lockstep eval MODEL DATA` and its like ask for: a recipe, begun from a run's own where MODEL is one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lockstep.config import PromptSection, TrainingRecipe
from lockstep.config.errors import recipe_classes
from lockstep.config.loading import Layer, Loaded, RecipeError, algorithm_of, load, usage


@dataclass(frozen=True)
class Command:
    """A command that asks a model the rows of a file.

    Attributes:
        name: Of the command, and of the algorithm of its recipes.
        recipe: The one that ships, where to begin.
        rows: The option of `data` that names the file.
        sections: What a run says under the same words.
        data: Of the rows, likewise.
        drawn: What a run's options say about responses.
    """

    name: str
    recipe: str
    rows: str
    sections: tuple[str, ...]
    data: type[PromptSection]
    drawn: Callable[[dict[str, Any]], dict[str, Any]]

    def resolved(
        self, model: str, data: str, overrides: Sequence[str], recipe: str | None, folder: str | None
    ) -> Loaded:
        """The recipe.

        Args:
            model: A Hugging Face folder, or the folder of a finished run, which then says how rows become prompts and
                from which distribution responses are drawn.
            data: A file of rows.
            overrides: `key.sub=value` each.
            recipe: Where to begin; None: the one that ships, and over it what a run says.
            folder: Of the results.

        Raises:
            RecipeError: One sentence for each thing that is wrong.
        """
        first, own = recipe or self.recipe, Path(model) / "recipe.yaml"
        algorithm = algorithm_of(first)
        if algorithm != self.name and algorithm in recipe_classes():
            raise RecipeError(f"{first} is for another command: {usage(algorithm, first)}")
        said: dict[str, Any] = {"model": {"path": str(weights_of(model))}, "data": {self.rows: data}}
        if folder is not None:
            said["run"] = {"folder": folder}
        begun = [self._as_trained(own)] if own.is_file() and recipe is None else []
        loaded = load(first, overrides, [*begun, Layer(f"lockstep {self.name}", said)])
        return replace(loaded, name=f"{Path(model).resolve().name}-{Path(data).stem}")

    def _as_trained(self, own: Path) -> Layer:
        """What a run's recipe says that the command needs too, under the same words."""
        training = load(str(own)).training
        tree = training.model_dump(mode="json")
        said: dict[str, Any] = {name: tree[name] for name in self.sections if name in tree}
        names = self.data.model_fields.keys() - {"max_validation_samples"}
        said["data"] = training.data.model_dump(mode="json", include=names)
        said["learner"] = computation_of(training)
        return Layer(str(own), said | self.drawn(tree))


def computation_of(training: TrainingRecipe) -> dict[str, str]:
    """What a run's recipe says of where and in which precision it computes."""
    return {"device": training.learner.device, "dtype": training.learner.dtype}


def room_of_demonstrations(tree: dict[str, Any]) -> dict[str, int] | None:
    """As much room for a response as what an SFT or DPO run learned from had; None where that is not known."""
    learned = tree.get("sft") or tree.get("dpo")
    if learned and learned["max_tokens"] > tree["data"]["max_prompt_tokens"]:
        return {"max_tokens": learned["max_tokens"] - tree["data"]["max_prompt_tokens"]}
    return None


def weights_of(model: Path | str) -> Path:
    """The folder with the weights: a run's last, or the one that was named."""
    run = Path(model)
    if not (run / "recipe.yaml").is_file():
        return run
    if not (run / "final").is_dir():
        raise RecipeError(f"{run} is a run that has no final/ yet; let it finish, or say lockstep export {run} MODEL")
    return run / "final"
