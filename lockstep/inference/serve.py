"""`lockstep serve`: opens a model as learner and sampler, and serves it until Ctrl-C."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from lockstep.algorithms.exactness import choose_kernels
from lockstep.cluster import open_models
from lockstep.cluster.sampler_pool import open_nearest_sampler
from lockstep.cluster.specs import LearnerSpec, SamplerSpec
from lockstep.cluster.workers import WorkerPool
from lockstep.config import Cluster, LearnerSection
from lockstep.config.hub import fetch_model
from lockstep.data.messages import require_template
from lockstep.learners.base import Learner
from lockstep.models.source import ModelSource, open_source
from lockstep.report.progress import show_notes
from lockstep.samplers.base import Sampler
from lockstep.serve.options import ServeOptions
from lockstep.serve.server import PolicyServer
from lockstep.system.printable import print_text
from lockstep.weight_sync.sync import random_probe, sync_weights


@dataclass(frozen=True)
class ServedPolicy:
    """A model opened twice: to sample, and to recompute what was sampled."""

    sampler: Sampler
    learner: Learner
    source: ModelSource


def serve_model(model: str, options: ServeOptions, host: str, port: int, key: str | None) -> None:
    """Serves a model until Ctrl-C.

    Args:
        model: A Hugging Face folder, `hf:owner/name`, or the folder of a finished run.
        options: Sampler, device and limits.
        host: Address to listen on.
        port: Port; 0: a free one.
        key: The key that requests must have; None: a new one, which is printed.

    Raises:
        InputError: The model or the address cannot be used.
    """
    with open_policy(model, options) as policy:
        server = PolicyServer(
            policy.sampler,
            policy.source,
            learner=policy.learner,
            options=options.endpoint,
            host=host,
            port=port,
            key=key,
        )
        with server, suppress(KeyboardInterrupt):
            shown = "its key is the one you gave" if key else f"its key is {server.key}"
            print_text(f"{server.model} is served at {server.url}, and {shown} (Ctrl-C ends it)")
            sys.stdout.flush()  # for programs that start a server and read its address
            threading.Event().wait()


@contextmanager
def open_policy(model: str, options: ServeOptions) -> Iterator[ServedPolicy]:
    """Opens a model for the endpoint; its sampler is awake.

    Raises:
        InputError: The model cannot be used.
    """
    folder = str(fetch_model(model))
    source = open_source(folder)
    if source.tokenizer.chat_template is not None:
        require_template(source.tokenizer)
    progress = show_notes()
    computation = choose_kernels(folder, options.sampler, options.learner, progress.show_note)
    section = LearnerSection(device=computation.device, dtype=computation.dtype)
    if computation.exact:
        section = section.compute_exactly()
    spec = SamplerSpec(folder, options.sampler, computation)
    with WorkerPool() as workers:
        learner = open_models.open_learner(
            LearnerSpec(folder, "logits", section, None, 0),
            None,
            Cluster().timeout_s,
            progress,
            workers,
        )
        spec.require_proof()
        sampler = open_models.share_weights(learner, section, spec, workers)
        if sampler is not None:
            sampler.wake()
        else:
            sampler = open_nearest_sampler(spec, progress, workers)
            sampler.wake()
            probe = random_probe(source.vocabulary, source.context, section.dtype, section.dtype)
            sync_weights(learner, sampler, 0, probe.score_with(learner))
        yield ServedPolicy(sampler, learner, source)
