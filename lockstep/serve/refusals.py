"""Requests that the endpoint refuses, in the error format of OpenAI's API."""

from __future__ import annotations

from typing import Any

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


class RequestRefused(Exception):
    """A request without a response; the message is one sentence for its sender.

    Args:
        status: HTTP status.
        message: What is wrong, and what to do.
        param: The field that is wrong, if one is.
    """

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param

    @property
    def body(self) -> dict[str, Any]:
        """The body of the answer."""
        kind = _TYPES.get(self.status)
        if kind is None:
            kind = "server_error" if self.status >= 500 else "invalid_request_error"
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.status}
        return {"error": error}
