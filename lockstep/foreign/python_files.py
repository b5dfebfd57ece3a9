"""Reads a Python program that trains with TRL, without running it: its configuration, its trainer, its LoRA."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from lockstep.foreign.trl import is_of_trainer
from lockstep.foreign.words import Config, Json

_NO_TRAINING = ("LoraConfig", "BitsAndBytesConfig", "PeftConfig", "ModelConfig")
"""Configurations that are none of a trainer."""
_LORA = {"r": "lora_r", "lora_alpha": "lora_alpha", "target_modules": "lora_target_modules",
         "lora_dropout": "lora_dropout", "use_rslora": "use_rslora", "use_dora": "use_dora",
         "modules_to_save": "lora_modules_to_save"}  # fmt: skip
_LORA_DEFAULTS: dict[str, Json] = {"lora_r": 8, "lora_alpha": 8}
"""Those of `peft`, which are other ones than TRL's."""
_IN_HAND = ("args", "processing_class", "tokenizer", "peft_config", "callbacks", "compute_metrics")
"""Arguments of a trainer that are read elsewhere, or train nothing."""
_WITH_REWARDS = ("GRPOTrainer", "RLOOTrainer")
"""Trainers whose second argument is their rewards."""


@dataclass
class PythonConfig:
    """The configuration in a program; `unread` names what its text alone does not say."""

    config: Config
    unread: tuple[str, ...]


def read_program(tree: ast.Module) -> PythonConfig | None:
    """Reads the configuration of a trainer with the most arguments that a program makes; None where it makes none."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    configs = [call for call in calls if _name(call).endswith("Config") and _name(call) not in _NO_TRAINING]
    if not configs:
        return None
    reader = _Expressions(dict(_list_constants(tree)))
    made = max(configs, key=lambda call: (is_of_trainer(_name(call)), len(call.keywords)))
    given = reader.read_arguments(made)
    trainer = next((call for call in calls if _name(call).endswith("Trainer")), None)
    if trainer is not None:
        reader.read_trainer(trainer, given)
    lora = next((call for call in calls if _name(call) == "LoraConfig"), None)
    if lora is not None:
        found = {_LORA[key]: value for key, value in reader.read_arguments(lora).items() if key in _LORA}
        given |= {"use_peft": True, **_LORA_DEFAULTS, **found}
    return PythonConfig(Config(given, _name(made)), tuple(reader.unread))


def _name(call: ast.Call) -> str:
    """The name of what is called, without its module."""
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def _list_constants(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Names that a program assigns once, and what."""
    assigned: dict[str, list[ast.expr]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            assigned.setdefault(node.targets[0].id, []).append(node.value)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            assigned.setdefault(node.target.id, []).append(node.value)
        elif isinstance(node, ast.AugAssign | ast.For | ast.NamedExpr) and isinstance(node.target, ast.Name):
            assigned.setdefault(node.target.id, []).extend([ast.Constant(None)] * 2)
    return ((name, values[0]) for name, values in assigned.items() if len(values) == 1)


@dataclass
class _Expressions:
    """Reads expressions of a program.

    Attributes:
        constants: What its names stand for.
        unread: Arguments that cannot be read.
    """

    constants: dict[str, ast.expr]
    unread: list[str] = field(default_factory=list)

    def read_arguments(self, call: ast.Call) -> dict[str, Json]:
        """The arguments of a call by name, those in a dictionary too."""
        given: dict[str, Json] = {}
        for keyword in call.keywords:
            value = self._follow(keyword.value)
            if keyword.arg is not None:
                given[keyword.arg] = self._read(value)
            elif isinstance(value, ast.Dict | ast.Call):
                given |= self._read_dictionary(value)
            else:
                self.unread.append(f"**{ast.unparse(keyword.value)} of {_name(call)}")
        return given

    def read_trainer(self, call: ast.Call, given: dict[str, Json]) -> None:
        """Adds what a trainer is called with: the model, the rewards, the data."""
        for name, argument in self._name_arguments(call):
            value = self._follow(argument)
            match name:
                case "model" if (path := self._read_source(value)) is not None:
                    given["model_name_or_path"] = path
                case "train_dataset" if (path := self._read_source(value)) is not None:
                    given["dataset_name"] = path
                case "reward_funcs":
                    each = value.elts if isinstance(value, ast.List | ast.Tuple) else [argument]
                    given["reward_funcs"] = [str(self._read_text(one) or ast.unparse(one)) for one in each]
                case name if name not in _IN_HAND:
                    self.unread.append(f"{name}={ast.unparse(argument)[:60]} of {_name(call)}")

    def _name_arguments(self, call: ast.Call) -> Iterator[tuple[str, ast.expr]]:
        """The arguments of a trainer with their names; `args` is the configuration, which may be anywhere."""
        names = ("model", "reward_funcs") if _name(call) in _WITH_REWARDS else ("model",)
        for i, argument in enumerate(call.args):
            value = self._follow(argument)
            is_config = isinstance(value, ast.Call) and _name(value).endswith("Config")
            yield ("args" if is_config else names[i] if i < len(names) else f"argument {i + 1}"), argument
        yield from ((keyword.arg or "**", keyword.value) for keyword in call.keywords)

    def _follow(self, node: ast.expr) -> ast.expr:
        for _ in range(len(self.constants)):
            if not isinstance(node, ast.Name) or node.id not in self.constants:
                break
            node = self.constants[node.id]
        return node

    def _read_dictionary(self, node: ast.Dict | ast.Call) -> dict[str, Json]:
        if isinstance(node, ast.Call):
            is_dict = isinstance(node.func, ast.Name) and node.func.id == "dict"
            return self.read_arguments(node) if is_dict else self._give_up(node)
        found: dict[str, Json] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            inner = self._follow(value)
            if key is None:
                found |= (
                    self._read_dictionary(inner) if isinstance(inner, ast.Dict | ast.Call) else self._give_up(value)
                )
            elif isinstance(key, ast.Constant):
                found[str(key.value)] = self._read(inner)
        return found

    def _give_up(self, node: ast.expr) -> dict[str, Json]:
        self.unread.append(f"**{ast.unparse(node)[:60]}")
        return {}

    def _read_source(self, node: ast.expr) -> str | None:
        """A path or a name: as text, or of `from_pretrained`, `load_dataset` and `load_from_disk`."""
        if isinstance(node, ast.Call):
            files = next((keyword.value for keyword in node.keywords if keyword.arg == "data_files"), None)
            if _name(node) not in ("from_pretrained", "load_dataset", "load_from_disk") or not node.args:
                return None
            return self._read_text(node.args[0] if files is None else files)
        return self._read_text(node)

    def _read_text(self, node: ast.expr) -> str | None:
        value = self._read(self._follow(node))
        return value if isinstance(value, str) and not value.startswith("${") else None

    def _read(self, node: ast.expr) -> Json:
        """A value that is written out; the text of the expression where it is not."""
        try:
            value = ast.literal_eval(node)
        except (ValueError, TypeError):
            return f"${{{ast.unparse(node)}}}"
        return _as_json(value)


def _as_json(value: object) -> Json:
    """A literal, with tuples and sets as lists; None where JSON has none like it."""
    match value:
        case list() | tuple() | set():
            return [_as_json(item) for item in (sorted(value, key=str) if isinstance(value, set) else value)]
        case dict():
            return {str(key): _as_json(item) for key, item in value.items()}
        case bool() | int() | float() | str():
            return value
        case _:
            return None
