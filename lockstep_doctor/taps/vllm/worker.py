"""A vLLM worker with a tap, for `lockstep doctor locate`: records and overwrites values, and
records operators.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from operator import attrgetter
from typing import Any

import safetensors.torch
from torch import Tensor

from lockstep.samplers.vllm.worker import WeightReceiver
from lockstep_doctor.cuts import CutPoint
from lockstep_doctor.modules import PassState, count_functions
from lockstep_doctor.operators import Recorder, StackFrame
from lockstep_doctor.taps.vllm.sites import TapSite, find_sites

OPENED = ("vllm", "vllm_ir")
"""Namespaces of operators written in Python; the operators inside are recorded instead."""

_MACHINERY = (
    "vllm/_custom_ops.py",
    "vllm/ir/op.py",
    "vllm/model_executor/custom_op.py",
    "vllm/utils/torch_utils.py",
    "lockstep/samplers/vllm/narrow_heads.py",
)

UNSET = 5e4
"""Value that fills an unused cache slot: above `values.MASKED`, and finite in every dtype."""


@dataclass(frozen=True)
class PassRequest:
    """Request to record one pass.

    Attributes:
        count: Tokens of the sequence.
        start: The cut after which operators are recorded; None: from the beginning.
        end: The cut up to which operators are recorded; None: none are.
        functions: Whether to count function calls.
    """

    count: int
    start: str | None = None
    end: str | None = None
    functions: bool = False


class RollingPass(PassState):
    """`PassState` that records from the last cuts before `end`, unless `start` is executed earlier.

    vLLM may execute cuts in a different order, with `start` in parallel with `end` or after it.
    """

    def __init__(
        self,
        forced: dict[CutPoint, Tensor],
        recorder: Recorder,
        start: CutPoint | None,
        end: CutPoint,
    ):
        super().__init__(forced, recorder, None, end)
        self._rolling = recorder
        self._from = start
        self._end_cut = end
        self._is_fixed = False

    def reach_cuts(self, cuts: Sequence[CutPoint]) -> None:
        """Notes that cuts at one site are reached."""
        if not self._rolling.on or self._is_fixed or self._end_cut in cuts:
            return
        self._rolling.restart_record()
        self._is_fixed = self._from in cuts


class TappedWorker(WeightReceiver):
    """`WeightReceiver` that taps one pass at a time."""

    _taps: ExitStack | None = None
    _tokens = 0

    def open_tap(self, asked: str, forced: bytes) -> None:
        """Taps the next pass.

        Args:
            asked: `PassRequest` as JSON.
            forced: Values to write by cut, as safetensors.
        """
        self._asked = PassRequest(**json.loads(asked))
        if self._taps is not None:
            self._taps.close()  # of a pass that did not start
        values = dict[CutPoint, Tensor]()
        self._turned = set[CutPoint]()
        for name, value in safetensors.torch.load(forced).items():
            cut = CutPoint.from_name(name)
            values[cut] = value
            # some `transformers` models have shape [1, heads, tokens, width]; vLLM has tokens first
            if value.ndim == 4 and value.shape[2] == self._asked.count != value.shape[1]:
                self._turned.add(cut)
                values[cut] = value.transpose(1, 2)
        self._forced = frozenset(values)
        self._recorder = Recorder(OPENED)
        self._ran: dict[str, int] = {}
        self._pass = PassState(values)
        if self._asked.end is not None:
            if self._asked.start is None:
                start = None
            else:
                start = CutPoint.from_name(self._asked.start)
            self._pass = RollingPass(
                values, self._recorder, start, CutPoint.from_name(self._asked.end)
            )
            for cache in self.model_runner.kv_caches:
                cache.fill_(UNSET)
        self._tokens = 0
        self._sums: dict[str, Tensor] = {}
        self._taps = ExitStack()
        found = find_sites(self._model, self._meta_model)
        self._hidden = found.hidden
        for site in found.sites:
            self._tap_at(site)
        self._replace_method("forward", self._wrap_forward(self._model.forward))

    def close_tap(self) -> str:
        """Removes the tap; returns the non-tensor results as JSON."""
        assert self._taps is not None, "a tap is opened before it is closed"
        self._taps.close()
        if self._tokens < self._asked.count:
            raise ValueError(
                f"vLLM read only {self._tokens} of {self._asked.count} tokens in one pass; raise "
                "max_num_batched_tokens"
            )
        self._trace = self._recorder.join_calls()
        seen = self._pass.collect_values()
        self._seen = {
            cut: x.transpose(0, 1) if cut in self._turned else x for cut, x in seen.items()
        }
        operators = list[dict[str, Any]]()
        for one in self._trace.operators:
            operators.append(asdict(replace(one, stack=_drop_machinery(one.stack))))
        return json.dumps(
            {
                "order": list(map(str, self._seen)),
                "hidden": list(map(str, self._hidden)),
                "functions": self._ran,
                "operators": operators,
                "around": list(map(asdict, _drop_machinery(self._trace.around))),
            },
            default=str,
        )

    def read_tap_values(self) -> bytes:
        """Returns the recorded values by cut, and those of the trace by number, as safetensors;
        then drops them.
        """
        seen = {str(cut): value for cut, value in self._seen.items()}
        traced = {f"#{number}": value for number, value in enumerate(self._trace.values)}
        del self._recorder, self._pass, self._sums, self._trace, self._seen
        return safetensors.torch.save(
            {name: value.contiguous().cpu() for name, value in (seen | traced).items()}
        )

    def _tap_at(self, site: TapSite) -> None:
        """Visits the cuts of a site on every call."""
        plain = attrgetter(site.path)(self._model)

        def call_tapped(*args: Any, **keywords: Any) -> Any:
            if site.end == "in":
                self._visit_site(site, (*args, *keywords.values()))
                return plain(*args, **keywords)
            outcome = plain(*args, **keywords)
            self._visit_site(site, outcome)
            return outcome

        self._replace_method(site.path, call_tapped)

    def _visit_site(self, site: TapSite, value: Any) -> None:
        with self._recorder.pause_recording():
            if isinstance(value, tuple):
                added = self._sums.get(site.path)
            else:
                added = None
            if site.end == "in" or added is None:
                views = site.view_values(value, self._asked.count)
            else:
                views = site.view_sum(value, added)
        if isinstance(self._pass, RollingPass):
            self._pass.reach_cuts([cut for cut, _ in views])
        for cut, x in views:
            self._pass.visit_cut(cut, x)
            with self._recorder.pause_recording():
                if site.is_sum:
                    self._sums[site.path] = x.clone()
                if site.is_sum and cut in self._forced:
                    site.overwrite_sum(value, x)
                if added is not None and site.end == "out" and cut in self._forced:
                    self._overwrite_pair(value, (x, added))

    def _overwrite_pair(self, parts: Sequence[Tensor], values: Sequence[Tensor]) -> None:
        """Overwrites the output and the residual of a fused norm."""
        for part, right in zip(parts, values, strict=True):
            part[: self._asked.count].copy_(right)

    def _wrap_forward(self, plain: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Wraps the model's forward pass, and computes the logits of all positions after it."""

        def forward(*args: Any, **keywords: Any) -> Tensor:
            assert self._taps is not None
            # closes the taps before vLLM computes its own logits
            with self._taps, ExitStack() as block:
                if self._asked.end is not None:
                    block.enter_context(self._recorder)
                if self._asked.functions:
                    self._ran = block.enter_context(count_functions())
                self._pass.begin_call()
                states = plain(*args, **keywords)
                self._tokens = len(states)
                self._model.compute_logits(states[: self._asked.count])
            return states

        return forward

    def _replace_method(self, path: str, function: Callable[..., Any]) -> None:
        """Replaces a method of a submodule until the tap is closed."""
        owner, _, name = path.rpartition(".")
        if owner:
            part = attrgetter(owner)(self._model)
        else:
            part = self._model
        held = part.__dict__.get(name)
        setattr(part, name, function)
        assert self._taps is not None
        if held is None:
            self._taps.callback(delattr, part, name)
        else:
            self._taps.callback(setattr, part, name, held)


def _drop_machinery(stack: Sequence[StackFrame]) -> tuple[StackFrame, ...]:
    """Drops lines of vLLM's operator dispatch and of taps from a stack."""
    return tuple(frame for frame in stack if not frame.file.endswith(_MACHINERY))
