"""Fuzzed recipes, overrides, rows and model folders: what is read is in order, or one sentence says
why it is not.
"""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from strategies import VALUES, corrupted, find_places, json_bytes, near, spoiled, texts_of
from workspace import furnish

from lockstep.config import DataSection
from lockstep.config.loading import describe_recipe, load_recipe
from lockstep.core.errors import LockstepError
from lockstep.data.demonstrations import DemonstrationRows
from lockstep.data.files import FileGroup, open_rows
from lockstep.data.pair_options import PairSection
from lockstep.data.pairs import PairRows
from lockstep.data.prompts import PromptRows
from lockstep.models.load import load_causal_lm
from lockstep.models.source import open_source
from lockstep.models.tokenizer import load_tokenizer

T = TypeVar("T", bound=Callable[..., None])

LONGEST_CPU_S = 20.0
LONGEST_SENTENCE = 3000
RECIPES = ("tiny", "own", "sft", "dpo", "judged")
SHARED = settings(
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.filter_too_much,
    ]
)

TALK = [{"role": "user", "content": "1+1="}, {"role": "assistant", "content": "2"}]
ROW = {
    "question": "1+1=",
    "answer": "2",
    "talk": TALK,
    "c": "2",
    "r": "3",
    "cs": 2.0,
    "rs": 1,
    "t": {"a": [True]},
}
FIELDS = {"max_prompt_tokens": 64, "train": "rows.jsonl"}
PAIR = {"chosen": "{c}", "rejected": "{r}", "chosen_score": "cs", "rejected_score": "rs"}
TALKS = {
    "text": {"prompt": "{question}\n"},
    "chat": {"chat": True},
    "messages": {"messages": "talk"},
}
CHAT = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"


class HangsError(BaseException):
    """What is read takes too long."""


@contextmanager
def bounded() -> Iterator[None]:
    """Raises HangsError in a block that computes for too long; the clock would count what other
    processes take.
    """

    def stop(*_: object) -> None:
        raise HangsError

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, LONGEST_CPU_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def require_answer(read: Callable[[], object]) -> None:
    """Fails where something else comes of reading than its result or a sentence."""
    try:
        with bounded():
            read()
    except LockstepError as error:
        sentence = str(error)
        assert 0 < len(sentence) < LONGEST_SENTENCE, sentence
        assert "Traceback" not in sentence


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A furnished folder, in which the tests of this file write over each other's files."""
    folder = tmp_path_factory.mktemp("front")
    furnish(folder)
    shutil.copytree(folder / "model", folder / "whole")
    (folder / "talker").mkdir()
    shutil.copytree(folder / "model", folder / "talker", dirs_exist_ok=True)
    (folder / "talker/chat_template.jinja").write_text(CHAT)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder


def few(test: T) -> T:
    """Gives a property few examples, for every day."""
    return settings(SHARED, max_examples=25)(test)


def read_recipe(content: bytes) -> None:
    """Reads a recipe."""
    Path("fuzzed.yaml").write_bytes(content)
    read_overrides("fuzzed.yaml")


@st.composite
def recipes(draw: st.DrawFn) -> bytes:
    tree = yaml.safe_load(Path(f"{draw(st.sampled_from(RECIPES))}.yaml").read_text())
    return draw(corrupted(texts_of(spoiled(tree))))


@st.composite
def overrides(draw: st.DrawFn) -> list[str]:
    """A recipe, then options with values of all kinds, and what looks like some."""
    recipe = f"{draw(st.sampled_from(RECIPES))}.yaml"
    tree, words = load_recipe(recipe).dump_options(), [recipe]
    for _ in range(draw(st.integers(1, 4))):
        *above, key = draw(
            st.sampled_from([place for place in find_places(tree) if isinstance(place[-1], str)])
        )
        inside: Any = tree
        for part in above:
            inside = inside[part]
        name = ".".join(map(str, (*above, key)))
        value = st.one_of(near(inside[key]), near(inside[key]), VALUES).map(json.dumps)
        odd = st.one_of(
            st.text(max_size=8), st.text(max_size=8).map(lambda text, name=name: f"{name}={text}")
        )
        words.append(
            draw(st.one_of(*[value.map(lambda text, name=name: f"{name}={text}")] * 6, odd))
        )
    return words


def read_overrides(recipe: str, *words: str) -> None:
    """Reads a recipe with overrides; what is described of it has to be the same recipe."""
    loaded = load_recipe(recipe, words)
    Path("described.yaml").write_text(describe_recipe(loaded))
    assert load_recipe("described.yaml").dump_options() == loaded.dump_options()


@st.composite
def rows(draw: st.DrawFn) -> bytes:
    """Lines of rows, most of them in order."""
    lines = draw(st.lists(st.one_of(st.just(ROW), spoiled(ROW)), min_size=1, max_size=3))
    return draw(corrupted(st.just(b"".join(json_bytes(line) + b"\n" for line in lines))))


def read_rows(content: bytes, name: str, kind: str, talk: str, options: dict[str, Any]) -> None:
    """Reads rows as prompts, as demonstrations or as pairs."""
    Path(name).write_bytes(content)
    tokenizer, fields = load_tokenizer("talker"), FIELDS | TALKS[talk] | options
    rows = open_rows(FileGroup((Path(name),)), options.get("bad_rows", "error"))
    match kind:
        case "pairs":
            read = PairRows(rows, tokenizer, PairSection.model_validate(fields | PAIR), 64)
        case "demonstrations":
            read = DemonstrationRows(rows, tokenizer, DataSection.model_validate(fields), 64)
        case _:
            read = PromptRows(rows, tokenizer, DataSection.model_validate(fields))
    read.read_first()


PLACES = st.sampled_from(
    ["config.json", "config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json",
     "model.safetensors.index.json", "model.safetensors", "adapter_config.json", "special_tokens_map.json",
     "added_tokens.json", "chat_template.jinja"]
)  # fmt: skip


@st.composite
def files_of_models(draw: st.DrawFn) -> dict[str, bytes]:
    """One or two files of a model's folder, by their names."""
    found = {}
    for name in draw(st.lists(PLACES, min_size=1, max_size=2, unique=True)):
        file = Path("whole") / name
        if name == "model.safetensors":
            whole = file.read_bytes()
            size = int.from_bytes(whole[:8], "little")
            header = draw(spoiled(json.loads(whole[8 : 8 + size])).map(json_bytes))
            found[name] = draw(
                corrupted(st.just(len(header).to_bytes(8, "little") + header + whole[8 + size :]))
            )
        elif name.endswith(".json"):
            known = {
                "weight_map": {"model.norm.weight": "model.safetensors"},
                "peft_type": "LORA",
                "eos_token": "<eos>",
            }
            tree = json.loads(file.read_text()) if file.is_file() else known
            found[name] = draw(corrupted(texts_of(spoiled(tree))))
        else:
            found[name] = draw(corrupted(st.just(CHAT.encode())))
    return found


def read_model(files: dict[str, bytes]) -> None:
    """Reads a model's folder; what opens has to compute finite numbers."""
    shutil.rmtree("fuzzed", ignore_errors=True)
    shutil.copytree("whole", "fuzzed")
    for name, content in files.items():
        (Path("fuzzed") / name).write_bytes(content)
    source = open_source("fuzzed")
    source.decode(source.prompt_ids("1+1="))
    model = load_causal_lm("fuzzed")
    for name, tensor in model.state_dict().items():
        assert tensor.isfinite().all(), name


@few
@given(recipes())
def test_fuzzed_recipe_loads_or_raises_lockstep_error(here: Path, content: bytes) -> None:
    require_answer(lambda: read_recipe(content))


@few
@given(overrides())
def test_fuzzed_overrides_load_or_raise_lockstep_error(here: Path, words: list[str]) -> None:
    require_answer(lambda: read_overrides(*words))


ROWS = {
    "content": rows(),
    "name": st.sampled_from(["f.jsonl", "f.jsonl", "f.jsonl", "f.json", "f.jsonl.gz", "f.parquet"]),
    "kind": st.sampled_from(["prompts", "demonstrations", "pairs"]),
    "talk": st.sampled_from(sorted(TALKS)),
    "options": st.fixed_dictionaries(
        {},
        optional={
            "bad_rows": st.sampled_from(["error", "skip"]),
        },
    ),
}


@few
@given(**ROWS)
def test_fuzzed_data_rows_load_or_raise_lockstep_error(here: Path, **drawn: Any) -> None:
    require_answer(lambda: read_rows(**drawn))


@few
@given(files_of_models())
@example({"tokenizer_config.json": b'{"tokenizer_class": "TokenizersBackend", "unk_token": ""}'})
def test_fuzzed_model_folder_loads_or_raises_lockstep_error(
    here: Path, files: dict[str, bytes]
) -> None:
    require_answer(lambda: read_model(files))
