"""Lockstep's extension of vLLM's worker, which loads and attests weights."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cached_property
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

from lockstep.models.folder import read_config, skeleton
from lockstep.samplers.vllm.experts import SetAside
from lockstep.samplers.vllm.landings import as_in_files, survey
from lockstep.samplers.vllm.narrow_heads import widen_narrow_heads
from lockstep.samplers.vllm.readback import ReadableWeight, find_tied_names, readable
from lockstep.weight_sync.buckets import WeightBucket
from lockstep.weight_sync.carriers import BucketCarrier, TransferRoute, open_carrier, unpack
from lockstep.weight_sync.fingerprints import PendingFingerprint, read, take

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
        route = TransferRoute.read(first)
        rank = 0 if route.meeting is None else route.meeting.rank
        self._carrier = open_carrier(route.of(rank + get_tp_group().rank_in_group))

    def receive_weights(self, announced: str) -> None:
        """Receives a bucket."""
        bucket = WeightBucket.read(announced)
        with set_current_vllm_config(self.vllm_config), torch.device(self.device):
            if bucket.number == 0:
                self._begin_sync()
            self._model.load_weights(
                as_in_files(self._network, dict(self._loadable(bucket))).items()
            )

    def attest_weights(self) -> str:
        """Ends the weight sync.

        Returns the fields of an `Attestation` that only this process knows, as JSON.
        """
        model = self._model
        config = self.vllm_config.model_config
        with set_current_vllm_config(self.vllm_config), torch.device(self.device):
            finalize_layerwise_reload(model, config)
            self._experts.restore()
            if current_platform.is_cpu():
                self._repack_heads()
        self.model_runner.reset_encoder_cache()
        self.model_runner.reset_mm_cache()
        found = self._readable
        columns = {tensor.name: tensor.column_fingerprint() for tensor in found if tensor.packed}
        taken = self._received | {
            tensor.name: tensor.take() for tensor in found if not tensor.packed
        }
        held = dict(zip(taken, read(list(taken.values())), strict=True))
        tied = find_tied_names(self._network)
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
        (found,) = [tensor for tensor in self._readable if tensor.name == name]
        with set_current_vllm_config(self.vllm_config):
            return safetensors.torch.save({name: found.tensor().contiguous().cpu()})

    def attention_of_layers(self) -> str:
        """The attention kernel and the KV cache's type, as JSON."""
        kernels = {
            group.backend.get_name() for groups in self.model_runner.attn_groups for group in groups
        }
        cached = {_type_of(cache) for cache in self.model_runner.kv_caches}
        return json.dumps(
            {"kernel": ", ".join(sorted(kernels)), "cache": ", ".join(sorted(cached))}
        )

    @property
    def _model(self) -> Any:
        return self.model_runner.get_model()

    def _begin_sync(self) -> None:
        """Prepares for a full set of weights; drops leftovers of a failed weight sync."""
        finalize_layerwise_reload(self._model, self.vllm_config.model_config)
        self._received: dict[str, PendingFingerprint] = {}
        self._names = {tensor.name for tensor in self._readable}
        self._experts = SetAside(self._model)
        initialize_layerwise_reload(self._model)

    def _loadable(self, bucket: WeightBucket) -> Iterator[tuple[str, Tensor]]:
        """Copies of a bucket's tensors that are parameters here.

        Layers keep them until they are complete.
        """
        assert self._carrier is not None, "a receiver opens a route before it receives"
        for name, tensor in unpack(self._carrier, bucket, self.device):
            self._received[name] = take(tensor)
            if name in self._names:
                yield name, tensor.to(self.device, copy=True)

    @cached_property
    def _network(self) -> PreTrainedModel:
        """The model in `transformers`, on the meta device."""
        folder = self.vllm_config.model_config.model
        return skeleton(read_config(folder), folder)

    @cached_property
    def _readable(self) -> list[ReadableWeight]:
        config = self.vllm_config.model_config
        with set_current_vllm_config(self.vllm_config), torch.device(self.device):
            landings = survey(self._model, config, self._network)
        return readable(self._model, landings, self._network, config.dtype)

    def _repack_heads(self) -> None:
        """Packs a tied head again: it is not sent itself, and would keep its old packed weights."""
        for layer in self._model.modules():
            if isinstance(layer, ParallelLMHead):
                layer.quant_method.process_weights_after_loading(layer)


def _type_of(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
