"""Makes a new torch as poor as 2.9, the oldest that `lockstep_logprobs` runs on, by taking later
names away.
"""

from __future__ import annotations

import torch
import torch.distributed
import torch.distributed.tensor
import torch.library

NEWER: dict[object, tuple[str, ...]] = {
    torch: ("thread_safe_generator",),
    torch.Tensor: ("const_data_ptr", "grad_dtype", "index"),
    torch.distributed: (
        "GroupName",
        "RankType",
        "all_gather_single",
        "record_comm",
        "reduce_scatter_single",
        "shrink_group",
    ),
    torch.library: ("EffectType",),
    torch.autograd: ("enforce_grad_layout_policy",),
    torch.autograd.Function: ("boxed_grads_call", "clear_saved_tensors_on_access"),
    torch.nn.functional: (
        "ScalingType",
        "SwizzleType",
        "grouped_mm",
        "linear_cross_entropy",
        "scaled_grouped_mm",
        "scaled_mm",
    ),
    torch.compiler: (
        "CacheInfo",
        "NestedCompileRegionOptions",
        "get_default_backend",
        "keep_portable_guards_unsafe",
        "set_default_backend",
        "skip_all_guards_unsafe",
    ),
}
"""What `dir` of torch 2.13.0 has and that of 2.9.1 has not."""


def hide_newer_names() -> None:
    """Deletes them; a name that a later torch drops by itself is no matter."""
    for owner, names in NEWER.items():
        for name in names:
            if name in vars(owner):
                delattr(owner, name)
