"""Writes lockstep/api/options.pyi and algorithms.pyi: keyword arguments of algorithms, as typed
dicts, from recipes.

`make face` writes them for a checkout, and setup.py into each wheel.
"""

import sys
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

sys.path.insert(0, str(Path(__file__).parent.parent))

from lockstep.api import algorithms
from lockstep.api.trainer import Trainer
from lockstep.config import Section, registry

ROOT = Path(__file__).parent.parent
OUT = ROOT / "lockstep/api/options.pyi"
SHORT = {
    "model": "str | Path | {}",
    "reward": "RewardValue | {}",
    "validation_reward": "RewardValue | {}",
    "verifier": "RewardValue | {}",
    "environment": "str | type | {}",
    "trackers": "Callable[[str, int, Any], object] | {}",
}
"""Options with a short form beside their section → the type of both."""
CODE = {"function": "str | Callable[..., Any] | None", "class_name": "str | type"}
"""Options that name code, or take it → their type."""
HEAD = '''"""Keyword arguments of each algorithm, for type checkers and editors."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

from lockstep.api.values import RewardValue, RowsValue

'''
FACE = '''"""One class per algorithm that ships, for type checkers and editors."""

from pathlib import Path
from typing import Unpack, final

from lockstep.api.options import {options}
from lockstep.api.trainer import Trainer
'''
CLASS = """
@final
class {name}(Trainer):
    def __init__(self, *, recipe: str | Path | None = None, **options: Unpack[{name}Options]) -> None: ...
"""


def main() -> None:
    """Writes the files."""
    written: dict[type, str] = {}
    names = [
        name
        for name, kind in vars(algorithms).items()
        if isinstance(kind, type) and kind is not Trainer
    ]
    blocks = [recipe_block(name, written) for name in names]
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else OUT
    out.write_text(HEAD + "\n\n".join([*written.values(), *blocks]) + "\n")
    face = FACE.format(options=", ".join(f"{name}Options" for name in names))
    out.with_name("algorithms.pyi").write_text(
        face + "\n".join(CLASS.format(name=name) for name in names)
    )


def recipe_block(name: str, written: dict[type, str]) -> str:
    """The typed dict of the options that a class takes."""
    kind = registry.find_algorithm(vars(algorithms)[name].algorithm)
    assert kind is not None
    lines = ["train: RowsValue", "validation: RowsValue | None"]
    for key, field in kind.model_fields.items():
        if key == "algorithm":
            continue
        told = spell(field.annotation, written)
        if key in SHORT:
            told = SHORT[key].format(told)
        lines.append(f"{key}: {told}")
    return block(f"{name}Options", f"Options of `{name}`.", lines)


def section_name(kind: type[Section], written: dict[type, str]) -> str:
    """The name of a section's typed dict, which is added to `written`."""
    if kind not in written:
        written[kind] = ""  # keeps the order of first use, and ends recursion
        types = {
            name: CODE.get(name) or spell(field.annotation, written)
            for name, field in kind.model_fields.items()
        }
        lines = [f"{name}: {told}" for name, told in types.items()]
        text = block(f"{kind.__name__}Keys", f"Options of the section `{kind.__name__}`.", lines)
        del written[kind]
        written[kind] = text
    return f"{kind.__name__}Keys"


def block(name: str, about: str, lines: Sequence[str]) -> str:
    """The text of a typed dict."""
    head = [f"class {name}(TypedDict, total=False):", f'    """{about}"""', ""]
    return "\n".join([*head, *(f"    {one}" for one in lines)])


def spell(kind: Any, written: dict[type, str]) -> str:
    """The type of an option as it is written."""
    origin, arguments = get_origin(kind), get_args(kind)
    match origin:
        case _ if kind is type(None):
            return "None"
        case _ if origin is Annotated:
            return spell(arguments[0], written)
        case _ if origin is Literal:
            return f"Literal[{', '.join(map(repr, arguments))}]"
        case _ if origin in (Union, types.UnionType):
            return " | ".join(dict.fromkeys(spell(one, written) for one in arguments))
        case _ if origin in (tuple, list):
            items = dict.fromkeys(spell(one, written) for one in arguments if one is not ...)
            return f"Sequence[{' | '.join(items)}]"
        case _ if origin in (dict, Mapping):
            return f"Mapping[str, {spell(arguments[1], written)}]"
        case _ if isinstance(kind, type) and issubclass(kind, Section):
            from lockstep.config import Task

            return "Mapping[str, Any]" if issubclass(kind, Task) else section_name(kind, written)
        case _ if kind in (bool, int, float, str):
            return kind.__name__
        case _:
            return "Any"


if __name__ == "__main__":
    main()
