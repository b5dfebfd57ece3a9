"""vLLM for `lockstep doctor locate`: one sequence is read in eager mode, and its worker says what flowed inside."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from lockstep.config import VLLM, SamplerSection
from lockstep.errors import InputError
from lockstep.models.engine_options import computation_of
from lockstep.models.folder import context_of, read_config
from lockstep.samplers.vllm.sampler import VLLMSampler, pick_logprobs
from lockstep_doctor.cuts import OUTPUT, Capture, CutPoint, End
from lockstep_doctor.engines import EngineOptions
from lockstep_doctor.locate import Location
from lockstep_doctor.operators import Frame, Operator, OperatorTrace

_CACHE_GIB = 0.1
_SMALLEST_BLOCK, _MOST_GROUPS = 16, 4


class TappedSampler(VLLMSampler):
    """`VLLMSampler` whose worker can be looked into."""

    worker = "lockstep.samplers.vllm.tapped_worker.TappedWorker"

    def _start(self, arguments: Any) -> Any:
        from lockstep.samplers.vllm.loading import watch_loading

        with watch_loading():
            return super()._start(arguments)

    def look(
        self, tokens: list[int], asked: Mapping[str, Any], forced: Mapping[CutPoint, Tensor]
    ) -> tuple[dict[str, Any], dict[str, Tensor], Tensor]:
        """Reads one sequence.

        Args:
            tokens: Its ids.
            asked: Fields of `tapped_worker.PassRequest`.
            forced: Values by cut.

        Returns:
            What the worker's `close_tap` and `read_tap_values` return, and log-probabilities [T - 1].
        """
        values = safetensors.torch.save({str(cut): value.contiguous().clone() for cut, value in forced.items()})
        self._on_workers("open_tap", json.dumps({"count": len(tokens), **asked}), values)
        (((_, output),),) = self._stream_outputs([(tokens, {"prompt_logprobs": 0, "max_tokens": 1})])
        header = json.loads(self._on_worker("close_tap"))
        column = torch.tensor(pick_logprobs(tokens[1:], output.prompt_logprobs[1:]))
        return header, safetensors.torch.load(self._on_worker("read_tap_values")), column

    @property
    def engine(self) -> Any:
        """vLLM's own engine."""
        return self._engine

    def find_loaders(self, cut: CutPoint, weights: Mapping[str, Tensor]) -> list[dict[str, Any]]:
        """Returns what `TappedWorker.show_loaders` does, as plain values."""
        right = safetensors.torch.save({name: weight.contiguous().clone() for name, weight in weights.items()})
        return json.loads(self._on_worker("show_loaders", str(cut), right))

    def sites(self) -> list[dict[str, Any]]:
        """Returns the sites of all cuts in the model, as plain values."""
        return json.loads(self._on_worker("tap_sites"))


@dataclass(frozen=True)
class Address:
    """A call in vLLM's model at which cuts lie, see `sites.Site`."""

    path: str
    end: End
    cuts: tuple[CutPoint, ...]
    sizes: tuple[int, ...]
    is_sum: bool


class VLLMTap:
    """Implements `lockstep_doctor.Tap`.

    Args:
        sampler: Reads one sequence alone.
        folder: What it has read.
        dtype: Of weights and activations.
        arguments: Of vLLM's engine, that were chosen for it.
    """

    name = "vllm"

    def __init__(
        self, sampler: TappedSampler, folder: Path, dtype: torch.dtype, arguments: Mapping[str, Any] | None = None
    ) -> None:
        self._sampler, self.folder, self.dtype, self.arguments = sampler, folder, dtype, arguments or {}

    @property
    def engine(self) -> Any:
        """vLLM's own engine."""
        return self._sampler.engine

    def addresses(self) -> list[Address]:
        """Returns where the cuts lie."""
        return [
            Address(
                one["path"], one["end"], tuple(map(CutPoint.parse, one["cuts"])), tuple(one["sizes"]), one["is_sum"]
            )
            for one in self._sampler.sites()
        ]

    def run(self, tokens_T: Tensor, forced: Mapping[CutPoint, Tensor]) -> Capture:
        header, values, column = self._sampler.look(tokens_T.tolist(), {}, forced)
        seen = {CutPoint.parse(name): values[name] for name in header["order"]}
        logits = forced.get(OUTPUT, seen[OUTPUT])
        return Capture(
            logits.reshape(seen[OUTPUT].shape), seen, column, frozenset(map(CutPoint.parse, header["hidden"]))
        )

    def trace(
        self, tokens_T: Tensor, forced: Mapping[CutPoint, Tensor], start: CutPoint | None, end: CutPoint
    ) -> OperatorTrace:
        asked = {"start": None if start is None else str(start), "end": str(end)}
        header, values, _ = self._sampler.look(tokens_T.tolist(), asked, forced)
        count = sum(name.startswith("#") for name in values)
        tables = {
            int(value): OperatorTrace(
                [values[f"table {value} {number}"] for number in range(table["values"])],
                list(map(_operator, table["operators"])),
            )
            for value, table in header["tables"].items()
        }
        return OperatorTrace(
            [values[f"#{number}"] for number in range(count)],
            list(map(_operator, header["operators"])),
            tuple(Frame(**line) for line in header["around"]),
            tables=tables,
            origins={number: _operator(one) for number, one in header["origins"]},
        )

    def functions(self, tokens_T: Tensor) -> Counter[str]:
        header, _, _ = self._sampler.look(tokens_T.tolist(), {"functions": True}, {})
        return Counter(header["functions"])

    def loaders(self, cut: CutPoint, weights: Mapping[str, Tensor]) -> list[Operator]:
        """Implements `tap.LoadsWeights`."""
        right = {name: weight.detach().cpu() for name, weight in weights.items()}
        return list(map(_operator, self._sampler.find_loaders(cut, right)))

    def reproduce(self, folder: Path, found: Location, tokens_T: Tensor) -> Path:
        """Implements `reproduction.Reproducible`."""
        from lockstep.samplers.vllm.reproduction import write_vllm_reproduction

        return write_vllm_reproduction(folder, self, found, tokens_T)


def _operator(plain: Mapping[str, Any]) -> Operator:
    """An operator out of JSON."""
    return Operator(
        plain["name"],
        tuple(Frame(**frame) for frame in plain["stack"]),
        tuple(plain["inputs"]),
        tuple(plain["outputs"]),
        tuple(_scalar(one) for one in plain["scalars"]),
        lines=tuple(Frame(**frame) for frame in plain["lines"]),
    )


def _scalar(plain: Any) -> Any:
    return getattr(torch, plain.removeprefix("torch.")) if isinstance(plain, str) else plain


@contextmanager
def open_vllm(folder: Path, options: EngineOptions) -> Iterator[VLLMTap]:
    """Implements `lockstep_doctor.engines.OpenTap`: vLLM in this process, for one sequence at a time.

    Settings are fields of `config.VLLM`; it always computes eagerly.

    Raises:
        InputError: vLLM is not installed, does not take the model, or cannot compute as asked.
    """
    if options.parallel or options.neighbors or options.prompt is not None:
        raise InputError("the doctor looks into one worker of vLLM, by prefill; leave the layout empty")
    own = VLLM.model_validate({**options.settings, "enforce_eager": True})
    section = SamplerSection(backend="vllm", vllm=own, max_batch_size=1, kv_cache_gib=_CACHE_GIB)
    computation = computation_of(options)
    context = context_of(read_config(str(folder)))
    longest = min(context, own.max_model_len or context)
    # Copies of the cache are compared, so it is no larger than one sequence needs, in each group of layers.
    blocks = _MOST_GROUPS * (longest // _SMALLEST_BLOCK + 1)
    sampler = TappedSampler(
        str(folder),
        section,
        computation,
        options={"enable_prefix_caching": False, "num_gpu_blocks_override": blocks},
    )
    chosen = own.model_dump(exclude={"engine_args", "enforce_eager"}, exclude_none=True) | dict(own.engine_args)
    from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

    try:
        yield VLLMTap(sampler, folder, options.dtype, chosen)
    finally:
        sampler.close()
        cleanup_dist_env_and_memory()
