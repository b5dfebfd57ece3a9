"""Requests that the endpoint refuses, with what it says."""

from __future__ import annotations

from typing import Any

ASK = {"messages": [{"role": "user", "content": "the cat"}], "max_tokens": 4}
TELL = {"prompt": "the cat", "max_tokens": 4}
GIVE = {"token_ids": [5, 6], "sampling_params": {"max_tokens": 4}}
CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
TOKENS = "/inference/v1/generate"

BODIES: dict[str, tuple[str, Any, int, str]] = {
    "unknown field": (CHAT, {**ASK, "logit_bias": {}}, 400, "does not support the field logit_bias"),
    "unknown inner field": (TOKENS, {**GIVE, "sampling_params": {"min_tokens": 2}}, 400,
                            "does not support the field sampling_params.min_tokens"),
    "text as number": (CHAT, {**ASK, "temperature": "1"}, 400, "temperature: "),
    "hot": (CHAT, {**ASK, "temperature": 1e9}, 400, "temperature: "),
    "endless": (CHAT, b'{"messages": [], "temperature": 1e999}', 400, "not a finite number"),
    "twice": (CHAT, b'{"messages": [], "messages": []}', 400, "twice in one object"),
    "no messages": (CHAT, {"messages": []}, 400, "messages: "),
    "role": (CHAT, {"messages": [{"role": 3, "content": "a"}]}, 400, "role must be a string"),
    "image": (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400,
              "a part is image_url"),
    "content": (CHAT, {"messages": [{"role": "user", "content": {"a": 1}}]}, 400, "content must be"),
    "half a character": (CHAT, b'{"messages": [{"role": "user", "content": "\\ud83d"}]}', 400, "half a character"),
    "calls": (CHAT, {"messages": [{"role": "assistant", "tool_calls": 3}]}, 400, "tool_calls must be calls of functions"),
    "tools": (CHAT, {**ASK, "tools": "add"}, 400, "tools: "),
    "thinking": (CHAT, {**ASK, "chat_template_kwargs": {"thinking": True}}, 400, "chat_template_kwargs"),
    "no room": (CHAT, {"messages": [{"role": "user", "content": "a b " * 800}]}, 400, "the prompt has"),
    "many choices": (CHAT, {**ASK, "n": 10**6}, 400, "n: "),
    "likeliest tokens": (CHAT, {**ASK, "logprobs": True, "top_logprobs": 3}, 400, "top_logprobs"),
    "other model": (CHAT, {**ASK, "model": "gpt-4"}, 404, "has the model policy, not gpt-4"),
    "empty text": (TEXT, {"prompt": ""}, 400, "the prompt has 0 tokens"),
    "unknown token": (TEXT, {**TELL, "prompt": [10**6]}, 400, "token 1000000 is not"),
    "negative token": (TOKENS, {**GIVE, "token_ids": [-1]}, 400, "token -1 is not"),
    "streamed tokens": (TOKENS, {**GIVE, "stream": True}, 400, "stream: "),
    "empty stop": (TEXT, {**TELL, "stop": ""}, 400, "stop"),
    "list": (TEXT, [TELL], 400, "must be a JSON object"),
    "no JSON": (TEXT, b"{", 400, "no JSON"),
    "deep": (TEXT, b'{"prompt": ' + b"[" * 100_000, 400, "no JSON"),
    "bytes": (TEXT, b"\xff\xfe\xfa", 400, "no JSON"),
    "long": (TEXT, {"prompt": "a" * 2**20}, 413, "longer than"),
    "unknown proof": ("/prove", {"request_id": "0"}, 404, "no response '0' is kept"),
    "unknown mode": ("/pause?mode=hold", {}, 400, "mode: "),
    "unknown action": ("/weight_checker", {"action": "burn"}, 400, "action: "),
    "no baseline": ("/weight_checker", {"action": "compare"}, 400, "compare needs a baseline"),
}  # fmt: skip
"""Path, body (bytes are sent as they are), status, and what the sentence says."""
