"""The policy as an endpoint: chat completions, completions and token generation over HTTP."""
