"""vLLM looked into, with real engines: equal models have no place, and faults in it have their
lines and scripts.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from doctor_tables import SMALL
from located import TOKENS, assert_column_of_logits
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
)

from lockstep.cli import main
from lockstep.core import exit_codes
from lockstep.core.errors import InputError
from lockstep_doctor.cuts import CutPoint
from lockstep_doctor.engines import EngineOptions
from lockstep_doctor.locate import GapLocation, locate
from lockstep_doctor.modules import ModuleTap, PassState
from lockstep_doctor.operators import OperatorTrace, Recorder

# of vLLM's import
pytestmark = [pytest.mark.full, pytest.mark.needs("vllm"), pytest.mark.filterwarnings("ignore")]

LOOSE = 5e-5
SIZES = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
}
"""Heads as wide as vLLM's kernel wants them: the script knows nothing of those that Lockstep
widens.
"""
FAULT = """        worker = tap.sampler._engine.model_executor.driver_worker.worker
        for layer in worker.model_runner.get_model().model.layers:
            layer.self_attn.attn.impl.scale *= 0.8
"""


@contextmanager
def opened(folder: Path) -> Iterator[Any]:
    from lockstep_doctor.taps.vllm.tap import open_vllm

    with open_vllm(folder, EngineOptions()) as tap:
        yield tap


def worker_of(tap: Any) -> Any:
    return tap.sampler._engine.model_executor.driver_worker.worker


def model_of(tap: Any) -> Any:
    return worker_of(tap).model_runner.get_model()


def kept_by(worker: Any) -> list[str]:
    """Names of what holds tensors of a pass."""
    held = vars(worker).items()
    tables = [
        name
        for name, value in held
        if isinstance(value, dict) and any(map(torch.is_tensor, value.values()))
    ]
    return [
        name for name, value in held if isinstance(value, PassState | Recorder | OperatorTrace)
    ] + tables


def reference_of(folder: Path) -> ModuleTap:
    # gemma2's scores are capped by the eager kernel alone
    kernel = "eager" if "gemma2" in folder.name else "sdpa"
    model: Any = AutoModelForCausalLM.from_pretrained(folder, attn_implementation=kernel)
    if hasattr(model.config, "num_experts"):
        model.set_experts_implementation("eager")
    return ModuleTap(model.eval(), "hf")


def find(folder: Path, tap: Any) -> GapLocation:
    reference = reference_of(folder)
    witness = ModuleTap(copy.deepcopy(reference.model).double(), "float64")
    return locate(reference, tap, TOKENS, witness)


@pytest.fixture(scope="module")
def llama(vllm: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vllm") / "llama"
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**SIZES, pad_token_id=None)).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma2", "qwen3_moe"])
def test_vllm_tap_matches_transformers_at_all_unfused_cuts(
    vllm: None, located_model: Callable[[str], Path], family: str
) -> None:
    folder = located_model(family)
    reference = reference_of(folder)
    with opened(folder) as tap:
        right, own = reference.run(TOKENS, {}), tap.run(TOKENS, {})
        replayed = tap.run(TOKENS, right.seen)
    assert all(cut in own.seen or own.is_hidden(cut) for cut in right.seen)
    assert {"resid_in", "attn_norm", "attn", "o", "resid_mid", "mlp_norm"} <= {
        cut.stage for cut in own.seen
    }
    for cut, value in replayed.seen.items():
        expected = right.seen[cut].double().flatten()
        assert (value.double().flatten() - expected).norm() < LOOSE * expected.norm(), cut
    assert_column_of_logits(own)
    torch.testing.assert_close(own.logits, right.logits, rtol=0, atol=1e-4)


def test_vllm_gemma3_with_head_norms_shows_no_fault(vllm: None, tmp_path: Path) -> None:
    torch.manual_seed(0)
    Gemma3ForCausalLM(Gemma3TextConfig(**SIZES, pad_token_id=None)).save_pretrained(tmp_path)
    with opened(tmp_path) as tap:
        assert not find(tmp_path, tap).all_segments


def test_vllm_tap_computes_with_forced_activations(llama: Path) -> None:
    reference = reference_of(llama)
    with opened(llama) as tap:
        before = tap.run(TOKENS, {})
        for stage in ("resid_in", "q", "v", "o", "resid_mid", "up", "down"):
            cut = CutPoint(stage, 1)
            forced = {cut: before.seen[cut] * 1.5}
            one, other = tap.run(TOKENS, forced), reference.run(TOKENS, forced)
            assert (one.logits - before.logits).abs().max() > 1e-3, stage
            torch.testing.assert_close(one.logits, other.logits, rtol=0, atol=1e-4)
        after = tap.run(TOKENS, {})
    assert torch.equal(before.logits, after.logits)


def scale_attention(model: Any) -> None:
    for layer in model.model.layers:
        layer.self_attn.attn.impl.scale *= 0.8


def move_theta(model: Any) -> None:
    rotary = model.model.layers[0].self_attn.rotary_emb
    rotary.base *= 2
    rotary.cos_sin_cache.copy_(rotary._compute_cos_sin_cache())


def shrink_mlp(model: Any) -> None:
    for layer in model.model.layers:
        layer.mlp.forward = lambda x, plain=layer.mlp.forward: plain(x) * 0.97


def drop_residual(model: Any) -> None:
    """The norm hands on another residual than it adds."""
    norm = model.model.layers[1].post_attention_layernorm

    def forward(x: Tensor, residual: Tensor, plain: Any = norm.forward) -> tuple[Tensor, Tensor]:
        output, handed_on = plain(x, residual)
        return output, handed_on * 0.9

    norm.forward = forward


def leave_out_residual(model: Any) -> None:
    """The norm adds nothing to its input, and hands on the input alone."""
    norm = model.model.layers[1].post_attention_layernorm
    norm.forward = lambda x, residual, plain=norm.forward: plain(x, torch.zeros_like(residual))


def swap_pair(model: Any) -> None:
    """The norm hands on its output as the residual, and the residual as its output."""
    for layer in model.model.layers:
        norm = layer.post_attention_layernorm
        norm.forward = lambda x, residual, plain=norm.forward: plain(x, residual)[::-1]


FAULTS: list[tuple[Callable[[Any], None], str, str]] = [
    (scale_attention, "attn", "CPUAttentionBackendImpl.forward"),
    (move_theta, "attn", "RotaryEmbedding.forward_cpu"),
    (shrink_mlp, "resid_out", "shrink_mlp.<locals>.<lambda>"),
    (drop_residual, "mlp_norm", "drop_residual.<locals>.forward"),
    (leave_out_residual, "mlp_norm", "leave_out_residual.<locals>.<lambda>"),
    (swap_pair, "mlp_norm", "LlamaDecoderLayer.forward"),
]


@contextmanager
def restored(model: Any) -> Iterator[None]:
    """Undoes at the end what faults do to a model."""
    owners = [*model.modules(), *(layer.self_attn.attn.impl for layer in model.model.layers)]
    held, tensors = [dict(vars(one)) for one in owners], [x.clone() for x in model.buffers()]
    try:
        yield
    finally:
        for one, before in zip(owners, held, strict=True):
            vars(one).clear()
            vars(one).update(before)
        for own, before in zip(model.buffers(), tensors, strict=True):
            own.copy_(before)


def test_vllm_fault_is_located_at_its_source_function(
    llama: Path, subtests: pytest.Subtests
) -> None:
    with opened(llama) as tap:
        for fault, stage, function in FAULTS:
            with subtests.test(fault.__name__), restored(model_of(tap)):
                fault(model_of(tap))
                found = find(llama, tap)
                assert found.removed > 0.99
                assert stage in {segment.end.stage for segment in found.all_segments}
                assert found.places[0].suspects[0].engine == "vllm"
                assert function in [
                    frame.function for frame in found.places[0].suspects[0].operator.stack[:2]
                ]
                assert (
                    found.places[0].engine_errors["hf"]
                    < 1e-6
                    < 1e-3
                    < found.places[0].engine_errors["vllm"]
                )
        assert not find(llama, tap).all_segments


def test_skipped_vllm_layer_is_located_at_model_forward(llama: Path) -> None:
    with opened(llama) as tap:
        model_of(tap).model.start_layer = 1
        found = find(llama, tap)
    assert found.all_segments[0].missing
    assert found.places[0].suspects[0].engine == "vllm"
    assert found.places[0].suspects[0].operator.stack[0].function == "LlamaModel.forward"


def test_locate_command_writes_vllm_script_that_fails_only_with_fault(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackendImpl

    plain = CPUAttentionBackendImpl.__init__

    def scaled(self: Any, *inputs: Any, **named: Any) -> None:
        plain(self, *inputs, **named)
        self.scale *= 0.8

    monkeypatch.setattr(CPUAttentionBackendImpl, "__init__", scaled)
    options = ["backends=[hf,vllm]", "sampler=vllm", "sampler.vllm.max_model_len=48", *SMALL]
    assert (
        main(["doctor", "locate", str(llama), "--out", str(tmp_path), *options])
        == exit_codes.BROKEN
    )
    (found,) = json.loads((tmp_path / "location.json").read_text())
    script = Path(found["reproduction"])
    text = script.read_text()
    assert len(text.splitlines()) <= 30
    assert "'max_model_len': 48" in text
    assert run(script) == 0  # in a process without the fault
    script.write_text(text.replace("        seen = ", f"{FAULT}        seen = ", 1))
    assert run(script) == 1


def run(script: Path) -> int:
    kept = {**os.environ, "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False, env=kept
    )
    assert "relative error" in done.stdout, done.stderr
    return done.returncode


def test_failed_vllm_pass_removes_tap_from_model(llama: Path) -> None:
    def give_up(x: Tensor) -> Tensor:
        raise MemoryError(f"no memory for {len(x)} tokens")

    with opened(llama) as tap:
        model, before = model_of(tap), tap.run(TOKENS, {})
        model.model.layers[1].mlp.forward = give_up
        with pytest.raises(MemoryError):
            tap.run(TOKENS, {})
        del model.model.layers[1].mlp.forward
        assert not [name for name, module in model.named_modules() if "forward" in vars(module)]
        assert torch.equal(tap.run(TOKENS, {}).logits, before.logits)


def test_the_worker_keeps_no_tensor_of_a_pass_that_was_read(llama: Path) -> None:
    with opened(llama) as tap:
        tap.run(TOKENS, {})
        seen = tap.run(TOKENS, {}).seen
        assert len(seen) > 10
        assert not kept_by(worker_of(tap))
        assert tap.trace(TOKENS, {}, None, list(seen)[3]).operators
        assert not kept_by(worker_of(tap))


def test_vllm_tap_rejects_parallel_option(llama: Path) -> None:
    from lockstep_doctor.taps.vllm.tap import open_vllm

    with (
        pytest.raises(InputError, match="leave out parallel, neighbors and prompt"),
        open_vllm(llama, EngineOptions(parallel={"tp": 2})),
    ):
        pass
