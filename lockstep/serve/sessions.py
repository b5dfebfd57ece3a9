"""Sessions and keys: whose request it is.

The server's key may use any session by the header `X-Session-ID`; a session's own key, which the
program that embeds the server mints, only that one.
"""

from __future__ import annotations

import hmac
import secrets
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from lockstep.core import keyed
from lockstep.serve.prompts import ConversationMemory
from lockstep.serve.refusals import RequestRefused

_LONGEST_NAME = 256
_SIGN_BITS = 2**64 - 1


@dataclass
class ClientSession:
    """Requests that belong together, such as an agent's episode.

    Attributes:
        name: Its name.
        memory: Its conversations so far.
        asked: How often each prompt was asked so far, by a hash of its tokens.
        is_owner: True if its requests come with the server's key.
    """

    name: str
    memory: ConversationMemory = field(default_factory=ConversationMemory)
    asked: Counter[int] = field(default_factory=Counter[int])
    is_owner: bool = True

    def begin_request(self, tokens: Sequence[int]) -> tuple[str, int]:
        """Counts a request for a prompt. Returns its id and the key of its random numbers.

        Both depend on the session's name, the prompt, and how often it was asked before, so that
        the order in which concurrent requests arrive changes nothing.
        """
        prompt = keyed.hash_key(*tokens)
        self.asked[prompt] += 1
        key = keyed.hash_key("serve", self.name, prompt, self.asked[prompt])
        return f"{key & _SIGN_BITS:016x}", key


class SessionRegistry:
    """The open sessions.

    Args:
        key: The server's key.
        most: Most sessions of the server's key that are remembered.
    """

    def __init__(self, key: str, most: int) -> None:
        self._key = key
        self._most = most
        self._named = OrderedDict[str, ClientSession]()
        self._minted = dict[str, ClientSession]()

    def open_session(self, name: str) -> str:
        """Opens a session. Returns its key."""
        key = f"sk-{secrets.token_urlsafe(24)}"
        self._minted[key] = ClientSession(name, is_owner=False)
        return key

    def close_session(self, key: str) -> None:
        """Ends a session; its key is refused from now on."""
        self._minted.pop(key, None)

    def find_session(self, authorization: str, header: str | None) -> ClientSession:
        """The session of a request.

        Args:
            authorization: Its header `Authorization`.
            header: Its header `X-Session-ID`.

        Raises:
            RequestRefused: The key is unknown or expired, or belongs to another session.
        """
        key = authorization.removeprefix("Bearer ").strip()
        if header is not None and not 0 < len(header) <= _LONGEST_NAME:
            raise RequestRefused(400, f"X-Session-ID must have 1 to {_LONGEST_NAME} characters")
        if hmac.compare_digest(key.encode(), self._key.encode()):
            return self._use_named(header or "")
        for minted, session in list(self._minted.items()):
            if not hmac.compare_digest(key.encode(), minted.encode()):
                continue
            if header not in (None, session.name):
                raise RequestRefused(403, "this key belongs to another session than X-Session-ID")
            return session
        raise RequestRefused(
            401, "the key is missing, wrong or expired; send Authorization: Bearer"
        )

    def _use_named(self, name: str) -> ClientSession:
        session = self._named.setdefault(name, ClientSession(name))
        self._named.move_to_end(name)
        while len(self._named) > self._most:
            self._named.popitem(last=False)
        return session
