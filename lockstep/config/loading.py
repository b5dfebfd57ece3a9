"""Loading of recipes: from a name and overrides to one validated, frozen recipe. Imports no torch.

A recipe is a YAML file that ships with Lockstep or that you wrote. It may name another recipe as
`base:` and then lists only the differences: mappings are merged key by key, everything else, lists
included, is replaced. Overrides `key=value` come last; their values are YAML.

Two shorthands work the same in files and overrides:

- A scalar in place of a section sets its backend, the run's folder, or a reward's type or function:
  `sampler=torch` means `sampler.backend=torch`, `run=FOLDER` means `run.folder=FOLDER`, and
  `reward=file.py:name` means `reward.function=file.py:name`.
- If exactly one source can be given (`model`: path, from_recipe, scratch; `data`: train, task, and
  prompt, messages; `reward`: marker, function, parts; `run`: max_steps, max_epochs), setting one
  clears another that an underlying recipe set: `model.path=FOLDER` is enough. Similarly, naming a
  different task (`data.task.name`) clears the previous task's options.

Every key must be known and every value must have the right type (`"3"` is not 3): nothing is
ignored, nothing is guessed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from lockstep.config import Common, PromptSection, Recipe, Section, registry
from lockstep.config.backends import INFERENCE
from lockstep.config.errors import (
    KeyPath,
    RecipeError,
    algorithm_sentence,
)
from lockstep.config.hub_name import read_pins
from lockstep.config.overlay import TASK_NAME, add_reward_type, overlay_options
from lockstep.config.overrides import parse_overrides
from lockstep.config.recipe_files import RecipeLayer, find_recipe, read_layers
from lockstep.config.run_name import find_run_folder
from lockstep.config.trust import list_references, require_known
from lockstep.config.validation import FaultyTree, drop_conflicting_options, validate_tree
from lockstep.system import yaml12
from lockstep.system.command_line import repeat_command
from lockstep.system.printable import note_once
from lockstep.system.records import is_file, read_record

OptionKeys = yaml12.YAMLKeys
R = TypeVar("R", bound=Recipe)
S = TypeVar("S", bound=Section)
_NO_RESULT = {
    "run": ("folder", "max_time_s"),
    "agreement": ("on_breach", "max_mult_prob_error"),
    "grid": ("budget_s",),
    "server": ("url", "api_key_env", "batch_size", "max_concurrency", "max_retries"),
    "code": ("url",),
}
"""Section options that do not change results, such as a server's URL."""
SHORT_FORMS = {
    "learner": "backend",
    "sampler": "backend",
    "cluster": "backend",
    "run": "folder",
    "reward": "type",
    "validation_reward": "type",
}
"""Sections that a scalar can stand for, each with the option that the scalar sets."""
COMMAND = ("environment", "command")
"""The option that starts a program, whose code no digest covers."""

COLUMNS = "columns.json"
"""File in a run's folder with the options of `data` inferred from its rows' columns."""


@dataclass(frozen=True)
class LoadedRecipe:
    """A resolved recipe.

    Attributes:
        name: Name of the recipe: its file's name without the suffix. recipe: Its options, after
        bases and overrides. origins: Source of each option, by its keys: a recipe or `override`;
        the rest are defaults. arguments: The recipe and its overrides, as command-line arguments.
        pins: Commits of Hub names, by name. places: Local paths of the fetched Hub names, see
        `lockstep.config.hub`. written: The options as JSON before local paths replaced Hub names
        and columns were read; None if they equal the recipe's. told: Options of `data` inferred
        from the columns of the rows.
    """

    name: str
    recipe: Recipe
    origins: Mapping[OptionKeys, str]
    arguments: tuple[str, ...]
    pins: Mapping[str, str] = field(default_factory=dict[str, str])
    places: Mapping[str, str] = field(default_factory=dict[str, str])
    written: str | None = None
    told: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def expect_recipe(self, kind: type[R]) -> R:
        """The recipe, for a command that takes recipes of this kind.

        Raises:
            RecipeError: The recipe is for another command.
        """
        _require_kind(type(self.recipe), kind, self.arguments[0])
        assert isinstance(self.recipe, kind)
        return self.recipe

    @property
    def training_recipe(self) -> Common:
        """The recipe as a training recipe.

        Raises:
            RecipeError: The recipe is for a command that does not train.
        """
        return self.expect_recipe(Common)

    def dump_options(self) -> dict[str, Any]:
        """All options with their values, defaults included, as JSON types; Hub names as written."""
        if self.written is None:
            return self.recipe.model_dump(mode="json")
        return json.loads(self.written)

    def with_local_paths(self, places: Mapping[str, str], pins: Mapping[str, str]) -> LoadedRecipe:
        """The recipe with local paths in place of Hub names, and the commits of those names."""
        written = options = json.dumps(self.dump_options())
        for name, path in places.items():
            options = options.replace(json.dumps(name), json.dumps(path))
        recipe = type(self.recipe).model_validate_json(options, strict=True)
        return replace(self, recipe=recipe, places=places, pins=pins, written=written)

    def with_told_options(self, told: Mapping[str, Any]) -> LoadedRecipe:
        """The recipe with `data` options inferred from columns; they do not identify the run."""
        data: PromptSection = dict(self.recipe)["data"]
        copy = data.model_copy(update={name: told[name] for name in told.keys() & dict(data)})
        recipe = self.recipe.model_copy(update={"data": copy})
        return replace(self, recipe=recipe, told=told, written=json.dumps(self.dump_options()))

    def find_origin(self, keys: OptionKeys) -> str:
        """The file or override that set an option; list items have their list's origin."""
        found = (self.origins.get(keys[:length]) for length in range(len(keys), 0, -1))
        return next((origin for origin in found if origin), "default")

    @cached_property
    def warm_start(self) -> LoadedRecipe | None:
        """The recipe to train first, with options passed on by this one; None if there is none."""
        name = self.recipe.trained_first
        if name is None:
            return None
        passed_on = self.training_recipe.hand_down(load_recipe(name).training_recipe)
        first = load_recipe(name, [f"{key}={value}" for key, value in passed_on.items()])
        return replace(first, origins={})  # its name omits what it takes over

    def build_identity(self) -> dict[str, Any]:
        """The options that identify the run: those that change results, and the warm start."""
        tree = self.dump_options()
        # options that display a run, or check a finished one
        for section in ("trackers", "acceptance"):
            tree.pop(section, None)
        of_backends = {
            name: backend.changes_no_result for name, backend in INFERENCE.iterate_backends()
        }
        for name, options in {
            **_NO_RESULT,
            **of_backends,
            "sampler": self.recipe.placement,
        }.items():
            for section in _find_sections(tree, name):
                for option in options:
                    section.pop(option, None)
        first = self.warm_start
        if first is not None:
            tree["model"]["from_recipe"] = f"{tree['model']['from_recipe']} ({first.digest})"
        return tree

    @cached_property
    def digest(self) -> str:
        """Ten hexadecimal digits of the identity's SHA-256; the run's name has the first."""
        canonical = json.dumps(self.build_identity(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:10]

    @cached_property
    def run_folder(self) -> Path:
        """The run's folder: `run.folder`, or a name in `runs/`, see `find_run_folder`."""
        if self.recipe.folder is not None:
            return Path(self.recipe.folder)
        named = dict[OptionKeys, Any]()
        for keys, value in yaml12.flatten_tree(self.build_identity()):
            if self.find_origin(keys).startswith(("override", "lockstep.")):
                named[keys] = value
        named.pop(("algorithm",), None)
        return find_run_folder(self.name, named, self.digest)


def load_recipe(
    recipe: str,
    overrides: Sequence[str] = (),
    also: Sequence[RecipeLayer] = (),
    expected: type[Recipe] = Recipe,
) -> LoadedRecipe:
    """Resolves a recipe.

    Args:
        recipe: Name of a shipped recipe, or path of a YAML file.
        overrides: `key.sub=value` each, applied after all files.
        also: More layers, after all files and before the overrides.
        expected: Class of the recipes that the command takes.

    Raises:
        RecipeError: One sentence per error.
    """
    path = find_recipe(recipe)
    return _resolve_layers(
        path, [*read_layers(path), *also], overrides, (recipe, *overrides), expected
    )


def load_options(name: str, base: str | None, *layers: RecipeLayer) -> LoadedRecipe:
    """Resolves a recipe from options that a program gives, as `load_recipe` does from a file.

    Args:
        name: Name of the recipe.
        base: A shipped recipe, or a YAML file, to start from; None if the layers give everything.
        layers: The options; later layers win.

    Raises:
        RecipeError: One sentence per error.
    """
    below = [] if base is None else read_layers(find_recipe(base))
    return _resolve_layers(Path(name), [*below, *layers], (), (name,))


def load_section(kind: type[S], layer: RecipeLayer) -> S:
    """Validates a section from options that a program gives.

    Raises:
        RecipeError: One sentence per invalid option.
    """
    return _validate_tree(kind, layer.tree, [layer], [])[0]


def load_overrides(kind: type[S], overrides: Sequence[str]) -> S:
    """Validates a section from overrides `key.sub=value`, over its defaults.

    Raises:
        RecipeError: One sentence per invalid option.
    """
    layers, misspelled = parse_overrides(overrides)
    if misspelled:
        raise RecipeError("\n".join(misspelled))
    layers = _expand_scalars(layers)
    return _validate_tree(kind, _join_layers(layers), [RecipeLayer("command", {})], layers)[0]


def require_known_code(loaded: LoadedRecipe, run: str) -> None:
    """Raises InputError if an option taken from the recipe of `run` names unknown code."""
    command = yaml12.find_value(loaded.dump_options(), COMMAND)
    if command is not None and loaded.find_origin(COMMAND) == run:
        option = f"{'.'.join(COMMAND)}={command}"
        raise RecipeError(
            f"{run}: {option} starts a program; a run may come from someone else, so if you trust "
            f"it: {repeat_command(option) or option}"
        )
    for keys, reference, _ in list_references(loaded.dump_options()):
        if loaded.find_origin(keys) == run:
            require_known(Path(run), ".".join(keys), reference)


def load_run(folder: Path) -> LoadedRecipe:
    """Loads the recipe in a run's folder, which may come from another user.

    Code that it names is searched from the working directory, as usual. It is refused unless the
    user has trained with it on this machine or trusts it.

    Raises:
        RecipeError: One sentence per error.
    """
    recipe = str(folder / "recipe.yaml")
    path = find_recipe(recipe)
    layers = read_layers(path)
    learner = layers[0].tree.get("learner")
    if isinstance(learner, dict):  # a run from before this option computed each sequence by itself
        learner.setdefault("share_prefixes", False)
    for tree in _read_trained_first(_join_layers(layers)):
        for keys, reference, _ in list_references(tree):
            if keys in (("algorithm",), TASK_NAME):
                require_known(path, ".".join(keys), reference)
    loaded = replace(_resolve_layers(path, layers, (), (recipe,)), pins=read_pins(folder))
    if is_file(folder / COLUMNS):
        told = read_record(folder / COLUMNS, dict[str, Any], "restore or remove it")
        return loaded.with_told_options(told)
    return loaded


def _read_trained_first(tree: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the options of a recipe, then the options of recipes trained before it."""
    read: list[object] = [None]
    while True:
        yield tree
        first = yaml12.find_value(tree, ("model", "from_recipe"))
        if first in read:
            return
        read.append(first)
        try:
            tree = read_tree(str(first))
        except RecipeError:  # missing, so nothing loads it
            return


def _resolve_layers(
    path: Path,
    layers: Sequence[RecipeLayer],
    overrides: Sequence[str],
    arguments: tuple[str, ...],
    expected: type[Recipe] = Recipe,
) -> LoadedRecipe:
    """Merges files, then overrides; validates the result and imports known code.

    Later layers win.
    """
    overriding, misspelled = parse_overrides(overrides)
    named = ""
    for layer in [*layers, *overriding]:
        algorithm = layer.tree.get("algorithm")
        if isinstance(algorithm, str):
            named = algorithm
    kind = registry.find_algorithm(named) if named else None
    if kind is None:
        raise RecipeError(
            f"{_find_last_layer(layers, overriding, ['algorithm']).source}: "
            f"{algorithm_sentence(_join_layers([*layers, *overriding]))}"
        )
    _require_kind(kind, expected, arguments[0])
    layers = _expand_scalars(layers)
    overriding = _expand_scalars(overriding)
    last = RecipeLayer("override", _join_layers(overriding))
    tree: dict[str, Any] = {}
    origins: dict[OptionKeys, str] = {}
    for layer in [*layers, last]:
        above = add_reward_type(tree, layer.tree)
        tree = overlay_options(tree, above, kind.steps_and_epochs)
        origins |= {keys: layer.source for keys, _ in yaml12.flatten_tree(above)}
    found, taken = _validate_tree(kind, tree, layers, overriding)
    if misspelled:
        raise RecipeError("\n".join(misspelled))
    standing = {
        keys: source
        for keys, source in origins.items()
        if _has_option(tree, keys) and keys not in taken
    }
    return LoadedRecipe(path.stem, found, standing, arguments)


def read_tree(recipe: str) -> dict[str, Any]:
    """Returns the options in a recipe, its bases included, before validation."""
    return _join_layers(read_layers(find_recipe(recipe)))


def _require_kind(found: type[Recipe], expected: type[Recipe], recipe: str) -> None:
    """Raises RecipeError if a recipe is for a different command than the expected class."""
    if not issubclass(found, expected):
        raise RecipeError(
            f"{recipe} is for a different command: lockstep {found.command.format(recipe=recipe)}"
        )


def describe_recipe(loaded: LoadedRecipe, origins: bool = False) -> str:
    """The resolved recipe as YAML; with `origins`, comments give the source of each value.

    Loading the text as a recipe gives the same options.
    """
    tree = loaded.dump_options()

    def describe_origin(keys: OptionKeys) -> str:
        if isinstance(yaml12.find_value(tree, keys), dict):
            return ""
        return loaded.find_origin(keys)

    if origins:
        return yaml12.annotate_yaml(tree, describe_origin)
    return yaml12.dump_yaml(tree)


def _expand_scalars(layers: Sequence[RecipeLayer]) -> list[RecipeLayer]:
    """Expands scalars that stand for sections."""
    expanded: list[RecipeLayer] = []
    for layer in layers:
        tree = dict(layer.tree)
        for section in tree.keys() & SHORT_FORMS.keys():
            value = tree[section]
            if isinstance(value, dict | list | None):
                continue
            tree[section] = {SHORT_FORMS[section]: value}
            if SHORT_FORMS[section] == "type" and set(str(value)) & {":", "."}:
                # a reward's function
                tree[section] = {"type": "python", "function": value}
        expanded.append(replace(layer, tree=tree))
    return expanded


def _find_sections(tree: Mapping[str, Any], name: str) -> Iterator[dict[str, Any]]:
    """Yields the sections with this name, at any depth."""
    for key, value in tree.items():
        if isinstance(value, dict):
            if key == name:
                yield value
            yield from _find_sections(value, name)


def _join_layers(layers: Iterable[RecipeLayer]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for layer in layers:
        tree = yaml12.merge_over(tree, layer.tree)
    return tree


def _validate_tree(
    kind: type[S],
    tree: dict[str, Any],
    layers: Sequence[RecipeLayer],
    overriding: Sequence[RecipeLayer],
) -> tuple[S, list[OptionKeys]]:
    """Validates a tree; drops options of a shipped recipe that conflict with options set over it.

    Returns:
        The section, and the dropped options.
    """

    def find_layer(path: KeyPath) -> RecipeLayer:
        return _find_last_layer(layers, overriding, path)

    try:
        return validate_tree(kind, tree), []
    except FaultyTree as error:
        faults = error.faults
    # The rest of the recipe reads the task's rows, so the task's options stay.
    from_base = [
        keys
        for keys, _ in yaml12.flatten_tree(tree)
        if find_layer(keys).ships and keys[:2] != ("data", "task")
    ]
    tree, taken = drop_conflicting_options(kind, tree, faults, from_base)
    try:
        found = validate_tree(kind, tree)
    except FaultyTree as error:
        sentences = [f"{find_layer(path).source}: {text}" for path, text in error.faults]
        raise RecipeError("\n".join(sentences)) from None
    for keys in taken:
        value = yaml12.find_value(_join_layers(layers), keys)
        note_once(
            f"{'.'.join(keys)}={json.dumps(value)} of {find_layer(keys).source} is dropped because "
            "of your options"
        )
    return found, taken


def _find_last_layer(
    layers: Sequence[RecipeLayer], overriding: Sequence[RecipeLayer], path: KeyPath
) -> RecipeLayer:
    """Returns the layer that last set `path`; the recipe itself if no layer sets it."""
    found = [layer for layer in [*layers, *overriding] if path and _has_option(layer.tree, path)]
    if found:
        return found[-1]
    return layers[-1]


def _has_option(tree: Any, path: KeyPath) -> bool:
    for key in path:
        if isinstance(tree, list) and isinstance(key, int):
            return True
        if not isinstance(tree, dict) or key not in tree:
            return False
        tree = tree[key]
    return True
