"""Fourth faults of how a pass is made: states that are kept, windows, convolutions in packed rows, masks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from benchmarks.doctor_faults.faults_passes import keeping
from benchmarks.doctor_faults.sides import HFSide, TorchSide, undoes
from lockstep.doctor.backends.hf import Sequences
from lockstep.doctor.base import Conditions, Layout
from lockstep.models.attention import Cached
from lockstep.types import Request, SamplingParams

Drawn = tuple[Tensor, Tensor]


def coarse_states(step: float) -> type[HFSide]:
    """Between tokens recurrent states are kept as integers, with a scale for each row of a head's state."""

    class CoarseStates(HFSide):
        def settings(self) -> Mapping[str, Any]:
            return {**super().settings(), "state_dtype": f"int{round(1 / step).bit_length() + 1}"}

        def draw(
            self, model: PreTrainedModel, requests: Sequence[Request], sampling: SamplingParams, conditions: Conditions
        ) -> Drawn:
            if undoes(conditions, "cache"):
                return super().draw(model, requests, sampling, conditions)
            hook = model.register_forward_hook(_states_kept(step))
            try:
                return super().draw(model, requests, sampling, conditions)
            finally:
                hook.remove()

    return CoarseStates


def _states_kept(step: float) -> Callable[..., None]:
    def keep(module: nn.Module, values: tuple[Any, ...], output: Any) -> None:
        for layer in output.past_key_values.layers:
            for state in vars(layer).get("recurrent_states", {}).values():
                if state is not None:
                    scale = state.abs().amax(-1, keepdim=True).clamp(min=1e-9) * step
                    state.copy_((state / scale).round() * scale)

    return keep


def rolling_buffer(short: int) -> type[TorchSide]:
    """Decoding keeps the window in a ring that is some tokens too short; the pass over the prompt needs no ring."""

    class Ring(Cached):
        def _find_visible(self, window: int | None) -> Tensor:
            return super()._find_visible(None if window is None else window - short)

    return keeping(Ring)


class PacksConvolutions(HFSide):
    """A trainer packs; attention is told where sequences begin, convolutions are not."""

    def __init__(self, *values: Any, **named: Any) -> None:
        super().__init__(*values, **named)
        self._usual = replace(self._usual, layout="packed")


def mask_from_ids(count: int) -> type[HFSide]:
    """The trainer makes its mask from ids: what looks like padding is taken for padding, also inside of a text."""

    class MaskFromIds(HFSide):
        def compute_logits(self, model: PreTrainedModel, sequences: Sequences, layout: Layout) -> Sequences:
            if layout == "packed":
                return super().compute_logits(model, sequences, layout)
            padded = pad_sequence(list(sequences), batch_first=True)
            seen = (padded >= count).long()
            logits_BTV = model(input_ids=padded, attention_mask=seen, use_cache=False).logits
            return [logits[: len(tokens)] for logits, tokens in zip(logits_BTV, sequences, strict=True)]

    return MaskFromIds
