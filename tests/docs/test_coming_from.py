"""docs/coming_from.md names options that recipes have, with values that they take."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import TypeAdapter
from pydantic.fields import FieldInfo

from lockstep.config import Section, registry
from lockstep.config.errors import section_of
from lockstep.foreign.names import explain_word

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/coming_from.md").read_text()
KEYS = PAGE[PAGE.index("## Keys of a recipe") : PAGE.index("## Metrics")]
OTHERS = PAGE[PAGE.index("## SkyRL") : PAGE.index("| Lockstep | Tinker |")]
GROUPS = {group.splitlines()[0]: group for group in re.split(r"^### ", KEYS, flags=re.MULTILINE)[1:]}


def options(section: type[Section], above: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every option of a section, and of those within it, by its keys."""
    for name, field in section.model_fields.items():
        yield above + name, field
        inner = section_of(field.annotation)
        if inner is not None:
            yield from options(inner, f"{above}{name}.")


OPTIONS: dict[str, list[FieldInfo]] = defaultdict(list)
"""The option of each recipe that has it, by its keys."""
for _, recipe in registry.every():
    for keys, field in options(recipe):
        OPTIONS[keys].append(field)


def named(part: str) -> list[str]:
    """What stands in backticks in the first cells of tables."""
    cells = re.findall(r"^\| ([^|]*`[^|]*) \|", part, re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


@pytest.mark.parametrize("group", GROUPS)
def test_a_recipe_has_what_is_named(group: str) -> None:
    names = named(GROUPS[group])
    assert names
    assert not [name for name in names if name.partition("=")[0] not in OPTIONS]


def test_a_recipe_has_what_is_named_beside_libraries_that_are_not_converted() -> None:
    assert len(named(OTHERS)) > 40
    assert set(named(OTHERS)) <= set(OPTIONS)


@pytest.mark.parametrize("name", [name for name in named(KEYS) if "=" in name])
def test_a_value_is_one_that_the_option_takes(name: str) -> None:
    keys, _, value = name.partition("=")
    for field in OPTIONS[keys]:
        assert field.annotation is not None
        assert TypeAdapter(field.annotation).validate_python(value) == value


FOUND = {
    "beta": {"grpo.kl.coef", "ppo.kl.coef", "dpo.ref_policy_kl_penalty"},
    "learning_rate": {"policy.lr", "optimizer.lr"},
    "max_completion_length": {"sampling.max_tokens"},
    "num_train_epochs": {"run.max_epochs"},
    "per_device_train_batch_size": {
        "grpo.global_batch_size", "ppo.global_batch_size", "sft.global_batch_size", "dpo.global_batch_size",
        "reward_model.global_batch_size",
    },
}  # fmt: skip
"""What each word must be told to mean, at least."""


@pytest.mark.parametrize("word", FOUND)
def test_messages_know_words_of_the_page(word: str) -> None:
    assert re.search(rf"^\|.*`{word}`.*$", KEYS, re.MULTILINE)
    assert FOUND[word] <= {key for key in OPTIONS if explain_word(word, [key])}


def test_the_tables_are_those_of_the_code(tmp_path: Path) -> None:
    made = tmp_path / "coming_from.md"
    subprocess.run([sys.executable, str(ROOT / ".ci/coming_from.py"), str(made)], cwd=ROOT, check=True)
    assert made.read_text() == PAGE, "the tables in lockstep/foreign have changed; run `make coming-from`"


def test_what_ppo_has_below_ppo_grpo_has_below_grpo() -> None:
    shared = [name for group in GROUPS if group != "The critic" for name in named(GROUPS[group])]
    ours = [name.partition("=")[0].replace("ppo.", "grpo.", 1) for name in shared if name.startswith("ppo.")]
    assert ours
    assert not [keys for keys in ours if keys not in OPTIONS]
    critic = [name for name in named(GROUPS["The critic"]) if name.startswith("ppo.")]
    assert not [name for name in critic if name.replace("ppo.", "grpo.", 1) in OPTIONS]


def test_rows_have_as_many_cells_as_their_table() -> None:
    for table in re.findall(r"(?:^\|.*\n)+", PAGE, re.MULTILINE):
        assert len({row.count("|") for row in table.splitlines()}) == 1, table.splitlines()[2]
