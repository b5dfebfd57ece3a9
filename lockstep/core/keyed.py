"""Random numbers by key instead of by stream: no generator state to save or keep in step.

A key is a 64-bit hash of the number's purpose: (seed, step, sample id, role, draw). So the
numbers of a sample do not depend on its batch, on the number of workers, or on earlier draws.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

# 0x9E3779B97F4A7C15 as a signed 64-bit integer (splitmix64, Steele et al. 2014)
_GOLDEN = -7046029254386353131
_MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX_2 = -7723592293110705685  # 0x94D049BB133111EB


def hash_key(*parts: int | str) -> int:
    """Hashes a number's purpose into a signed 64-bit key, the same on all machines and Pythons."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(
        hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True
    )


def draw_uniforms(key_B: Tensor, counter_K: Tensor) -> Tensor:
    """Draws uniform numbers in the open interval (0, 1), one per key and counter.

    Args:
        key_B: Keys, int64.
        counter_K: Counters (for a sampler: index of the token in the response), int64.

    Returns:
        float64 [B, K], from 52 bits of splitmix64, so that neither 0 nor 1 ever occurs.
    """
    return (_shift_right(draw_bits(key_B, counter_K), 12).double() + 0.5) * 2.0**-52


def draw_bits(key_B: Tensor, counter_K: Tensor) -> Tensor:
    """64 random bits per key and counter (splitmix64), int64 [B, K]."""
    z = key_B[:, None] + (counter_K[None, :] + 1) * _GOLDEN
    z = (z ^ _shift_right(z, 30)) * _MIX_1
    z = (z ^ _shift_right(z, 27)) * _MIX_2
    return z ^ _shift_right(z, 31)


def draw_permutation(length: int, *parts: int | str) -> Tensor:
    """A random order of `range(length)` that depends only on the key. Returns int64 [length]."""
    draws = draw_uniforms(torch.tensor([hash_key(*parts)]), torch.arange(length))[0]
    return torch.argsort(draws, stable=True)


def draw_sample(length: int, count: int, *parts: int | str) -> list[int]:
    """Draws `count` distinct numbers of `range(length)` by key only; `length` may be large.

    Raises:
        ValueError: `length` is less than `count`.
    """
    if count > length:
        raise ValueError(f"{count} distinct numbers requested, but range({length}) has fewer")
    moved: dict[int, int] = {}
    chosen = []
    shares = draw_uniforms(torch.tensor([hash_key(*parts)]), torch.arange(count))[0]
    for index, share in enumerate(shares.tolist()):
        other = index + int(share * (length - index))  # the first steps of a Fisher-Yates shuffle
        chosen.append(moved.get(other, other))
        moved[other] = moved.get(index, index)
    return chosen


def build_generator(*parts: int | str) -> torch.Generator:
    """A torch generator seeded by a key, for initializing weights."""
    return torch.Generator().manual_seed(hash_key(*parts) & (2**63 - 1))


def _shift_right(z: Tensor, bits: int) -> Tensor:
    """Logical shift: torch's own `>>` on int64 copies the sign bit."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)
