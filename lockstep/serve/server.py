"""The policy server: the endpoint in threads of this process."""

from __future__ import annotations

import secrets
import socket
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from lockstep.core.errors import InputError, install_command
from lockstep.learners.base import Learner
from lockstep.models.source import ModelSource
from lockstep.rollouts.turns import TurnListener
from lockstep.samplers.base import Sampler
from lockstep.serve.engine import PauseMode, ServingEngine
from lockstep.serve.evidence import ResponseArchive
from lockstep.serve.options import EndpointSection
from lockstep.serve.sessions import SessionRegistry

try:
    import uvicorn

    from lockstep.serve.app import EndpointApp, FieldsAdapter
    from lockstep.serve.verbs import EndpointVerbs
except ModuleNotFoundError as missing:
    raise InputError(
        f"the endpoint requires the package {missing.name}; {install_command('serve')}"
    ) from missing

_LONGEST_HEADERS = 64 * 2**10
_GOODBYE_S = 5


class PolicyServer:
    """Serves a policy within a `with` block.

    Args:
        sampler: The policy, awake. Between `pause` and `resume` its weights may change; otherwise
            only the server uses it.
        source: Tokenizer and chat template of its model.
        learner: Recomputes responses for `/prove`; None: nothing can be proven. It may share the
            sampler's weights.
        on_turn: Receives each turn before its answer is sent, one at a time, in the server's
            thread.
        adapt: Changes how each response is drawn, see `FieldsAdapter`.
        options: Limits.
        host: Address to listen on.
        port: Port; 0: a free one.
        key: The server's key; None: a new one.

    Raises:
        InputError: The address is taken.
    """

    def __init__(
        self,
        sampler: Sampler,
        source: ModelSource,
        *,
        learner: Learner | None = None,
        on_turn: TurnListener | None = None,
        adapt: FieldsAdapter | None = None,
        options: EndpointSection | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        key: str | None = None,
    ) -> None:
        chosen = options or EndpointSection()
        self.key = key or f"sk-{secrets.token_urlsafe(24)}"
        self.model = chosen.model_name or Path(source.folder).resolve().name
        self._sessions = SessionRegistry(self.key, chosen.max_sessions)
        self._engine = ServingEngine(sampler)
        archive = ResponseArchive(chosen.max_proofs)
        endpoint = EndpointApp(
            self._engine, source, chosen, self._sessions, archive, self.model, on_turn, adapt
        )
        app = endpoint.build_app(EndpointVerbs(endpoint, sampler, learner).list_routes())
        try:
            self._socket = socket.create_server((host, port), backlog=2048)
        except (OSError, OverflowError) as error:
            raise InputError(
                f"cannot listen on port {port} of {host} ({error}); choose another --port"
            ) from error
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                http="h11",
                ws="none",
                loop="asyncio",
                lifespan="off",
                log_config=None,
                access_log=False,
                h11_max_incomplete_event_size=_LONGEST_HEADERS,
                timeout_graceful_shutdown=_GOODBYE_S,
            )
        )
        self._thread = threading.Thread(
            target=self._server.run, args=([self._socket],), name="policy server", daemon=True
        )

    @property
    def url(self) -> str:
        """The `base_url` of OpenAI clients."""
        host, port = self._socket.getsockname()[:2]
        return f"http://{host}:{port}/v1"

    @property
    def failure(self) -> BaseException | None:
        """The error of the sampler or of `on_turn` that ended all responses; None if none did."""
        return self._engine.failure

    @property
    def open_count(self) -> int:
        """Number of responses that run or wait."""
        return self._engine.open_count

    def open_session(self, name: str) -> str:
        """Opens a session, such as an episode. Returns its key, which reaches no other session."""
        return self._sessions.open_session(name)

    def close_session(self, key: str) -> None:
        """Ends a session; its key is refused from now on."""
        self._sessions.close_session(key)

    def pause(self, mode: PauseMode = "wait") -> None:
        """Stops generating; returns when the sampler rests, so that its weights may change."""
        self._engine.pause(mode).result()

    def resume(self) -> None:
        """Generates again."""
        self._engine.resume().result()

    def __enter__(self) -> Self:
        self._engine.start()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._engine.close()
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()
