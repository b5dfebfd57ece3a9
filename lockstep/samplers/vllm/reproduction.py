"""A script for an issue in vLLM's tracker: it needs only vLLM, fails because of the fault, and passes without it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from lockstep.samplers.vllm.tap import Address, VLLMTap
from lockstep_doctor.cuts import CutPoint
from lockstep_doctor.locate import Location
from lockstep_doctor.reproduction import find_right, write_script

_SCRIPT = '''"""{what}"""
import functools, os, sys, safetensors.torch
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the model is in this process
from vllm import LLM, SamplingParams

saved, found = safetensors.torch.load_file(__file__[: -len("repro.py")] + "inputs.safetensors"), []
llm = LLM({model!r}, {arguments})
model = llm.llm_engine.model_executor.driver_worker.worker.model_runner.get_model()
def put(address, values):  # calls get their saved arguments and give their saved results; one result is kept
    x = [one for one in (values if isinstance(values, tuple) else (values,)) if hasattr(one, "copy_")]
    if address == "{goal}":
        return found.append(({pick}).cpu().double().flatten())
    for place, one in enumerate(x):
        if (right := saved.get(f"{{address}}|{{place}}")) is not None and right.numel() == one.numel():
            one.copy_(right.reshape(one.shape))
def wrap(path, owner, name):
    plain = getattr(owner, name)
    def call(*values, **named):
        put(path + "|in", (*values, *named.values()))
        put(path + "|out", result := plain(*values, **named))
        if path == "forward":
            model.compute_logits(result)
        return result
    setattr(owner, name, call)
for path in {{name.split("|")[0] for name in [*saved, "{goal}", "forward"] if name not in ("right", "tokens")}}:
    wrap(path, functools.reduce(getattr, path.split(".")[:-1], model), path.split(".")[-1])
llm.generate({{"prompt_token_ids": saved["tokens"].tolist()}}, SamplingParams(max_tokens=1, detokenize=False))
error = float((found[0] - saved["right"].double().flatten()).norm() / saved["right"].double().norm())
print(f"relative error {{error:.2g}}; rounding explains {tolerance:.2g}")
sys.exit(not error <= {tolerance:.2g})
'''


def write_vllm_reproduction(folder: Path, tap: VLLMTap, found: Location, tokens_T: Tensor) -> Path:
    """Writes `repro.py` and `inputs.safetensors` for the first segment of a location; returns the script.

    Args:
        folder: Folder of the two files.
        tap: The engine that is wrong.
        found: The result of `locate`, with a segment.
        tokens_T: Token ids with which it was found.
    """
    end = found.segments[0].end
    goal = next(one for one in tap.addresses() if end in one.cuts)
    inputs = {
        name: value
        for one in tap.addresses()
        if one != goal and any(cut in found.seen and cut.layer in (None, end.layer) for cut in one.cuts)
        for name, value in _arguments(one, found, _find_residual(one, tap.addresses(), found))
    }
    arguments = {
        "dtype": str(tap.dtype).removeprefix("torch."),
        "skip_tokenizer_init": True,
        "enforce_eager": True,
        "enable_prefix_caching": False,
        "max_num_seqs": 1,
        "kv_cache_memory_bytes": 2**27,
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(2048, len(tokens_T)),
        **tap.arguments,
    }
    script = _SCRIPT.format(
        what=f"vLLM: {found.segments[0]} gives other values than the reference, for the same inputs.",
        model=str(tap.folder.resolve()),
        arguments=", ".join(f"{name}={value!r}" for name, value in arguments.items()),
        goal=f"{goal.path}|{goal.end}",
        pick=_pick(goal, end),
        tolerance=found.tolerance,
    )
    kept = inputs | {"right": _tokens_first(find_right(found), len(tokens_T)), "tokens": tokens_T}
    return write_script(folder, script, kept)


def _find_residual(one: Address, addresses: Sequence[Address], found: Location) -> Tensor | None:
    """The value that is added at a sum: the sum before it; None at the first, and where nothing is summed."""
    sums = {cut for address in addresses if address.is_sum for cut in address.cuts}
    order = [cut for cut in found.seen if cut in sums]
    place = order.index(one.cuts[0]) if one.cuts[0] in order else 0
    return found.seen[order[place - 1]] if one.is_sum and place else None


def _arguments(one: Address, found: Location, residual: Tensor | None) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a call, as vLLM has them."""
    count = len(found.seen[CutPoint("logits")].reshape(-1, found.seen[CutPoint("logits")].shape[-1]))
    values = [_tokens_first(found.seen[cut], count) for cut in one.cuts if cut in found.seen]
    if len(values) < len(one.cuts):
        return
    if one.sizes:
        values = [torch.cat([value.reshape(count, -1) for value in values], -1)]
    if residual is not None:
        values = [values[0] - residual.reshape(values[0].shape), residual]
    for place, value in enumerate(values):
        yield f"{one.path}|{one.end}|{place}", value


def _pick(goal: Address, end: CutPoint) -> str:
    """Python that makes the value of a cut of the tensors of its call."""
    place = goal.cuts.index(end)
    if goal.sizes:
        start = sum(goal.sizes[:place])
        return f"x[0][..., {start}:{start + goal.sizes[place]}]"
    return "sum(x)" if goal.is_sum else f"x[{place}] + 0"


def _tokens_first(value: Tensor, count: int) -> Tensor:
    return value.transpose(1, 2) if value.ndim == 4 and value.shape[2] == count != value.shape[1] else value
