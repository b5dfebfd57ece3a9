"""Addresses of servers that recipes name."""

from __future__ import annotations

from urllib.parse import urlsplit


def require_address(url: str, example: str) -> str:
    """Checks a server's URL and returns it unchanged.

    Raises:
        ValueError: Not an http(s) URL with a host, or it has a user name or a query, which may hold
            a key.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"a server address must begin with http:// or https://, such as {example}")
    try:
        _ = parts.port
    except ValueError:
        raise ValueError(f"{url} has an invalid port; use a number from 0 to 65535") from None
    if parts.username is not None or parts.query:
        raise ValueError(
            "an address cannot contain a key; put the key in the environment variable named by "
            "api_key_env"
        )
    return url
