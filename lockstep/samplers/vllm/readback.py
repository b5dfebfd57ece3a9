"""What vLLM's model computes with, under the names of the Hugging Face checkpoint.

vLLM lays matrices that are used together into one, and on a CPU packs them in a form of its kernels and frees the rest.
Such a matrix is read through its kernel: a product with a column of the identity gives that column, exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from vllm.platforms import current_platform

from lockstep.models.weights import fingerprint, sampled_columns

_COLUMNS_AT_ONCE = 512


@dataclass(frozen=True)
class Readable:
    """A tensor of the checkpoint as it lies in a layer of vLLM.

    Attributes:
        name: In the checkpoint.
        layer: That computes with it.
        parameter: Of the layer.
        rows: Which of the parameter's rows are this tensor.
    """

    name: str
    layer: nn.Module
    parameter: nn.Parameter
    rows: slice

    @property
    def packed(self) -> bool:
        """Whether a kernel has the matrix in a form of its own."""
        matrix = isinstance(self.layer, LinearBase | ParallelLMHead) and self.name.endswith(".weight")
        return matrix and current_platform.is_cpu()

    def fingerprint(self) -> int:
        """Of the tensor; only where it is not packed."""
        return fingerprint(self.parameter[self.rows])

    def column_fingerprint(self) -> int:
        """Of the columns that the layer's kernel computes with; see `models.weights.column_fingerprint`."""
        return fingerprint(self._columns(sampled_columns(self._width)))

    def tensor(self) -> Tensor:
        """All of it, as the layer computes with it."""
        if not self.packed:
            return self.parameter.detach()[self.rows]
        starts = range(0, self._width, _COLUMNS_AT_ONCE)
        return torch.cat([self._columns(range(self._width)[start : start + _COLUMNS_AT_ONCE]) for start in starts], 1)

    @property
    def _width(self) -> int:
        layer: Any = self.layer
        return layer.embedding_dim if isinstance(layer, ParallelLMHead) else layer.input_size_per_partition

    def _columns(self, columns: Sequence[int]) -> Tensor:
        """Columns that the layer's kernel computes with; 0 and −0 are the same there."""
        layer: Any = self.layer
        units = torch.zeros(len(columns), self._width, dtype=self.parameter.dtype)
        units.scatter_(1, torch.tensor(columns)[:, None], 1.0)
        return layer.quant_method.apply(layer, units).T[self.rows] + 0.0


def readable(model: nn.Module) -> Iterator[Readable]:
    """The tensors of the checkpoint that can be found in a model of vLLM's, on one rank."""
    together: dict[str, list[str]] = getattr(model, "packed_modules_mapping", {})
    for path, layer in model.named_modules():
        own = list(layer.named_parameters(recurse=False))
        for part, rows in _parts(path, layer, together) if own else ():
            for name, parameter in own:
                yield Readable(f"{part}.{name}", layer, parameter, rows)


def _parts(path: str, layer: Any, together: dict[str, list[str]]) -> Iterator[tuple[str, slice]]:
    """The checkpoint's layers that one of vLLM's stands for, and their rows in it."""
    above, _, name = path.rpartition(".")
    if isinstance(layer, VocabParallelEmbedding):
        yield path, slice(0, layer.org_vocab_size)
    elif name in together:
        start = 0
        for part, size in zip(together[name], layer.output_sizes, strict=True):
            yield f"{above}.{part}", slice(start, start + size)
            start += size
    else:
        yield path, slice(None)
