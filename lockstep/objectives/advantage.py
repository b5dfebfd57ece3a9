"""Generalized advantage estimation (Schulman et al. 2016) over the trainable tokens of a ragged batch.

The steps of the decision process are the trainable tokens alone: tool output, user turns, prompts and padding are
jumped over. See `masks` for the legend; here also C tokens of a chunk, and M blocks of K tokens.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from lockstep.objectives.masks import sequence_sum

_BLOCK = 32  # K: tokens of a block are solved one after another, all blocks in parallel
_CHUNK = 1 << 19  # tokens per chunk, a multiple of K, small enough that intermediate results stay in the cache


@torch.no_grad()
def gae(
    reward_N: Tensor,
    value_N: Tensor,
    mask_N: Tensor,
    lengths: Tensor,
    *,
    gamma: float,
    lam: float | Tensor,
    final_value_B: Tensor | None = None,
) -> Tensor:
    """Estimates how much better each trainable token was than the value of the state before it.

    With t+1 the next trainable token of the same sequence (Schulman et al. 2016, eq. 16):

        δ_t = r_t + γ·V_{t+1} − V_t,    A_t = δ_t + γλ·A_{t+1} = Σ_k (γλ)^k δ_{t+k}

    Let z_t = γ·V_t + γλ·A_t be what token t passes to the trainable token on its left. Then A_t = r_t − V_t + z_{t+1},

        z_t = γ(1−λ)·V_t + γλ·r_t + γλ·z_{t+1}

    so each trainable token is an affine map of z, a masked token passes z through, and past the end of a sequence z is
    γ·V_final. The flat batch is one recurrence: nothing is padded, no trainable token is searched for.

    Args:
        reward_N: r of each token, fp32 [N].
        value_N: V of the state before each token, fp32 [N].
        mask_N: Trainable tokens, bool [N].
        lengths: Tokens of each sequence, int64 [B], on the CPU.
        gamma: Discount γ per trainable token.
        lam: λ, one for all or one per sequence [B].
        final_value_B: V of the state after each sequence, fp32 [B]: what a truncated one is still worth, 0 for one that
            has ended. None: all have ended.

    Returns:
        Advantages, fp32 [N], 0 where the mask is off; the rounding error is relative to the magnitude of r and V. A
        value that is not finite at a trainable token spoils the whole batch, not just its sequence.

    Raises:
        ValueError: If the lengths do not add up to N.
    """
    num_tokens, device = reward_N.numel(), reward_N.device
    if int(lengths.sum()) != num_tokens:
        raise ValueError(f"lengths add up to {int(lengths.sum())}, but there are {num_tokens} rewards")
    filled = lengths.nonzero().squeeze(-1)  # an empty sequence has no last token
    last_B, filled = lengths[filled].cumsum(0) - 1, filled.to(device)
    final_B = torch.zeros(len(lengths), device=device) if final_value_B is None else final_value_B
    decay = gamma * torch.as_tensor(lam, dtype=torch.float32, device=device)
    decay = decay[filled] if decay.ndim else decay
    return _sweep(reward_N, value_N, mask_N, decay, gamma, last_B, gamma * final_B[filled])


def length_adaptive_lambda(mask_N: Tensor, lengths: Tensor, alpha: float) -> Tensor:
    """λ that grows with the response, so that a reward at the end of a long one is still felt at its start.

    λ = 1 − 1 / max(1, α·length), length in trainable tokens (length-adaptive GAE of VAPO, Yue et al. 2025; the maximum
    keeps λ ≥ 0 where α·length < 1).

    Returns:
        fp32 [B].
    """
    length_B = sequence_sum(torch.ones_like(mask_N, dtype=torch.float32), mask_N, lengths)
    return 1.0 - 1.0 / (alpha * length_B).clamp(min=1.0)


def _sweep(
    reward_N: Tensor, value_N: Tensor, mask_N: Tensor, decay: Tensor, gamma: float, last_B: Tensor, future_B: Tensor
) -> Tensor:
    """Advantages from the recurrence of `gae`, chunk by chunk from the right.

    Args:
        decay: γλ, 0-d or one per sequence.
        last_B: Index of each sequence's last token, ascending, on the CPU.
        future_B: γ·V_final, what that last token receives.
    """
    num_tokens, device = reward_N.numel(), reward_N.device
    advantage_N = torch.empty(num_tokens, device=device)
    places = min(_CHUNK, num_tokens + 1)  # one of them for the value from beyond the chunk
    handed_C, slope_C = torch.zeros(2, places + -places % _BLOCK, device=device)
    keep_C = torch.empty_like(slope_C, dtype=torch.int32)
    for start in reversed(range(0, num_tokens, _CHUNK - 1)):
        chunk = slice(start, min(start + _CHUNK - 1, num_tokens))
        size = chunk.stop - start
        reward, value, keep = reward_N[chunk], value_N[chunk], keep_C[:size].copy_(mask_N[chunk]).neg_()
        first, past = torch.searchsorted(last_B, torch.tensor([start, chunk.stop])).tolist()
        last, future = (last_B[first:past] - start).to(device), future_B[first:past]

        handed_C[size], slope_C[size] = handed_C[0], 0.0
        handed, slope = handed_C[:size], slope_C[:size]
        rate = decay if decay.ndim == 0 else _per_token(decay[first : past + 1], last, size)
        _choose_(keep, torch.mul(value, gamma - rate, out=handed).addcmul_(reward, rate), otherwise=0.0)
        _choose_(keep, slope.copy_(rate), otherwise=1.0)
        handed[last] += slope[last] * future
        slope[last] = 0.0
        _solve_(handed_C.view(-1, _BLOCK), slope_C.view(-1, _BLOCK))

        advantage = torch.sub(reward, value, out=advantage_N[chunk]).add_(handed_C[1 : size + 1])
        advantage[last] = reward[last] - value[last] + future
        _choose_(keep, advantage, otherwise=0.0)
    return advantage_N


def _per_token(x_S: Tensor, last_S: Tensor, size: int) -> Tensor:
    """Expands a value per sequence to the tokens of a chunk of `size` tokens; `last_S` is where sequences end in it."""
    borders = F.pad(last_S + 1, (1, 1))
    borders[-1] = size
    return x_S.repeat_interleave(borders.diff()[: len(x_S)], output_size=size)


def _solve_(z_MK: Tensor, slope_MK: Tensor) -> None:
    """Solves z_t ← z_t + slope_t·z_{t+1} from right to left over the flattened blocks, in place; slopes are used up.

    First every block by itself, with the product of the slopes up to its end; then the blocks' first tokens, which are
    a recurrence of the same form and K times shorter; then each block adds what its right neighbor hands it.
    """
    z, slope = z_MK.unbind(1), slope_MK.unbind(1)
    for k in reversed(range(_BLOCK - 1)):
        z[k].addcmul_(slope[k], z[k + 1])
        slope[k].mul_(slope[k + 1])
    num_blocks = len(z_MK)
    if num_blocks == 1:
        return
    padding = (0, -num_blocks % _BLOCK)
    head_z = F.pad(z[0], padding)
    _solve_(head_z.view(-1, _BLOCK), F.pad(slope[0], padding).view(-1, _BLOCK))
    z_MK[:-1].addcmul_(slope_MK[:-1], head_z[1:num_blocks, None])


def _choose_(keep_C: Tensor, x_C: Tensor, *, otherwise: float) -> None:
    """Replaces x in place by `otherwise` where the bits of `keep_C` are 0, keeps it where they are 1.

    `masked_fill_` branches, which costs several times as much where the mask alternates; a product lets NaN through.
    """
    bits, other = x_C.view(torch.int32), torch.tensor(otherwise).view(torch.int32)
    bits.bitwise_xor_(other).bitwise_and_(keep_C).bitwise_xor_(other)
