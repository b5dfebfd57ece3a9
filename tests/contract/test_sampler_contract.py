"""What every sampler owes, whatever process it lives in."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import (
    ARCHITECTURES,
    CONTEXT,
    OPTIMIZER,
    SECTION,
    WeightedLogprob,
    plain_filtered,
    plain_logits,
    plain_model,
    ragged,
    requests,
    responses,
)
from torch import Tensor

from lockstep.cluster.sampler_pool import SamplerPool
from lockstep.cluster.specs import LearnerSpec, SamplerSpec
from lockstep.config import DType, SamplerSection
from lockstep.core import keyed
from lockstep.core.batch import Batch
from lockstep.core.errors import RunError
from lockstep.core.types import Request, SamplingParams
from lockstep.learners.base import train
from lockstep.learners.rank import RankLearner
from lockstep.learners.torch.learner import TorchLearner
from lockstep.models.heads import LogitsHead
from lockstep.models.load import load_causal_lm
from lockstep.models.tokenizer import load_tokenizer, words_tokenizer
from lockstep.samplers.base import Sampler
from lockstep.samplers.torch.sampler import TorchSampler
from lockstep.weight_sync.fingerprints import fingerprint_tensor

NUMBERS = 61
"""Each is a token of the tokenizer."""

PLAIN = SamplingParams(max_tokens=12)
SHAPED = {
    "full support": PLAIN,
    "temperature": SamplingParams(max_tokens=12, temperature=0.7),
    "top-k": SamplingParams(max_tokens=12, top_k=5),
    "top-p": SamplingParams(max_tokens=12, top_p=0.8),
    "all three": SamplingParams(max_tokens=12, temperature=1.5, top_k=20, top_p=0.9),
    "greedy": SamplingParams(max_tokens=12, temperature=0.0),
    "min-p": SamplingParams(max_tokens=12, temperature=1.5, top_p=0.9, min_p=0.2),
    "penalties": SamplingParams(
        max_tokens=12,
        temperature=0.8,
        repetition_penalty=1.4,
        presence_penalty=0.6,
        frequency_penalty=-0.9,
    ),
}


@dataclass(frozen=True)
class Subject:
    """A sampler, and a learner with the same weights."""

    sampler: Sampler
    learner: RankLearner
    model: Path


SUBJECTS = {
    "in process": SamplerSection(max_batch_size=7),
    "spawned": SamplerSection(max_batch_size=7),
    "two replicas": SamplerSection(max_batch_size=3, replicas=2, transfer="process_group"),
    "vllm": SamplerSection(backend="vllm", max_batch_size=7, kv_cache_gib=0.05),
}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=pytest.mark.needs("vllm") if name == "vllm" else ())
        for name in SUBJECTS
    ],
)
def started(
    request: pytest.FixtureRequest,
    models: Callable[..., Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Subject]:
    if request.param == "vllm":
        request.getfixturevalue("vllm")
    model = shutil.copytree(models("qwen2"), tmp_path_factory.mktemp("sampler") / "model")
    words_tokenizer(map(str, range(NUMBERS))).save_pretrained(model)
    section = SUBJECTS[request.param]
    learner = LearnerSpec(str(model), "logits", SECTION, None, 0).build()
    if request.param == "in process":
        yield Subject(SamplerSpec(str(model), section, SECTION).open_in_process(), learner, model)
    else:
        replicas = SamplerPool(SamplerSpec(str(model), section, SECTION))
        yield Subject(replicas, learner, model)
        replicas.close()


@pytest.fixture
def subject(started: Subject) -> Subject:
    started.sampler.load_weights(dict(started.learner.weights()).items(), 0)
    return started


@pytest.mark.parametrize("sampling", SHAPED.values(), ids=SHAPED)
def test_sampler_logprobs_of_generated_tokens_match_learner(
    subject: Subject, sampling: SamplingParams
) -> None:
    batch = subject.sampler.generate(requests(), sampling)
    assert int(batch.mask.sum()) == 120
    learned = subject.learner.logprobs(batch)
    torch.testing.assert_close(batch["sampler_logprob"], learned, atol=1e-5, rtol=0.0)
    assert (batch["sampler_logprob"][~batch.mask] == 0).all()


def test_generated_mask_covers_exactly_the_response_after_its_prompt(subject: Subject) -> None:
    wanted = requests()
    batch = subject.sampler.generate(wanted, PLAIN)
    assert batch.sampling == PLAIN
    assert batch.tokens.dtype == torch.int64
    assert batch.mask.dtype == torch.bool
    for request, tokens, mask in zip(
        wanted, batch.sequences(), batch.sequences("mask"), strict=True
    ):
        prompt = len(request.tokens)
        assert tuple(tokens[:prompt].tolist()) == request.tokens
        assert mask.tolist() == [False] * prompt + [True] * 12
    assert batch["truncated"].all()


def test_sampled_tokens_depend_only_on_request_key_not_on_batch(subject: Subject) -> None:
    wanted = requests()
    drawn = responses(subject.sampler.generate(wanted, PLAIN))
    assert responses(subject.sampler.generate(wanted[::-1], PLAIN)) == drawn[::-1]
    assert responses(subject.sampler.generate(wanted[3:5], PLAIN)) == drawn[3:5]
    assert responses(subject.sampler.generate(requests(role="another"), PLAIN)) != drawn


def assert_ended(
    subject: Subject, batch: Batch, free: list[tuple[int, ...]], ended: list[int | None]
) -> None:
    """Responses are those drawn without stops, up to where some of them end."""
    assert responses(batch) == [row[:end] for row, end in zip(free, ended, strict=True)]
    assert batch["truncated"].tolist() == [end is None for end in ended]
    assert 4 < sum(end is None for end in ended) < 20
    torch.testing.assert_close(
        batch["sampler_logprob"], subject.learner.logprobs(batch), atol=1e-5, rtol=0.0
    )


def test_stop_token_ends_response_and_is_included_in_it(subject: Subject) -> None:
    stops = (7, 20, 33, 48)
    wanted = requests(tuple(range(1, 25)))
    free = responses(subject.sampler.generate(wanted, PLAIN))
    batch = subject.sampler.generate(wanted, SamplingParams(max_tokens=12, stop_token_ids=stops))
    ended = [next((k + 1 for k, token in enumerate(row) if token in stops), None) for row in free]
    assert_ended(subject, batch, free, ended)


def test_response_ends_with_token_that_completes_stop_string(subject: Subject) -> None:
    """Tokens are numbers without spaces: "13" is in 1 and 3, in 21 and 30, and in 13."""
    strings, read = ("13", "24", "35"), load_tokenizer(subject.model).decode
    wanted, free_length = requests(tuple(range(1, 25))), SamplingParams(max_tokens=8)
    free = responses(subject.sampler.generate(wanted, free_length))
    ended = [
        next((k for k in range(1, 9) if any(s in read(list(row[:k])) for s in strings)), None)
        for row in free
    ]
    assert any(
        end and read(row[end - 1]) not in strings for row, end in zip(free, ended, strict=True)
    ), "one over two"
    sampling = replace(free_length, stop=strings)
    batch = subject.sampler.generate(wanted, sampling)
    assert_ended(subject, batch, free, ended)
    assert responses(subject.sampler.generate(wanted[3:5], sampling)) == responses(batch)[3:5]


def test_response_is_truncated_at_context_length(subject: Subject) -> None:
    lengths = (CONTEXT - 3, 5, CONTEXT - 1, CONTEXT - 20)
    batch = subject.sampler.generate(requests(lengths), PLAIN)
    assert [len(response) for response in responses(batch)] == [3, 12, 1, 12]
    assert batch["truncated"].all()


@pytest.mark.parametrize("length", [0, CONTEXT, CONTEXT + 5])
def test_empty_or_context_filling_prompt_is_refused(subject: Subject, length: int) -> None:
    with pytest.raises(
        ValueError, match=f"request 1 has {length} prompt tokens; .* at most {CONTEXT - 1}"
    ):
        subject.sampler.generate(requests((4, length)), PLAIN)


def test_loaded_weights_are_attested_used_and_stamped_with_version(
    subject: Subject, models: Callable[..., Path]
) -> None:
    other = LearnerSpec(str(models("qwen2", seed=1)), "logits", SECTION, None, 0).build()
    before = subject.sampler.generate(requests(), PLAIN)
    for attestation in subject.sampler.load_weights(dict(other.weights()).items(), 5):
        assert attestation.version == 5
        assert attestation.fingerprints == {
            name: fingerprint_tensor(tensor) for name, tensor in other.weights()
        }
        assert not attestation.kept_caches
    batch = subject.sampler.generate(requests(), PLAIN)
    assert before["version"].unique().tolist() == [0]
    assert batch["version"].tolist() == [5] * len(batch)
    torch.testing.assert_close(batch["sampler_logprob"], other.logprobs(batch), atol=1e-5, rtol=0.0)
    assert (batch["sampler_logprob"] - subject.learner.logprobs(batch)).abs().max() > 0.1


def test_attestation_differs_only_for_tensor_missing_from_stream(
    subject: Subject, models: Callable[..., Path]
) -> None:
    other = LearnerSpec(str(models("qwen2", seed=1)), "logits", SECTION, None, 0).build()
    skipped = "model.layers.1.mlp.up_proj.weight"
    stream = {name: tensor for name, tensor in other.weights() if name != skipped}.items()
    sent = {name: fingerprint_tensor(tensor) for name, tensor in other.weights()}
    for attestation in subject.sampler.load_weights(stream, 6):
        held = attestation.fingerprints
        assert {name for name in sent if sent[name] != held.get(name)} == {skipped}


def test_sampler_logprobs_of_given_batch_match_learner(subject: Subject) -> None:
    batch = ragged((9, 1, 30, 5))
    torch.testing.assert_close(
        subject.sampler.logprobs(batch), subject.learner.logprobs(batch), atol=1e-5, rtol=0.0
    )


@pytest.mark.parametrize(
    "sampling", [PLAIN, SHAPED["all three"]], ids=["full support", "all three"]
)
def test_sampled_token_frequencies_match_filtered_distribution(
    subject: Subject, sampling: SamplingParams
) -> None:
    draws = 3000
    prompt = requests((6,))[0].tokens
    short = SamplingParams(1, sampling.temperature, sampling.top_k, sampling.top_p)
    batch = subject.sampler.generate(
        [Request(prompt, keyed.hash_key("frequency", i)) for i in range(draws)], short
    )
    counts = Counter(row[0] for row in responses(batch))
    probability = plain_distribution(plain_model(subject.model), torch.tensor(prompt), sampling)
    observed = torch.tensor(
        [counts[token] for token in range(len(probability))], dtype=torch.float64
    )
    assert (observed[probability == 0] == 0).all()
    common = probability * draws >= 5
    expected = probability[common] * draws
    statistic = float(((observed[common] - expected) ** 2 / expected).sum())
    freedom = int(common.sum()) - 1
    assert freedom >= 5
    assert statistic < freedom + 4 * (2 * freedom) ** 0.5


def plain_distribution(model: Any, prompt: Tensor, sampling: SamplingParams) -> Tensor:
    """Next-token probabilities by the filters of `transformers`, float64 [V]."""
    with torch.no_grad():
        logits = plain_logits(model, prompt)[-1:]
    return plain_filtered(logits, sampling).softmax(-1)[0]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_greedy_sampling_matches_transformers_generate(
    models: Callable[..., Path], architecture: str
) -> None:
    folder, wanted = models(architecture), requests((9, 2, 25))
    drawn = responses(TorchSampler(load_causal_lm(folder), 8).generate(wanted, SHAPED["greedy"]))
    model = plain_model(folder)
    for request, response in zip(wanted, drawn, strict=True):
        prompt = torch.tensor([request.tokens])
        expected = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            max_new_tokens=12,
            pad_token_id=0,
        )
        assert response == tuple(expected[0, prompt.shape[1] :].tolist())


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_rollout_logprobs_match_learner_for_every_architecture(
    models: Callable[..., Path], architecture: str
) -> None:
    lm = load_causal_lm(models(architecture))
    learner = TorchLearner(LogitsHead(lm), SECTION)
    batch = TorchSampler(lm, 64).generate(requests(), SHAPED["all three"])
    torch.testing.assert_close(
        batch["sampler_logprob"], learner.logprobs(batch), atol=1e-5, rtol=0.0
    )


def test_sampler_sharing_learner_model_uses_updates_without_copy(
    models: Callable[..., Path],
) -> None:
    lm = load_causal_lm(models("llama"))
    learner, sampler = TorchLearner(LogitsHead(lm), SECTION, OPTIMIZER), TorchSampler(lm, 64)
    first = sampler.generate(requests(), PLAIN)
    for seed in range(3):
        train(learner, ragged((9, 14, 30), seed), WeightedLogprob(scale=10.0))
    places = {name: tensor.data_ptr() for name, tensor in learner.weights()}
    second = sampler.generate(requests(), PLAIN)
    torch.testing.assert_close(
        second["sampler_logprob"], learner.logprobs(second), atol=1e-5, rtol=0.0
    )
    assert (learner.logprobs(first) - first["sampler_logprob"]).abs().max() > 1e-3
    (held,) = sampler.load_weights(learner.weights(), 1)
    assert {name: tensor.data_ptr() for name, tensor in learner.weights()} == places
    assert all(p.data_ptr() == places[name] for name, p in lm.named_parameters())
    assert held.fingerprints == {
        name: fingerprint_tensor(tensor) for name, tensor in learner.weights()
    }


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_16_bit_sampler_logprobs_are_close_to_learner_of_same_dtype(
    models: Callable[..., Path], dtype: DType
) -> None:
    lm = load_causal_lm(models("qwen2"))
    learner = TorchLearner(LogitsHead(lm), SECTION.model_copy(update={"dtype": dtype}))
    batch = TorchSampler(lm, 64, dtype).generate(requests(), PLAIN)
    mismatch = (batch["sampler_logprob"] - learner.logprobs(batch))[batch.mask].abs()
    assert mismatch.mean() < 0.05


@pytest.mark.parametrize("sampling", SHAPED.values(), ids=SHAPED)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_non_finite_logits_raise_error_naming_step_token_and_row(
    models: Callable[..., Path], sampling: SamplingParams, value: float
) -> None:
    """Row 1 alone reads token 9, whose embedding is broken; so what follows it is not finite."""
    lm = load_causal_lm(models("llama"))
    sampler, asked = (
        TorchSampler(lm, max_batch_size=8),
        [Request((3, 4), 0), Request((3, 9), 1), Request((5,), 2)],
    )
    sampler.load_weights([], version=7)
    with torch.no_grad():
        lm.get_input_embeddings().get_parameter("weight")[9] = value
    with pytest.raises(
        RunError,
        match=r"step 7, returns non-finite logits for token 1 of the response to row 1 of 3",
    ):
        sampler.generate(asked, sampling)
