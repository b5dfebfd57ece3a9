"""Hostile rewards and environments: what a user's function does, and what a run says of it."""

from __future__ import annotations

WRITES = """import os
    for n in range(3, 4096):
        try: os.write(n, b'{}\\n')
        except OSError: pass
    return 1.0"""

REWARDS: dict[str, tuple[str, str]] = {
    # name: (body of f(prompt, response, answer, row), text that the run's last words hold; "" is a
    # run that goes well)
    "10**400": ("return 10 ** 400", "return a finite number"),
    "what cannot be shown": (
        "class Odd:\n        def __repr__(self): raise KeyError('no')\n    return Odd()",
        "return a finite number",
    ),
    "what claims to be a number": (
        "import numbers\n    class Odd(float):\n        def __float__(self): raise "
        "KeyError('no')\n    return Odd(1)",
        "return a finite number",
    ),
    "an error of 5 MB": ("raise ValueError('x' * 5_000_000)", "raised ValueError"),
    "an error that moves the cursor": ("raise ValueError('\\x1b[2J\\u202e')", "␛[2J"),
    "an end": ("raise SystemExit('enough')", "crashed its process"),
    "no end of calls": ("def f(): return f()\n    return f()", "raised RecursionError"),
    "no standard output": ("import sys; sys.stdout = sys.stderr = None; return 1.0", ""),
    "closed descriptors": ("import os; os.closerange(0, 4096); return 1.0", "crashed its process"),
    "20 MB printed": ("print('x' * 20_000_000); return 1.0", ""),
    "bytes on the connection": (
        WRITES.format("nonsense"),
        "reward.function",
    ),
    "a killed parent of none": ("import os; os.abort()", "crashed its process"),
}

IMPORTS: dict[str, tuple[str, str]] = {
    "an end": ("raise SystemExit(0)", "cannot be imported (SystemExit"),
    "an error that moves the cursor": ("raise ValueError('\\x1b[2J')", "␛[2J"),
    "no Python": ("def f(:", "cannot be imported"),
    "not UTF-8": ("x = 'caf\udce9'", "cannot be imported"),
}

STEPS: dict[str, tuple[str, str]] = {
    # name: (body of step(self, response), text that is said)
    "nothing": ("return None", "return (observation, reward, done)"),
    "an observation of 5 MB": ("return 'x ' * 2_500_000, 1.0, False", ""),
    "a reward of 10**400": ("return '', 10 ** 400, True", "finite number"),
    "what cannot be shown": (
        "class Odd:\n            def __repr__(self): raise KeyError('no')\n        return Odd()",
        "returned an object that cannot be printed (KeyError)",
    ),
    "an error that moves the cursor": ("raise ValueError('\\x1b[2J')", "␛[2J"),
    "rewards that add up to infinity": ("return '', 1.7e308, False", "finite number"),
}
