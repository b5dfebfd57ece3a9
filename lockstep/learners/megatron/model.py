"""One pipeline stage of a Megatron model with a head, from a batch to the learner's outputs."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer import TransformerConfig
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedConfig, PreTrainedModel

from lockstep.core.batch import Batch
from lockstep.core.errors import InputError
from lockstep.core.types import HeadKind
from lockstep.distributed.ranks import RankMesh
from lockstep.losses.base import Outputs
from lockstep.models.families.base import MegatronLayers
from lockstep.models.folder import head_size
from lockstep.models.heads import (
    LogitProducts,
    first_value_weights,
    policy_outputs,
    scores_tokens,
    value_outputs,
    value_unit,
)
from lockstep.models.kernels import FUSED
from lockstep.models.laid_out import LaidOut, read_masked, read_values
from lockstep.models.megatron import find_megatron_layers, split_stages
from lockstep_logprobs.shard import Shard


class LayoutAttention(nn.Module):
    """Attention by a layout, which Megatron passes as `attention_mask`."""

    def __init__(self, config: TransformerConfig, layer_number: int, **_: Any) -> None:
        super().__init__()
        self._layer, self._scale = layer_number, float(config.kv_channels or 0) ** -0.5

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **_: Any
    ) -> Tensor:
        """Attends over tokens [n, 1, heads, size]; returns [n, 1, heads · size]."""
        q, k, v = (x[:, 0].transpose(0, 1)[None] for x in (query, key, value))
        return (
            attention_mask.attend(FUSED, self._layer, q, k, v, self._scale, None)
            .flatten(2)
            .transpose(0, 1)
        )


class PipelineStage(nn.Module):
    """The layers of a pipeline stage; the first stage has the embedding, the last the head.

    Args:
        network: The Hugging Face model, without weights.
        head: Output of the last stage.
        seed: Seed of a value head.
        sent: Type in which a stage sends hidden states to the next.
        ranks: Ranks that hold the model together.

    Attributes:
        config: Megatron's configuration.
        gpt: Megatron's model, without weights.
        first_layer: Index of this stage's first layer among all layers.
        tied: Whether embedding and vocabulary head are tied; with several stages, the first and the
            last have a copy.
        vocabulary: Vocabulary size; matrices are padded, so that all tensor-parallel ranks have the
            same number of rows.
        first_row: This rank's first token.
        own_rows: Number of this rank's rows without padding.
    """

    def __init__(
        self,
        network: PreTrainedModel,
        head: HeadKind,
        seed: int,
        sent: torch.dtype,
        ranks: RankMesh,
    ) -> None:
        super().__init__()
        config = network.config
        self._head: HeadKind = head
        self._ranks = ranks
        family = find_megatron_layers(config)
        self.config = _megatron_config(config, family, sent, ranks)
        here = ranks.index("pp")
        last = ranks.size("pp") - 1
        self.tied = scores_tokens(head) and bool(config.tie_word_embeddings)
        self.vocabulary = int(config.vocab_size)
        rows = -(-self.vocabulary // ranks.size("tp"))
        layer: Any = get_gpt_layer_local_spec(qk_layernorm=family.qk_norm, normalization="RMSNorm")
        layer.submodules.self_attention.submodules.core_attention = LayoutAttention
        self.gpt = GPTModel(
            self.config,
            layer,
            vocab_size=rows * ranks.size("tp"),
            max_sequence_length=int(config.max_position_embeddings),
            pre_process=here == 0,
            post_process=here == last,
            share_embeddings_and_output_weights=last == 0
            and (self.tied or not scores_tokens(head)),
            position_embedding_type="none",
            pg_collection=ProcessGroupCollection.use_mpu_process_groups(),
        )
        self.model_type = self.gpt.model_type
        self.first_layer = sum(split_stages(self.config.num_layers, last + 1)[:here])
        self.first_row = min(rows * ranks.index("tp"), self.vocabulary)
        self.own_rows = min(rows, self.vocabulary - self.first_row)
        # frequencies of rotary positions, as `transformers` computes them
        rotary: Any = type(network.base_model.get_submodule("rotary_emb"))(config)
        if rotary.attention_scaling != 1.0:
            raise InputError(
                "learner.backend=megatron does not support the model's rotary position scaling"
            )
        self.rotary_emb: nn.Module = rotary
        if not scores_tokens(head) and here == last:
            del self.gpt.output_layer
            self.value = value_unit(self.config.hidden_size, head)
            with torch.no_grad():
                for name, tensor in first_value_weights(
                    self.config.hidden_size, seed, head
                ).items():
                    self.get_parameter(name).copy_(tensor)

    def set_input_tensor(self, tensors: Any) -> None:
        """Receives the previous stage's output; Megatron's schedules call it."""
        self.gpt.set_input_tensor(tensors)

    def lay_out(self, batch: Batch) -> LaidOut:
        """Lays out a batch on the CPU, so that the model need not sync with its device."""
        return LaidOut.from_batch(
            batch, self._ranks, read_masked if scores_tokens(self._head) else read_values
        )

    def forward(self, batch: LaidOut) -> Outputs | Tensor:
        """Outputs on the last stage, hidden states [n, 1, D] on others."""
        cut = batch.cut
        if self.gpt.pre_process:
            states = self.gpt.embedding(cut.tokens[None], cut.position[None])
        else:
            states = None
        turns = cut.position[:, None].float() * self.get_buffer("rotary_emb.inv_freq")
        rotary = torch.cat((turns, turns), dim=-1)[:, None, None]
        states = self.gpt.decoder(
            hidden_states=states, attention_mask=cut.layout, rotary_pos_emb=rotary
        )
        if not self.gpt.post_process:
            sent = self.config.pipeline_dtype
            if states.dtype != sent:  # the next stage would misread these bytes
                raise RuntimeError(
                    f"a stage computed hidden states in {states.dtype}, and the next one expects "
                    f"{sent}"
                )
            return states
        if not scores_tokens(self._head):
            return value_outputs(batch, partial(states[:, 0].index_select, 0), self.value)
        weight = self.head_weight[: self.own_rows]
        shard = Shard(self.first_row, self._ranks.group("tp"))
        return policy_outputs(
            batch,
            lambda state_m: LogitProducts(states[:, 0].index_select(0, state_m), weight, shard),
        )

    @property
    def head_weight(self) -> Tensor:
        """This rank's rows of the vocabulary head, with padding."""
        shared = self.gpt.share_embeddings_and_output_weights
        if shared:
            weight = self.gpt.embedding.word_embeddings.weight
        else:
            weight = self.gpt.output_layer.weight
        assert weight is not None, "the first stage has the embedding, the last one the head"
        return weight


def join_groups(ranks: RankMesh) -> None:
    """Creates Megatron's process groups, in the order of our mesh; once per process."""
    if not parallel_state.model_parallel_is_initialized():
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=ranks.size("tp"),
            pipeline_model_parallel_size=ranks.size("pp"),
            context_parallel_size=ranks.size("cp"),
            order="tp-cp-ep-pp-dp",
        )


def _megatron_config(
    config: PreTrainedConfig, family: MegatronLayers, sent: torch.dtype, ranks: RankMesh
) -> TransformerConfig:
    split = split_stages(int(config.num_hidden_layers), ranks.size("pp"))
    return TransformerConfig(
        num_layers=int(config.num_hidden_layers),
        hidden_size=int(config.hidden_size),
        ffn_hidden_size=int(config.intermediate_size),
        num_attention_heads=int(config.num_attention_heads),
        num_query_groups=int(config.num_key_value_heads),
        kv_channels=head_size(config),
        layernorm_epsilon=float(config.rms_norm_eps),
        normalization="RMSNorm",
        gated_linear_unit=True,
        activation_func=F.silu,
        add_bias_linear=False,
        add_qkv_bias=family.qkv_bias,
        qk_layernorm=family.qk_norm,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        tensor_model_parallel_size=ranks.size("tp"),
        pipeline_model_parallel_size=ranks.size("pp"),
        num_layers_in_first_pipeline_stage=None if len(split) == 1 else split[0],
        pipeline_dtype=sent,
        variable_seq_lengths=True,
        # required by variable_seq_lengths, even without experts
        moe_token_dispatcher_type="alltoall",
        calculate_per_token_loss=True,  # sums of losses stay sums
        use_cpu_initialization=True,
        perform_initialization=False,
    )
