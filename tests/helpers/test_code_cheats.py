"""Programs that want to pass a test without doing what it asks: each in a way that a policy could
find.
"""

from __future__ import annotations

import os

import pytest
from ordinary_user import SYSTEM_PYTHON, become_ordinary_user, for_all_users, in_fork

from lockstep.helpers.sandbox.sandbox import CodeSandbox, ProgramLimits

pytestmark = pytest.mark.usefixtures("sandboxes")

LIMITS = ProgramLimits(cpu_s=2, wall_s=10.0, memory_mb=256)

DOUBLE = "assert double(4) == 8\nassert double(5) == 10"
CLOSE = "assert abs(half(3) - 1.5) < 1e-6"

ALWAYS = """
class Always:
    def yes(self, *others): return True
    __eq__ = __contains__ = __lt__ = __le__ = __gt__ = __ge__ = yes
    def __ne__(self, other): return False
    def same(self, *others): return self
    __sub__ = __rsub__ = __abs__ = __add__ = __radd__ = __getitem__ = same
    __hash__ = object.__hash__
"""

FIND_WORD = """
import os, re, sys
def tell(text):
    found = re.search(rb"[0-9a-f]{64}", text)
    if found:
        os.write(1, found[0])
        os._exit(0)
def search(frame):
    while frame is not None:
        for held in (*frame.f_code.co_consts, *frame.f_locals.values(), *frame.f_globals.values()):
            if isinstance(held, bytes): tell(held)
        frame = frame.f_back
"""

CHEATS = {
    "equal to everything": (ALWAYS + "def double(x): return Always()", DOUBLE),
    "an int that equals everything": (
        "class Int(int):\n    def __eq__(self, other): return True\ndef double(x): return Int(0)",
        DOUBLE,
    ),
    "a text that equals everything": (
        "class Text(str):\n    def __eq__(self, other): return True\ndef name(): return Text()",
        "assert name() == 'Ann'",
    ),
    "a list that equals everything": (
        "class List(list):\n    def __eq__(self, other): return True\ndef pair(): return List()",
        "assert pair() == [1, 2]",
    ),
    "equal within a list": (
        ALWAYS + "def pair(): return [Always(), Always()]",
        "assert pair() == [1, 2]",
    ),
    "equal within a dict": (
        ALWAYS + "def table(): return {'a': Always()}",
        "assert table() == {'a': 1}",
    ),
    "contains everything": (
        ALWAYS + "def primes(): return Always()",
        "assert 97 in primes() and 7919 in primes()",
    ),
    "larger and smaller": (ALWAYS + "def double(x): return Always()", "assert 8 <= double(4) <= 8"),
    "a difference of nothing": (ALWAYS + "def half(x): return Always()", CLOSE),
    "claims another class": (
        ALWAYS + "class Claims(Always):\n    __class__ = int\ndef double(x): return Claims()",
        "assert isinstance(double(4), int) and double(4) == 8",
    ),
    "reads its test": (
        FIND_WORD
        + (
            "for number in range(9):\n    try: tell(os.pread(number, 1 << 20, 0))\n    except "
            "OSError: pass"
        ),
        DOUBLE,
    ),
    "reads frames when called": (FIND_WORD + "def double(x): search(sys._getframe(1))", DOUBLE),
    "reads frames when imported": (
        FIND_WORD + "search(sys._getframe(0))\ndef double(x): return 0",
        DOUBLE,
    ),
    "reads frames in a thread": (
        FIND_WORD + "import threading, time\ndef watch():\n    while True:\n        "
        "for frame in list(sys._current_frames().values()): search(frame)\n"
        "threading.Thread(target=watch, daemon=True).start()\ndef double(x):\n    "
        "time.sleep(0.5)\n    return 0",
        DOUBLE,
    ),
    "reads frames in a signal": (
        FIND_WORD + "import signal, time\nsignal.signal(signal.SIGALRM, lambda number, frame: "
        "search(frame))\n"
        "def double(x):\n    signal.raise_signal(signal.SIGALRM)\n    return 0",
        DOUBLE,
    ),
    "reads frames of an error": (
        FIND_WORD
        + "def hook(kind, error, trace):\n    while trace: search(trace.tb_frame); trace = "
        "trace.tb_next\n"
        "sys.excepthook = hook\ndef double(x): return 0",
        DOUBLE,
    ),
    "traces calls": (
        FIND_WORD + "def trace(frame, event, argument):\n    search(frame)\n    return "
        "trace\nsys.settrace(trace)\n"
        "def double(x): return 0",
        DOUBLE,
    ),
    "profiles calls": (
        FIND_WORD
        + "sys.setprofile(lambda frame, event, argument: search(frame))\ndef double(x): return 0",
        DOUBLE,
    ),
    "replaces compile": (
        "import builtins, re\nreal = compile\n"
        "builtins.compile = lambda text, *rest: real(re.sub(rb'assert.*', b'pass', text), *rest)\n"
        "def double(x): return 0",
        DOUBLE,
    ),
    "replaces exec": (
        FIND_WORD + "import builtins\n"
        "builtins.exec = lambda code, *rest: [tell(held) for held in code.co_consts if "
        "isinstance(held, bytes)]\n"
        "def double(x): return 0",
        DOUBLE,
    ),
    "replaces compile in the driver": (
        "import __main__, re\n"
        "__main__.compile = lambda text, *rest: compile(re.sub(rb'assert.*', b'pass', text), "
        "*rest)\n"
        "def double(x): return 0",
        DOUBLE,
    ),
    "replaces import": (
        FIND_WORD + "import builtins\nreal = builtins.__import__\n"
        "def found(*rest, **names):\n    search(sys._getframe(1))\n    return real(*rest, "
        "**names)\n"
        "builtins.__import__ = found\ndef double(x): return 0",
        "import math\n" + DOUBLE,
    ),
    "replaces a module": (
        "import sys\nclass Close:\n    isclose = staticmethod(lambda *rest, **names: True)\n"
        "sys.modules['math'] = Close\ndef half(x): return 0",
        "import math\nassert math.isclose(half(3), 1.5)",
    ),
    "is called like a module": (
        "class math:\n    isclose = staticmethod(lambda *rest, **names: True)\ndef half(x): "
        "return 0",
        "assert math.isclose(half(3), 1.5)",
    ),
    "redefines sorted": (
        ALWAYS + "def sorted(values): return Always()\ndef double(x): return 0",
        "assert sorted(double([3, 1])) == [2, 6]",
    ),
    "redefines all": (
        "def all(values): return True\ndef double(x): return 0",
        "assert all(double(x) == 2 * x for x in range(1, 5))",
    ),
    "redefines abs": ("def abs(x): return 0\ndef half(x): return 0", CLOSE),
    "replaces abs in builtins": (
        "import builtins\nbuiltins.abs = lambda x: 0\ndef half(x): return 0",
        CLOSE,
    ),
    "ends a loop": (
        "def double(x): raise StopIteration",
        "for got, want in zip(map(double, [1, 2]), [2, 4]):\n    assert got == want",
    ),
    "changes small numbers": (
        "import ctypes\ndef double(x):\n    for i in range(6, 11):\n"
        "        ctypes.c_uint32.from_address(id(i) + 24).value = 7\n    return 7",
        DOUBLE,
    ),
    "starts again without asserts": (
        "import os, sys\nos.remove('main.py')\n"
        "open('main.py', 'w').write('def double(x): return 0')\nos.lseek(0, 0, 0)\n"
        "os.execv(sys.executable, [sys.executable, '-O', *sys.orig_argv[1:]])",
        DOUBLE,
    ),
    "ends when called": ("import os\ndef double(x): os._exit(0)", DOUBLE),
    "exports Python's names": (
        "__builtins__ = {'sorted': lambda x: [2, 6], 'abs': lambda x: 0, 'AssertionError': "
        "ValueError}\n"
        "__all__ = ['__builtins__', 'f']\ndef f(x): return 0",
        "from solution import *\ndef check(candidate):\n    assert sorted(candidate([3, 1])) == "
        "[2, 6]\n"
        "    assert abs(candidate(3) - 1.5) < 1e-6\ncheck(f)",
    ),
    "exports Python's names as an attribute": (
        "class Box: pass\nbox = Box()\nbox.__builtins__ = {'abs': lambda x: 0}\ndef f(x): return 0",
        "import solution\n__builtins__ = getattr(solution.box, '__builtins__', {})\n"
        "def check(candidate):\n    assert abs(candidate(3) - 1.5) < 1e-6\ncheck(f)",
    ),
    "defines a name for a star": (
        "__all__ = ['sorted', 'f']\ndef sorted(x): return [2, 6]\ndef f(x): return 0",
        "from solution import *\nassert sorted(f([3, 1])) == [2, 6]",
    ),
    "says that it passed": (
        "import json, os\nfor number in range(64):\n"
        "    for said in (b'passed\\n', json.dumps({'passed': True}).encode()):\n"
        "        try: os.write(number, said)\n        except OSError: pass\ndef double(x): return "
        "0",
        DOUBLE,
    ),
}


HONEST = {
    "texts, numbers and None": (
        "def same(x): return x",
        "for x in (None, True, 1.5, -0.0, 1 << 5000, 'ü\\ud800', b'x', 2j, float('inf')):\n"
        "    assert repr(same(x)) == repr(x)",
    ),
    "containers": (
        "def same(x): return x",
        (
            "x = {'a': [1, (2, {3})], 4: frozenset([5])}\nassert same(x) == x and "
            "type(same(x)['a'][1]) is tuple"
        ),
    ),
    "no number": ("def same(x): return float(x)", "assert same('nan') != same('nan')"),
    "counts": (
        "from collections import Counter, defaultdict\ndef count(text): return Counter(text)",
        "assert count('aab') == {'a': 2, 'b': 1}",
    ),
    "a named tuple": (
        "from collections import namedtuple\nP = namedtuple('P', 'x y')\ndef point(): return P(1, "
        "2)",
        "assert point() == (1, 2) and point().y == 2",
    ),
    "changes its argument": (
        "def sort(values, key=None): values.sort(key=key)",
        "values = [3, 1, 2]\nsort(values)\nassert values == [1, 2, 3]\n"
        "sort(values=values, key=lambda x: -x)\nassert values == [3, 2, 1]",
    ),
    "objects": (
        "class Stack(list):\n    def push(self, x): self.append(x); return self\n"
        "class Node:\n    def __init__(self, value, next=None): self.value, self.next = value, "
        "next\n"
        "def last(node):\n    while node.next: node = node.next\n    return node",
        "s = Stack()\nassert s.push(1).push(2) == [1, 2] and s.pop() == 2 and len(s) == 1 and "
        "s[0] == 1\n"
        "end = Node(3)\nhead = Node(1)\nhead.next = Node(2, end)\nassert last(head) is end and "
        "last(head).value == 3",
    ),
    "errors": (
        "class Odd(ValueError): pass\ndef half(x):\n    if x % 2: raise Odd(x)\n    return x // 2",
        (
            "try:\n    half(3)\n    assert False\nexcept ValueError as error:\n    assert "
            "str(error) == '3'"
        ),
    ),
    "generators": (
        "import itertools\ndef even():\n    yield from itertools.count(0, 2)",
        "from itertools import islice\nassert list(islice(even(), 3)) == [0, 2, 4]",
    ),
    "functions of the test's": (
        "def apply(f, x): return f(f(x))",
        "def check(candidate):\n    assert candidate(lambda x: x + 1, 1) == 3\ncheck(apply)",
    ),
    "called like Python's": ("def sum(a, b): return a + b", "assert sum(1, 2) == 3"),
    "modules": (
        "import math, re\nqueue = [1]",
        "assert math.sqrt(4) == 2 and re.findall('a', 'aa') == ['a', 'a']",
    ),
    "a name of a module's": (
        "class Q:\n    def put(self, x): return x\nqueue = Q()",
        "assert queue.put(1) == 1",
    ),
    "imported": (
        "def double(x): return 2 * x",
        "from solution import double as twice\nassert twice(4) == 8",
    ),
    "imported by a star": (
        "def double(x): return 2 * x",
        "from solution import *\nassert double(4) == 8",
    ),
    "deep": ("def depth(n): return 0 if n == 0 else 1 + depth(n - 1)", "assert depth(900) == 900"),
    "asynchronous": (
        "import asyncio\nasync def one(): return 1\ndef run(): return asyncio.run(one())",
        "assert run() == 1",
    ),
}
"""Programs that do what their test asks."""


@pytest.fixture(scope="module")
def sandbox() -> CodeSandbox:
    return CodeSandbox(LIMITS)


@pytest.mark.parametrize("cheat", CHEATS)
def test_cheating_program_never_passes_its_test(sandbox: CodeSandbox, cheat: str) -> None:
    assert not sandbox.passes_test(*CHEATS[cheat])


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests are run by an ordinary user already")
def test_cheating_program_never_passes_as_non_root_user() -> None:
    own, asked = (
        CodeSandbox(LIMITS, interpreter=SYSTEM_PYTHON),
        {"no cheat": HONEST["imported"], **CHEATS},
    )

    def run() -> list[str]:
        become_ordinary_user()
        return [name for name, pair in asked.items() if own.passes_test(*pair)]

    with for_all_users():
        assert in_fork(run) == ["no cheat"]


@pytest.mark.parametrize("honest", HONEST)
def test_an_honest_program_passes(sandbox: CodeSandbox, honest: str) -> None:
    assert sandbox.passes_test(*HONEST[honest])


FORGED = (
    "[1]",
    "{}",
    '["result", ["thing", "0"], null]',
    '["result", ["dict", [[["list", []], 1]]], null]',
    '["result", 1.5, null]',
    '["result", 8, [1]]',
    '["ended"]',
    '["raised", "ValueError", "x"]',
    '["callback", 0, ["tuple", []]]',
    "[" * 5000,
    "no JSON",
)


@pytest.mark.parametrize("said", FORGED)
def test_forged_protocol_message_fails_even_if_test_catches_errors(
    sandbox: CodeSandbox, said: str
) -> None:
    """The program takes the place of its side and answers as it likes."""
    find = (
        "import gc, io\npipes = [one for one in gc.get_objects() if isinstance(one, "
        "io.BufferedWriter)]\n"
        "pipe = [one for one in pipes if one.name not in (1, 2, '<stdout>', '<stderr>')][0]\n"
    )
    write = (
        f"def double(x):\n    pipe.write({said.encode()!r} + b'\\n')\n    pipe.flush()\n    "
        "return 8"
    )
    assert not sandbox.passes_test(find + write, "try:\n    double(4)\nexcept BaseException: pass")


@pytest.mark.parametrize(
    ("program", "test"),
    [
        ("def f(): return object()", "assert f() == 1"),
        ("def f():\n    x = []\n    x.append(x)\n    return x", "f()"),
        ("def f(x): return x", "f(object())"),
        ("def f(x): return x", "assert f(1) == 2, 'two'"),
        ("1 / 0", "pass"),
        ("import os\nos.abort()", "pass"),
        ("x = 1", "while True: pass"),
    ],
)
def test_raising_or_hanging_test_does_not_pass(
    sandbox: CodeSandbox, program: str, test: str
) -> None:
    assert not sandbox.passes_test(program, test)
