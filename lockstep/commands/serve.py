"""`lockstep serve`: a model as an endpoint for agents."""

from __future__ import annotations

import argparse

from lockstep.commands.arguments import SubParsers, add_model, add_trust
from lockstep.system.process_defaults import spare_modules


def add_command(parsers: SubParsers) -> None:
    """Adds the command to a parser."""
    serve = parsers.add_parser(
        "serve", help="serve a model to agents over HTTP, with token ids and proofs"
    )
    add_model(serve)
    serve.add_argument(
        "overrides", nargs="*", default=[], metavar="key=value", help="such as sampler=vllm"
    )
    serve.add_argument(
        "--host", default="127.0.0.1", metavar="HOST", help="address (default: this machine only)"
    )
    serve.add_argument(
        "--port", type=int, default=0, metavar="PORT", help="port (default: a free port)"
    )
    serve.add_argument("--key", metavar="KEY", help="key of requests (default: a new one, printed)")
    add_trust(serve)
    serve.set_defaults(command=run_command)


def run_command(options: argparse.Namespace) -> int:
    """Runs the command. Returns the exit code."""
    from lockstep.config.loading import load_overrides
    from lockstep.serve.options import ServeOptions

    chosen = load_overrides(ServeOptions, options.overrides)
    with spare_modules():
        from lockstep.inference.serve import serve_model

    serve_model(options.model, chosen, options.host, options.port, options.key)
    return 0
