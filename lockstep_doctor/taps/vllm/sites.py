"""Maps cuts of a `transformers` model to vLLM's model, which fuses projections and passes the
residual separately.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from vllm.model_executor.layers.fused_moe.router.fused_moe_router import FusedMoERouter

from lockstep_doctor.cuts import OUTPUT, CutPoint, End, name_cuts
from lockstep_doctor.modules import find_watched_modules

_RESIDUAL = ("resid_in", "resid_mid", "resid_out")


@dataclass(frozen=True)
class TapSite:
    """A call in vLLM's model with cuts at its input or output.

    Attributes:
        path: Path of the called function, relative to the model.
        end: Whether the cuts are arguments or results.
        cuts: One cut for each tensor.
        sizes: Widths of the cuts if they are parts of one tensor; otherwise empty.
    """

    path: str
    end: End
    cuts: tuple[CutPoint, ...]
    sizes: tuple[int, ...] = ()

    @property
    def is_sum(self) -> bool:
        """True if the cut is the sum of all arguments: the residual and the value added to it."""
        return self.end == "in" and self.cuts[0].stage in _RESIDUAL

    def view_values(self, value: Any, count: int) -> list[tuple[CutPoint, Tensor]]:
        """Returns the cuts with views of their values for the first `count` tokens; a sum is a
        copy.

        Args:
            value: The arguments in order, or the returned value.
            count: Number of tokens.
        """
        if not isinstance(value, tuple):
            value = (value,)
        tensors = [x[:count] for x in value if isinstance(x, Tensor)]
        if self.is_sum and len(tensors) > 1:
            tensors = [torch.stack(tensors).sum(0)]
        if self.sizes:
            tensors = list(tensors[0].split(list(self.sizes), -1))
        return list(zip(self.cuts, tensors, strict=False))

    def view_sum(self, value: Any, sum_TD: Tensor) -> list[tuple[CutPoint, Tensor]]:
        """Like `view_values`, for the result of a norm that also adds the residual: an error of the
        residual is added to the output.

        It is added twice, since swapped output and residual would have the right sum.

        Args:
            value: The output and the returned residual.
            sum_TD: The right residual.
        """
        output, residual = (x[: len(sum_TD)] for x in value)
        return [
            (
                self.cuts[0],
                output if torch.equal(residual, sum_TD) else output + 2 * (residual - sum_TD),
            )
        ]

    def overwrite_sum(self, value: tuple[Any, ...], sum_TD: Tensor) -> None:
        """Overwrites the first argument of a sum so that the sum becomes `sum_TD`."""
        first, *others = [x[: len(sum_TD)] for x in value if isinstance(x, Tensor)]
        first.copy_(sum_TD - sum(others))


@dataclass(frozen=True)
class ModelSites:
    """The sites of a model.

    Attributes:
        sites: All of them.
        hidden: Cuts of the `transformers` model that a fused kernel of vLLM skips.
    """

    sites: tuple[TapSite, ...]
    hidden: tuple[CutPoint, ...]


def find_sites(model: nn.Module, network: nn.Module) -> ModelSites:
    """Finds the sites of a model.

    Args:
        model: vLLM's.
        network: The same model in `transformers`.
    """
    named = name_cuts(find_watched_modules(network))
    sites = tuple(_list_sites(model, network, named))
    seen = set[CutPoint]().union(*(site.cuts for site in sites))
    hidden = [cut for cut in named.values() if cut not in seen]
    for cut in seen:
        if cut.stage == "routed":
            hidden += [CutPoint("routed.1", cut.layer), CutPoint("routed.2", cut.layer)]
    return ModelSites(sites, tuple(hidden))


def _list_sites(
    model: nn.Module, network: nn.Module, named: Mapping[tuple[str, End], CutPoint]
) -> Iterator[TapSite]:
    packed: Mapping[str, list[str]] = getattr(model, "packed_modules_mapping", {})
    for path, module in model.named_modules():
        yield from _of_module(path, module, network, named)
        base, _, name = path.rpartition(".")
        parts: list[tuple[str, End]] = [(f"{base}.{part}", "out") for part in packed.get(name, ())]
        if parts and named.keys() >= set(parts) and (path, "out") not in named:
            sizes: Any = module.output_partition_sizes
            yield TapSite(
                f"{path}.forward", "out", tuple(named[part] for part in parts), tuple(sizes)
            )
    yield TapSite("logits_processor._get_logits", "out", (CutPoint("logits"),))
    yield TapSite("logits_processor.forward", "out", (OUTPUT,))


def _of_module(
    path: str, module: nn.Module, network: nn.Module, named: Mapping[tuple[str, End], CutPoint]
) -> Iterator[TapSite]:
    """Yields the sites of a module that has the same name in both models."""
    start = named.get((path, "in"))
    cut = named.get((path, "out"))
    if path == "lm_head" or type(module).__name__.endswith("AndMul"):
        return  # lm_head is not called as a module; *AndMul is an activation fused with a product
    if start is not None:
        yield TapSite(f"{path}.forward", "in", (start,))
    if (
        cut is not None
        and cut.stage == "embed"
        and hasattr(network.get_submodule(path), "embed_scale")
    ):
        yield TapSite(f"{path.rpartition('.')[0]}.embed_input_ids", "out", (cut,))  # which scales
    elif cut is not None:
        yield TapSite(f"{path}.forward", "out", (cut,))
    router = getattr(module, "router", None)
    if start is not None and isinstance(router, FusedMoERouter):
        chosen = tuple(CutPoint(f"router.{index}", start.layer) for index in (1, 2))
        yield TapSite(f"{path}.router.select_experts", "out", chosen)
