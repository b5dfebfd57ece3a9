"""Lockstep's extension of vLLM's worker, which loads and attests weights."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cached_property
from itertools import chain
from typing import Any

import safetensors.torch
import torch
from torch import Tensor
from transformers import PreTrainedModel
from vllm.config import set_current_vllm_config
from vllm.distributed.parallel_state import get_tp_group
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.reload.layerwise import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)
from vllm.platforms import current_platform

from lockstep.models.folder import build_skeleton, read_config
from lockstep.samplers.vllm.experts import SuspendedKernels
from lockstep.samplers.vllm.load_trace import split_as_in_files, trace_loading
from lockstep.samplers.vllm.narrow_heads import widen_narrow_heads
from lockstep.samplers.vllm.readback import ReadableWeight, find_readable_weights, find_tied_names
from lockstep.weight_sync.buckets import WeightBucket
from lockstep.weight_sync.carriers import BucketCarrier, TransferRoute, open_carrier, unpack_bucket
from lockstep.weight_sync.fingerprints import (
    PendingFingerprint,
    read_fingerprints,
    start_fingerprint,
)

if current_platform.is_cpu():
    # the bf16 kernels use tiles that a process must request first, and do not do so
    torch.cpu._init_amx()
    widen_narrow_heads()


class WeightReceiver:
    """A mix-in for vLLM's worker; uses its `model_runner` and `device`."""

    model_runner: Any
    vllm_config: Any
    device: torch.device
    _carrier: BucketCarrier | None = None

    def open_route(self, first: str) -> None:
        """Opens the route for buckets; `first` is the route of the engine's first rank."""
        route = TransferRoute.from_json(first)
        rank = 0 if route.meeting is None else route.meeting.rank
        self._carrier = open_carrier(route.for_rank(rank + get_tp_group().rank_in_group))

    def receive_weights(self, announced: str) -> None:
        """Receives a bucket; bucket number 0 begins a weight sync."""
        bucket = WeightBucket.from_json(announced)
        with set_current_vllm_config(self.vllm_config), torch.device(self.device):
            if bucket.number == 0:
                # drops leftovers of a failed weight sync
                finalize_layerwise_reload(self._model, self.vllm_config.model_config)
                self._received: dict[str, PendingFingerprint] = {}
                self._names = {tensor.name for tensor in self._readable_weights}
                self._experts = SuspendedKernels(self._model)
                initialize_layerwise_reload(self._model)
            self._model.load_weights(
                split_as_in_files(self._meta_model, dict(self._receive_parameters(bucket))).items()
            )

    def attest_weights(self) -> str:
        """Ends the weight sync.

        Returns the fields of a `WeightAttestation` that only this process knows, as JSON.
        """
        model = self._model
        config = self.vllm_config.model_config
        with set_current_vllm_config(self.vllm_config), torch.device(self.device):
            finalize_layerwise_reload(model, config)
            self._experts.restore_kernels()
            if current_platform.is_cpu():
                self._repack_heads()
        self.model_runner.reset_encoder_cache()
        self.model_runner.reset_mm_cache()
        found = self._readable_weights
        columns = dict[str, int]()
        pending = dict(self._received)
        for tensor in found:
            if tensor.has_packed_part:
                columns[tensor.name] = tensor.column_fingerprint()
            else:
                pending[tensor.name] = tensor.compute_fingerprint()
        held = dict(zip(pending, read_fingerprints(list(pending.values())), strict=True))
        tied = find_tied_names(self._meta_model)
        for name, other in tied.items():
            held.setdefault(name, held.get(other, 0))
        return json.dumps(
            {
                "fingerprints": held,
                "columns": columns,
                "received": sorted(self._received.keys() - {tensor.name for tensor in found}),
                "tied": tied,
            }
        )

    @torch.no_grad()
    def show_tensor(self, name: str) -> bytes:
        """A tensor as the engine computes with it, as safetensors."""
        (found,) = [tensor for tensor in self._readable_weights if tensor.name == name]
        with set_current_vllm_config(self.vllm_config):
            return safetensors.torch.save({name: found.read_tensor().contiguous().cpu()})

    def attention_of_layers(self) -> str:
        """The attention kernel and the KV cache's type, as JSON."""
        groups = chain.from_iterable(self.model_runner.attn_groups)
        kernels = {group.backend.get_name() for group in groups}
        cached = {str(cache.dtype).removeprefix("torch.") for cache in self.model_runner.kv_caches}
        return json.dumps(
            {"kernel": ", ".join(sorted(kernels)), "cache": ", ".join(sorted(cached))}
        )

    @property
    def _model(self) -> Any:
        return self.model_runner.get_model()

    def _receive_parameters(self, bucket: WeightBucket) -> Iterator[tuple[str, Tensor]]:
        """Yields copies of a bucket's tensors that are parameters here.

        Layers keep the copies until all parts of a parameter have arrived.
        """
        assert self._carrier is not None, "a receiver opens a route before it receives"
        for name, tensor in unpack_bucket(self._carrier, bucket, self.device):
            self._received[name] = start_fingerprint(tensor)
            if name in self._names:
                yield name, tensor.to(self.device, copy=True)

    @cached_property
    def _meta_model(self) -> PreTrainedModel:
        """The model in `transformers`, on the meta device."""
        folder = self.vllm_config.model_config.model
        return build_skeleton(read_config(folder), folder)

    @cached_property
    def _readable_weights(self) -> list[ReadableWeight]:
        config = self.vllm_config.model_config
        with set_current_vllm_config(self.vllm_config), torch.device(self.device):
            trace = trace_loading(self._model, config, self._meta_model)
        return find_readable_weights(self._model, trace, self._meta_model, config.dtype)

    def _repack_heads(self) -> None:
        """Repacks a tied head, which is not sent and would keep its old packed weights."""
        for layer in self._model.modules():
            if isinstance(layer, ParallelLMHead):
                layer.quant_method.process_weights_after_loading(layer)
