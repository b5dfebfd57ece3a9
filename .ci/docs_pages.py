"""Writes the reference of the site from the code: options, metrics and the names of packages.

`make docs` runs it.
"""

import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from lockstep.api import algorithms
from lockstep.config import Section, registry
from lockstep.config.errors import find_section_class, format_value
from lockstep.report.metric_sentences import BY_LAST_WORD, BY_NAME, BY_PATTERN

OUT = Path(__file__).parent.parent / "build/reference"
_KINDS = {
    "boolean": "true or false",
    "integer": "whole number",
    "number": "number",
    "string": "text",
    "array": "list",
    "object": "mapping",
    "null": "null",
}
_LIMITS = {
    "exclusiveMinimum": "above",
    "minimum": "at least",
    "exclusiveMaximum": "below",
    "maximum": "at most",
}
OPTIONS = """# Options

Every option of every recipe: what it may be, its default, and what it does. An algorithm's table links to its sections,
which stand once below, under the name of their class. `lockstep config RECIPE --explain` has one recipe's.

"""
METRICS = """# Metrics

What the algorithms that ship log in `metrics.jsonl`, and what the report says of each. Which of them a run logs, its
algorithm and its options decide.

"""
ARGUMENTS = """Arguments are the recipe's options, by name: `model` also as a folder, `train` and `validation` as
files or rows, `reward` as a function or a verifier's name; see [Trainer](#lockstep.Trainer).
"""
PACKAGES = {
    "lockstep": "The names of `import lockstep`, which semantic versioning covers.",
    "lockstep.algorithms": (
        "All that an algorithm of your own is made of ([guide](../guides/own_algorithm.md))."
    ),
    "lockstep.config": (
        "The sections of recipes, for algorithms of your own ([all options](options.md))."
    ),
    "lockstep.losses": "Losses, which are values, and what they are made of.",
    "lockstep.objectives": "The mathematics of losses: pure functions of tensors.",
    "lockstep_logprobs": (
        "Log-probabilities over shards of vocabulary and sequences; needs torch alone."
    ),
}
"""Packages with a page → what it begins with."""


def main() -> None:
    """Writes the pages."""
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else OUT
    out.mkdir(parents=True, exist_ok=True)
    (out / "options.md").write_text(OPTIONS + "\n".join(describe_options()))
    (out / "metrics.md").write_text(METRICS + "\n".join(describe_metrics()))
    for name, about in PACKAGES.items():
        (out / f"{name.replace('.', '_')}.md").write_text("\n".join(list_names(name, about)))


def describe_options() -> Iterator[str]:
    """Lines with each recipe's table, and one of each section below them."""
    sections: dict[str, type[Section]] = {}
    yield "## Recipes\n"
    for name, kind in registry.iterate_algorithms():
        yield f"### `algorithm: {name}`\n"
        yield from describe_section(kind, sections)
    yield "## Sections\n"
    written: set[str] = set()
    while left := sorted(sections.keys() - written):
        for name in left:
            written.add(name)
            yield f"### {name}\n\n{first_paragraph(sections[name])}\n"
            yield from describe_section(sections[name], sections)


def describe_section(
    kind: type[Section], sections: dict[str, type[Section]], page: str = ""
) -> Iterator[str]:
    """The table of a section; those within it are added to `sections`, which are described on
    `page`.
    """
    schema = kind.model_json_schema()
    if not schema.get("properties"):
        yield "No options.\n"
        return
    yield "| option | is | default | |\n|---|---|---|---|"
    for name, field in kind.model_fields.items():
        if name == "algorithm":
            continue
        entry = schema["properties"][name]
        inner = find_section_class(field.annotation)
        if inner is not None:
            sections[inner.__name__] = inner
        meaning = field.description or (first_paragraph(inner) if inner is not None else "")
        values = (
            describe_kind(entry)
            if inner is None
            else f"[{inner.__name__}]({page}#{inner.__name__.lower()})"
        )
        yield row(f"`{name}`", values, default(entry, name in schema.get("required", ())), meaning)
    yield ""


def describe_kind(schema: Mapping[str, Any]) -> str:
    """Describes the values that an option may have, in words."""
    if "anyOf" in schema:
        return " or ".join(describe_kind(choice) for choice in schema["anyOf"])
    if "const" in schema or "enum" in schema:
        *others, last = [format_value(value) for value in schema.get("enum", [schema.get("const")])]
        return f"{', '.join(others)} or {last}" if others else last
    if "type" not in schema:
        return "group of options"
    limits = [f"{word} {schema[name]:g}" for name, word in _LIMITS.items() if name in schema]
    items = schema.get("prefixItems")
    of = f" of {len(items)}, each {describe_kind(items[0])}" if items else ""
    return f"{_KINDS[schema['type']]}{of}{' ' if limits else ''}{' and '.join(limits)}"


def default(entry: Mapping[str, object], required: bool) -> str:
    """What an option is where a recipe does not say."""
    if required:
        return "required"
    value = entry.get("default")
    return "" if isinstance(value, dict) else f"`{json.dumps(value, ensure_ascii=False)}`"


def first_paragraph(kind: type) -> str:
    """The beginning of a docstring, on one line."""
    return " ".join((kind.__doc__ or "").split("\n\n")[0].split())


def describe_metrics() -> Iterator[str]:
    """Lines with a table for each first word of names, and one of the names that several have."""
    groups: dict[str, dict[str, str]] = defaultdict(dict)
    for name, sentence in BY_NAME.items():
        groups[name.partition("/")[0]][name] = sentence
    for group, sentences in groups.items():
        yield f"## {group}\n\n| metric | |\n|---|---|"
        yield from (row(f"`{name}`", sentence) for name, sentence in sentences.items())
        yield ""
    yield "## Names in several groups\n"
    yield (
        "Below `train/`, `policy/`, `critic/`, `validation/` and `val/`, where no table above "
        "has them.\n"
    )
    yield "| ends in | |\n|---|---|"
    yield from (row(f"`{name}`", sentence) for name, sentence in BY_LAST_WORD.items())
    yield "\n## Names with a part that varies\n\n| metric | |\n|---|---|"
    for pattern, sentence in BY_PATTERN:
        name = re.sub(r"\(\?P<(\w+)>.*?\)", r"{\1}", pattern.pattern).removeprefix(".*/")
        yield row(f"`{name}`", sentence)
    yield row("`epoch_{n}/…`", "The same metric in pass n over the step's batch.")
    yield row(
        "`staleness/…`",
        "As under `agreement/`, between the current policy and the older one that sampled.",
    )
    yield ""


def list_names(package: str, about: str) -> Iterator[str]:
    """Lines with a directive for each public name of a package."""
    yield f"# {package}\n\n{about}\n"
    for name in import_module(package).__all__:
        if f"{package}.{name}" in PACKAGES:
            continue
        yield f"::: {package}.{name}\n"
        algorithm = getattr(vars(algorithms).get(name), "algorithm", None)
        kind = registry.find_algorithm(algorithm) if package == "lockstep" and algorithm else None
        if kind is not None:
            yield ARGUMENTS
            yield from describe_section(kind, {}, "options.md")
            field = kind.model_fields.get(algorithm)
            own = None if field is None else find_section_class(field.annotation)
            if own is not None:
                yield f"`{algorithm}` is a mapping of:\n"
                yield from describe_section(own, {}, "options.md")


def row(*cells: str) -> str:
    """A row of a table."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    main()
