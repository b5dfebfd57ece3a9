"""Tap on vLLM: reads one sequence in eager mode; the worker returns intermediate values."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from lockstep.config import VLLM, SamplerSection
from lockstep.core.errors import InputError
from lockstep.models.folder import find_context_length, read_config
from lockstep.samplers.vllm.sampler import VLLMSampler, pick_logprobs
from lockstep_doctor.cuts import OUTPUT, CutPoint, PassCapture
from lockstep_doctor.engines import EngineOptions
from lockstep_doctor.operators import Operator, OperatorTrace, StackFrame
from lockstep_doctor.taps.computation import computation_of

_CACHE_GIB = 0.1
_SMALLEST_BLOCK = 16
_MOST_GROUPS = 4


class TappedSampler(VLLMSampler):
    """`VLLMSampler` with a tapped worker."""

    worker = "lockstep_doctor.taps.vllm.worker.TappedWorker"

    def read_sequence(
        self, tokens: list[int], asked: Mapping[str, Any], forced: Mapping[CutPoint, Tensor]
    ) -> tuple[dict[str, Any], dict[str, Tensor], Tensor]:
        """Reads one sequence.

        Args:
            tokens: Token ids.
            asked: Fields of `worker.PassRequest`.
            forced: Values to write, by cut.

        Returns:
            The results of the worker's `close_tap` and `read_tap_values`, and log-probabilities [T
            - 1].
        """
        values = safetensors.torch.save(
            {str(cut): value.contiguous().clone() for cut, value in forced.items()}
        )
        self._call_workers("open_tap", json.dumps({"count": len(tokens), **asked}), values)
        (((_, output),),) = self._stream_outputs(
            [(tokens, {"prompt_logprobs": 0, "max_tokens": 1})]
        )
        header = json.loads(self._call_first_worker("close_tap"))
        column = torch.tensor(pick_logprobs(tokens[1:], output.prompt_logprobs[1:]))
        return header, safetensors.torch.load(self._call_first_worker("read_tap_values")), column


class VLLMTap:
    """Implements `lockstep_doctor.Tap`.

    Args:
        sampler: Reads one sequence alone.
    """

    name = "vllm"

    def __init__(self, sampler: TappedSampler) -> None:
        self.sampler = sampler

    def run(self, tokens_T: Tensor, forced: Mapping[CutPoint, Tensor]) -> PassCapture:
        header, values, column = self.sampler.read_sequence(tokens_T.tolist(), {}, forced)
        seen = {CutPoint.from_name(name): values[name] for name in header["order"]}
        logits = forced.get(OUTPUT, seen[OUTPUT])
        return PassCapture(
            logits.reshape(seen[OUTPUT].shape),
            seen,
            column,
            frozenset(map(CutPoint.from_name, header["hidden"])),
        )

    def trace(
        self,
        tokens_T: Tensor,
        forced: Mapping[CutPoint, Tensor],
        start: CutPoint | None,
        end: CutPoint,
    ) -> OperatorTrace:
        asked = {"start": None if start is None else str(start), "end": str(end)}
        header, values, _ = self.sampler.read_sequence(tokens_T.tolist(), asked, forced)
        count = sum(name.startswith("#") for name in values)
        operators = list[Operator]()
        for plain in header["operators"]:
            operators.append(
                Operator(
                    plain["name"],
                    tuple(StackFrame(**frame) for frame in plain["stack"]),
                    tuple(plain["inputs"]),
                    tuple(plain["outputs"]),
                    tuple(map(_parse_scalar, plain["scalars"])),
                )
            )
        return OperatorTrace(
            [values[f"#{number}"] for number in range(count)],
            operators,
            tuple(StackFrame(**line) for line in header["around"]),
        )

    def functions(self, tokens_T: Tensor) -> Counter[str]:
        header, _, _ = self.sampler.read_sequence(tokens_T.tolist(), {"functions": True}, {})
        return Counter(header["functions"])


def _parse_scalar(plain: Any) -> Any:
    if isinstance(plain, str):
        return getattr(torch, plain.removeprefix("torch."))
    return plain


@contextmanager
def open_vllm(folder: Path, options: EngineOptions) -> Iterator[VLLMTap]:
    """Implements `lockstep_doctor.engines.OpenTap`: vLLM in this process, for one sequence at a
    time.

    Settings are fields of `config.VLLM`; it always computes eagerly.

    Raises:
        InputError: vLLM is not installed, does not support the model, or cannot use the options.
    """
    if options.parallel or options.neighbors or options.prompt is not None:
        raise InputError(
            "the tap on vLLM supports one worker and prefill only; leave out parallel, neighbors "
            "and prompt"
        )
    own = VLLM.model_validate(options.settings)
    section = SamplerSection(backend="vllm", vllm=own, max_batch_size=1, kv_cache_gib=_CACHE_GIB)
    computation = computation_of(options)
    context = find_context_length(read_config(str(folder)))
    longest = min(context, own.max_model_len or context)
    # Copies of the cache are compared, so it is only as large as one sequence needs in each group
    # of
    # layers.
    blocks = _MOST_GROUPS * (longest // _SMALLEST_BLOCK + 1)
    sampler = TappedSampler(
        str(folder),
        section,
        computation,
        options={
            "enable_prefix_caching": False,
            "num_gpu_blocks_override": blocks,
            "enforce_eager": True,
        },
    )
    from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

    try:
        yield VLLMTap(sampler)
    finally:
        sampler.close()
        cleanup_dist_env_and_memory()
