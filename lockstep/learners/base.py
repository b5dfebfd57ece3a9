"""The learner's protocol: the verbs that algorithms use, for any training backend."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from torch import Tensor

from lockstep.core.batch import Batch
from lockstep.core.borders import NotFiniteError, require_logprobs
from lockstep.core.errors import RunError
from lockstep.core.metrics import Metrics
from lockstep.losses.base import Loss
from lockstep.weight_sync.outgoing import Sender


class NotSavedError(RunError):
    """A learner's state could not be written; the message says why."""


class Learner(Protocol):
    """A model with a head and an optimizer. All tensors that cross this border are on the CPU."""

    def logprobs(self, batch: Batch) -> Tensor:
        """log π(x_t | x_<t) of the masked tokens under `batch.sampling`, nats, fp32 [N]; 0
        elsewhere.
        """
        ...

    def topk(self, batch: Batch, k: int) -> tuple[Tensor, Tensor]:
        """The k likeliest tokens at the position of each masked token, and their log π(· | x_<t),
        nats.

        Returns:
            int64 and fp32 [N, k], likeliest first, or all tokens in the order of their ids where k
            is the size of the vocabulary; 0 elsewhere. π is the model's own distribution, not the
            sampling one.
        """
        ...

    def values(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """V(x_<t) of every token, fp32 [N] (0 at the first of a sequence), and V after the last
        token, fp32 [B].
        """
        ...

    def forward_backward(self, batch: Batch, loss: Loss) -> Metrics:
        """Adds the gradient of the summed loss to the gradient accumulated since the last
        `optim_step`.
        """
        ...

    def optim_step(self) -> Metrics:
        """Divides the accumulated gradient by the loss's denominator over all ranks, clips it, and
        updates the weights.

        With a denominator of 0, such as an empty mask, it updates nothing and reports
        `updates_skipped`; nor where a gradient overflows in fp16, which halves the loss's scale and
        is reported as `updates_overflowed`.

        Raises:
            InputError: If `forward_backward` was not called since the last `optim_step`.
            FloatingPointError: If the gradient's norm is not finite; weights are unchanged, the
                gradient is dropped.
        """
        ...

    def reset_optimizer(self) -> None:
        """Forgets the optimizer's moments; the schedule of the learning rate continues."""
        ...

    @property
    def sender(self) -> Sender | None:
        """Sends weights to inference engines from the process that holds them; None if that is this
        process.
        """
        ...

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Streams (canonical name, tensor) of parameters and buffers, names as in the Hugging Face
        checkpoint.
        """
        ...

    def save(self, folder: Path) -> None:
        """Begins to write weights, optimizer moments and counters as they are now, as safetensors
        and JSON.

        Returns as soon as training may continue, possibly before everything is written;
        `poll_save(wait=True)` waits for that and reports errors of the disk.
        `lockstep.save(learner, folder)` does both.
        """
        ...

    def poll_save(self, wait: bool) -> bool:
        """True if the last `save` is written; with `wait`, blocks until it is.

        Raises:
            NotSavedError: If it could not be written.
        """
        ...

    def load(self, folder: Path) -> None:
        """Restores what `save` wrote, bit for bit."""
        ...


def compute_logprobs(learner: Learner, batch: Batch, whose: str) -> Tensor:
    """`Learner.logprobs` of a learner, such as "the policy"; raises NotFiniteError as
    `require_logprobs`.
    """
    logprob_N = learner.logprobs(batch)
    require_logprobs(whose, batch, logprob_N)
    return logprob_N


def train(
    learner: Learner, batch: Batch, loss: Loss, inspect: Callable[[Metrics], None] | None = None
) -> Metrics:
    """One optimizer step on one batch.

    Args:
        learner: The learner to train.
        batch: The batch.
        loss: Its loss.
        inspect: Called with the metrics of the loss before the weights change; may raise to prevent
            the update.

    Raises:
        NotFiniteError: If the learner finds that the gradient is not finite.
    """
    try:
        metrics = learner.forward_backward(batch, loss)
        if inspect is not None:
            inspect(metrics)
        return metrics + learner.optim_step()
    except FloatingPointError as error:
        raise NotFiniteError(f"{type(loss).__name__}: {error}", batch) from error


def hand_over(learner: Learner, successor: Learner, folder: Path) -> None:
    """Copies a learner's weights to another one of its kind, through a folder that all machines of
    both share.

    Args:
        learner: The learner that is copied.
        successor: The learner that gets its weights.
        folder: Made, and removed again, with what a killed process has left there.
    """
    shutil.rmtree(folder, ignore_errors=True)
    try:
        learner.save(folder)
        learner.poll_save(wait=True)
        successor.load(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
