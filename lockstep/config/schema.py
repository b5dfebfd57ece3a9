"""JSON schemas of recipe files, for completion and checks in editors. Imports no torch.

A file may leave out options that its `base` sets, so schemas require nothing within a section;
`lockstep config` does.
"""

from __future__ import annotations

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue, models_json_schema
from pydantic_core import core_schema

from lockstep.config import Task, registry
from lockstep.config.errors import RecipeError, algorithm_sentence
from lockstep.config.loading import SHORT_FORMS

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_BASE: JsonSchemaValue = {
    "type": "string",
    "description": "a shipped recipe or a file whose options this recipe overrides",
}


def make_schema(algorithm: str) -> JsonSchemaValue:
    """Makes the schema of the recipes of one algorithm or command.

    Args:
        algorithm: A name in the registry, or your own class, `file.py:Class`.

    Raises:
        RecipeError: Unknown algorithm.
    """
    kind = registry.find_algorithm(algorithm)
    if kind is None:
        raise RecipeError(algorithm_sentence({"algorithm": algorithm}))
    classes = (kind, Task)
    references, made = models_json_schema(
        [(one, "validation") for one in classes], schema_generator=_PartialSchema
    )
    definitions: dict[str, JsonSchemaValue] = made["$defs"]
    recipe, task = (references[one, "validation"]["$ref"].rpartition("/")[2] for one in classes)
    definitions[task]["additionalProperties"] = True  # each task has its own options
    whole = definitions.pop(recipe)
    options = whole["properties"]
    # a word may stand for a section, as in `sampler: vllm`
    for name in SHORT_FORMS.keys() & options.keys():
        options[name] = {"anyOf": [options[name], {"type": "string"}]}
    options |= {"base": _BASE, "algorithm": {**options["algorithm"], "const": algorithm}}
    return {
        "$schema": DIALECT,
        "title": f"Lockstep recipe: {algorithm}",
        **whole,
        "$defs": definitions,
    }


class _PartialSchema(GenerateJsonSchema):
    """Schemas of partial sections: no required options, no generated titles."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        """Makes a section's schema."""
        made = super().model_schema(schema)
        return {key: value for key, value in made.items() if key not in ("title", "required")}

    def field_title_should_be_set(self, schema: object) -> bool:
        """Omits titles of fields, which only repeat their names."""
        return False
