"""Exports: what a run trained, as a folder that others open."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from lockstep.cli import main
from lockstep.run.checkpoint.export import export_checkpoint

Run = Callable[..., list[dict[str, Any]]]
# transformers refuses to write it: it does not sample
PUBLISHED = '{"temperature": 0.6, "eos_token_id": [1, 2]}'
CHAT = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"


def logits(folder: str, **options: Any) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder, **options)
    return model(torch.arange(3, 40)[None]).logits.detach()


@pytest.fixture
def finished(assets: Path, run: Run, in_tmp: Path) -> Path:
    """A run of two steps on a published model with odd settings and a chat template, which says
    nothing of itself.
    """
    shutil.copytree(assets / "models/stories260K/hf", "model", copy_function=shutil.copyfile)
    Path("model").chmod(0o755)
    Path("model/generation_config.json").write_text(PUBLISHED)
    Path("model/chat_template.jinja").write_text(CHAT)
    Path("model/README.md").write_text("the card of the published model")
    run("model.scratch=null", "model.path=model", "run.max_steps=2", "data.max_prompt_tokens=200")
    return Path("run")


def test_exported_model_has_same_logits_as_final_model(finished: Path) -> None:
    assert main(["export", "run", "out/model"]) == 0
    assert torch.equal(logits("out/model"), logits("run/final"))
    trained = load_file("run/checkpoints/step_000002/policy/model.safetensors")
    assert torch.equal(
        load_file("out/model/model.safetensors")["model.norm.weight"],
        trained["lm.model.norm.weight"],
    )
    assert not torch.equal(logits("out/model"), logits("model", dtype=torch.float32))


def test_an_earlier_step_can_be_exported(finished: Path) -> None:
    assert main(["export", "run", "out", "--checkpoint", "1"]) == 0
    trained = load_file("run/checkpoints/step_000001/policy/model.safetensors")
    assert torch.equal(
        load_file("out/model.safetensors")["model.norm.weight"], trained["lm.model.norm.weight"]
    )
    assert not torch.equal(logits("out"), logits("run/final"))


def test_export_copies_tokenizer_and_generation_config_byte_for_byte(finished: Path) -> None:
    export_checkpoint(finished, Path("out"))
    for name in (
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
        "chat_template.jinja",
    ):
        assert Path("out", name).read_bytes() == Path("model", name).read_bytes(), name
    tokenizer = PreTrainedTokenizerFast.from_pretrained("out")
    assert (
        tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False)
        == "<user>Hi"
    )


def test_bf16_export_casts_weights_and_sets_config_dtype(finished: Path) -> None:
    assert main(["export", "run", "out", "--dtype", "bf16"]) == 0
    weights = load_file("out/model.safetensors")
    full = load_file("run/final/model.safetensors")
    assert {w.dtype for w in weights.values()} == {torch.bfloat16}
    assert all(torch.equal(weights[name], full[name].bfloat16()) for name in full)
    assert '"dtype": "bfloat16"' in Path("out/config.json").read_text()


def test_run_started_from_final_folder_stores_no_initial_weights_and_exports(run: Run) -> None:
    run("run.folder=first")
    second = ("run.folder=second", "model.scratch=null", "model.path=first/final")
    rows = run(*second)
    assert Path("second/initial/config.json").is_file()
    assert not list(Path("second/initial").glob("*.safetensors"))
    assert run(*second) == rows
    export_checkpoint(Path("second"), Path("out"))
    assert torch.equal(logits("out"), logits("second/final"))
