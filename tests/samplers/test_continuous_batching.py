"""Continuous batching changes no bit, also where rows wait, share prompts, continue others, give
way or are aborted.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from uncached import generate_uncached

from lockstep.config import DType
from lockstep.core import keyed
from lockstep.core.batch import Batch
from lockstep.core.types import Request, SamplingParams
from lockstep.models.attention import NAME
from lockstep.models.exact.model import make_exact
from lockstep.models.folder import count_cache_numbers
from lockstep.models.heads import LogitsHead
from lockstep.models.tokenizer import words_tokenizer
from lockstep.samplers.torch.sampler import TorchSampler
from lockstep.samplers.torch.scheduler import BatchScheduler

SHAPE = {
    "vocab_size": 32, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256, "initializer_range": 0.2,
}  # fmt: skip
STOPS = (3, 7, 11)
PLAIN = SamplingParams(max_tokens=30, stop_token_ids=STOPS)


@pytest.fixture(params=["llama", pytest.param("qwen2", marks=pytest.mark.full), "qwen3"])
def lm(request: pytest.FixtureRequest) -> PreTrainedModel:
    config = AutoConfig.for_model(request.param, **SHAPE)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        lm = AutoModelForCausalLM.from_config(
            config, attn_implementation=NAME, dtype=torch.float32
        ).eval()
    make_exact(lm)
    return lm


def prompts(count: int, seed: int = 0, most: int = 40) -> list[tuple[int, ...]]:
    draw = random.Random(seed)
    return [
        tuple(draw.randrange(4, 30) for _ in range(draw.randrange(1, most))) for _ in range(count)
    ]


def requests(each: Sequence[tuple[int, ...]], generations: int = 1) -> list[Request]:
    return [
        Request(p, keyed.hash_key(i, n)) for i, p in enumerate(each) for n in range(generations)
    ]


def assert_same(one: Batch, other: Batch) -> None:
    assert torch.equal(one.tokens, other.tokens)
    for column in ("mask", "sampler_logprob", "truncated", "version"):
        assert torch.equal(one[column], other[column]), column


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("places", [1, 5, 64])
def test_continuous_batching_gives_same_bits_as_uncached_generation(
    lm: PreTrainedModel, places: int, dtype: DType
) -> None:
    wanted = requests(prompts(12), 3)
    sampler = TorchSampler(lm, places, dtype)
    assert_same(sampler.generate(wanted, PLAIN), generate_uncached(lm, wanted, PLAIN, dtype))


@pytest.mark.parametrize("lm", ["llama"], indirect=True)
def test_penalties_and_stop_strings_keep_bits_under_preemption_and_in_learner(
    lm: PreTrainedModel, tmp_path: Path
) -> None:
    """Also where rows give way and begin again; and the learner has the same log-probabilities, to
    the bit.
    """
    words_tokenizer(map(str, range(29))).save_pretrained(tmp_path)
    lm.config.name_or_path = str(tmp_path)
    sampling = SamplingParams(
        40,
        0.7,
        min_p=0.01,
        repetition_penalty=1.3,
        presence_penalty=0.2,
        frequency_penalty=0.1,
        stop=("11", "2 "),
    )
    wanted = requests(prompts(12), 2)
    whole = generate_uncached(lm, wanted, sampling)
    tiny = TorchSampler(lm, 24, cache_bytes=4 * count_cache_numbers(lm.config) * 200)
    assert_same(tiny.generate(wanted, sampling), whole)
    assert tiny._scheduler is not None
    assert tiny._scheduler.preempted > 1
    assert 4 < int(whole["truncated"].sum()) < 20
    logprob = LogitsHead(lm)(whole).logprob
    assert logprob is not None
    assert torch.equal(logprob, whole["sampler_logprob"])


def test_scheduler_leaves_no_slot_empty_while_sequences_wait(lm: PreTrainedModel) -> None:
    """Each pass gives a token to as many rows as list scheduling of the same lengths does."""
    sampler, places = TorchSampler(lm, 5), 5
    batch = sampler.generate(requests(prompts(40)), PLAIN)
    assert sampler._scheduler is not None
    ends = [0] * places
    order = sorted(range(40), key=lambda row: len(prompts(40)[row]))
    lengths = batch.per_sample(batch.mask.long()).tolist()
    for row in order:
        first = ends.index(min(ends))
        ends[first] += lengths[row]
    assert sampler._scheduler.passes == max(ends)


def test_a_prompt_is_computed_once_for_all_its_generations(lm: PreTrainedModel) -> None:
    sampler, each = TorchSampler(lm, 3), prompts(4)
    batch = sampler.generate(requests(each, 6), PLAIN)
    assert sampler._scheduler is not None
    responses = int(batch.mask.sum()) - len(batch)  # a last token is sampled, and not computed
    assert sampler._scheduler.computed == sum(map(len, each)) + responses


@pytest.mark.parametrize("seed", [0, 1])
def test_prefix_cache_reuse_keeps_output_bits(lm: PreTrainedModel, seed: int) -> None:
    """Prompts that continue others, and responses, in turn; as many turns of episodes have them."""
    draw, known = random.Random(seed), prompts(4, seed)
    sampler = TorchSampler(lm, 4)
    sampler.wake()
    tokens = 0
    for turn in range(8):
        each = [
            draw.choice(known) + tuple(draw.choices(range(4, 30), k=draw.randrange(20)))
            for _ in range(5)
        ]
        wanted = [
            Request(p[:60], keyed.hash_key(turn, i), continues=draw.random() < 0.7)
            for i, p in enumerate(each)
        ]
        sampling = SamplingParams(max_tokens=draw.choice([1, 4, 20]), stop_token_ids=STOPS)
        batch = sampler.generate(wanted, sampling)
        assert_same(batch, generate_uncached(lm, wanted, sampling))
        known += [tuple(row.tolist())[:60] for row in batch.sequences()]
        tokens += int(batch.lengths.sum()) - len(batch)
    assert sampler._scheduler is not None
    assert sampler._scheduler.computed < 0.8 * tokens


def test_next_turn_prefills_only_uncached_tokens_and_sleep_clears_cache(
    lm: PreTrainedModel,
) -> None:
    sampler, sampling = TorchSampler(lm, 4), SamplingParams(max_tokens=20)
    sampler.wake()
    first = sampler.generate([Request(prompts(1)[0], 0, continues=True)], sampling)
    assert sampler._scheduler is not None
    before, known = sampler._scheduler.computed, (len(first.tokens) - 1) // 16 * 16
    again = (*first.tokens.tolist(), 5, 6)
    sampler.generate([Request(again, 1)], SamplingParams(max_tokens=1))
    assert sampler._scheduler.computed - before == len(again) - known
    sampler.sleep()
    sampler.wake()
    sampler.generate([Request(again, 1)], SamplingParams(max_tokens=1))
    assert sampler._scheduler is not None
    assert sampler._scheduler.computed == len(again), "nothing is known after sleep"


def test_preemption_under_small_kv_cache_keeps_output_bits(lm: PreTrainedModel) -> None:
    wanted, sampling = requests(prompts(12), 2), SamplingParams(max_tokens=60)
    sampler = TorchSampler(lm, 24, cache_bytes=4 * count_cache_numbers(lm.config) * 400)
    assert_same(sampler.generate(wanted, sampling), generate_uncached(lm, wanted, sampling))
    assert sampler._scheduler is not None
    assert sampler._scheduler.preempted > 0
    tiny = TorchSampler(lm, 24, cache_bytes=1)
    assert_same(tiny.generate(wanted, sampling), generate_uncached(lm, wanted, sampling))


def test_mixed_sampling_params_in_one_batch_match_separate_generation(lm: PreTrainedModel) -> None:
    scheduler, each = open_scheduler(lm), prompts(9)
    samplings = [
        PLAIN,
        SamplingParams(max_tokens=9, temperature=0.0),
        SamplingParams(max_tokens=12, top_k=4),
    ]
    numbers = [
        scheduler.submit(request, samplings[i % 3]) for i, request in enumerate(requests(each))
    ]
    while scheduler.is_busy:
        scheduler.step()
    for i, (number, request) in enumerate(zip(numbers, requests(each), strict=True)):
        alone = generate_uncached(lm, [request], samplings[i % 3])
        assert scheduler.finished[number].tokens == alone.tokens[alone.mask].tolist()
        assert scheduler.finished[number].logprobs == alone["sampler_logprob"][alone.mask].tolist()


def test_aborting_requests_does_not_change_outputs_of_others(lm: PreTrainedModel) -> None:
    scheduler, wanted = open_scheduler(lm), requests(prompts(10))
    numbers = [scheduler.submit(request, PLAIN) for request in wanted]
    scheduler.step()
    for number in (numbers[0], numbers[9]):  # one runs, one waits
        scheduler.abort(number)
    while scheduler.is_busy:
        scheduler.step()
    assert set(scheduler.finished) == set(numbers[1:9])
    whole = generate_uncached(lm, wanted, PLAIN)
    expected = [
        tokens[mask].tolist()
        for tokens, mask in zip(whole.sequences(), whole.sequences("mask"), strict=True)
    ]
    assert [scheduler.finished[number].tokens for number in numbers[1:9]] == expected[1:9]


def open_scheduler(lm: PreTrainedModel) -> BatchScheduler:
    sampler = TorchSampler(lm, 4)
    return sampler._open_scheduler()
