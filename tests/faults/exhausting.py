"""Attacks that wear the box out: recursion, parser bombs, endless loops, memory."""

from .snippet import Kind, Snippet, written

TIMEOUT = frozenset({"timeout"})
MEMORY = frozenset({"memory"})
NO_ANSWER = frozenset({"timeout", "memory", "crashed"})
REFUSED = frozenset({"timeout", "memory", "crashed", "result_rejected", "unsupported_construct"})
SHORT_MS = 150
LOOP_MS = 60
"""A loop without an end runs as long as it is let: a moment shows that it is stopped."""


def _loop(name: str, kind: Kind, code: str, *, small: frozenset[str] = TIMEOUT, timeout_ms: int = LOOP_MS) -> Snippet:
    """Code that never ends by itself; `small` says how else the small Python may stop it."""
    return Snippet(name, kind, written(code, helpers=False), timeout_ms, TIMEOUT, small, boasts=False)


def _deep(name: str, code: str, *, full: frozenset[str] = NO_ANSWER) -> Snippet:
    return Snippet(
        name, Kind.RECURSION, written(code, helpers=False), 500, ends=full, ends_small=NO_ANSWER, boasts=False
    )


RECURSION = [
    _deep(
        "recursion_plain",
        """
        def metric(input, output, metadata):
            return metric(input, output, metadata)
        """,
    ),
    _deep(
        "recursion_without_limit",
        """
        def metric(input, output, metadata):
            import sys
            sys.setrecursionlimit(10**9)
            def down(n):
                return down(n + 1) + 1
            return {"depth": down(0)}
        """,
    ),
    _deep(
        "recursion_through_c",
        """
        def metric(input, output, metadata):
            import functools, sys
            sys.setrecursionlimit(10**9)
            def down(n):
                return max(map(down, [n + 1]))
            return {"depth": down(0)}
        """,
    ),
    _deep(
        "recursion_swallowed",
        """
        def metric(input, output, metadata):
            def down(n):
                try:
                    down(n + 1)
                except RecursionError:
                    down(n + 1)
                finally:
                    down(n + 1)
            down(0)
            return {"done": 1}
        """,
    ),
    _deep(
        "recursion_in_repr",
        """
        class Bottomless:
            def __repr__(self):
                return repr(self)

        def metric(input, output, metadata):
            return {"length": len(repr(Bottomless())) + len(str(Bottomless())) + 1 // 0}
        """,
    ),
    # A deep value: whoever walks it by recursion runs out of stack, the host's converter included.
    *(
        Snippet(
            f"deep_value_{name}",
            Kind.RECURSION,
            written(
                f"""
        import json, copy

        def metric(input, output, metadata):
            deep = []
            for _ in range(300000):
                deep = [deep]
            {use}
        """,
                helpers=False,
            ),
            ends=full,
            # The small Python shortens what it shows of a deep value.
            ends_small=REFUSED | ({""} if name in {"formatted", "keyed"} else set()) if full else frozenset(),
            boasts=False,
        )
        for name, use, full in (
            ("dropped", 'return {"quiet": 0}', frozenset[str]()),
            (
                "compared",
                (
                    "other = []\n"
                    "            for _ in range(300000):\n"
                    "                other = [other]\n"
                    '            return {"equal": 1 if deep == other else 0}'
                ),
                NO_ANSWER,
            ),
            ("printed", 'print(deep)\n            return {"quiet": 0}', frozenset[str]()),
            ("dumped", 'return {"length": len(json.dumps(deep))}', NO_ANSWER),
            ("copied", 'return {"length": len(copy.deepcopy(deep))}', NO_ANSWER),
            ("raised", "raise ValueError(deep)", NO_ANSWER),
            ("returned", 'return {"deep": deep}', REFUSED),
            ("keyed", 'return {"hash": hash(str(deep))}', NO_ANSWER),
            ("formatted", 'return {"length": len(f"{deep}")}', NO_ANSWER),
        )
    ),
    _deep(
        "recursion_deep_tuple_hash",
        """
        def metric(input, output, metadata):
            deep = ()
            for _ in range(300000):
                deep = (deep,)
            return {"hash": hash(deep) % 7 + 1 // 0}
        """,
    ),
    _deep(
        "recursion_in_parsing_json",
        """
        import json

        def metric(input, output, metadata):
            return {"length": len(json.loads("[" * 300000 + "]" * 300000)) + 1 // 0}
        """,
    ),
    _deep(
        "recursion_in_eval",
        """
        def metric(input, output, metadata):
            return {"value": eval("(" * 20000 + "1" + ")" * 20000) + 1 // 0}
        """,
    ),
    _deep(
        "recursion_by_closures",
        """
        def metric(input, output, metadata):
            f = lambda: 0
            for _ in range(300000):
                f = (lambda inner: lambda: inner())(f)
            return {"value": f() + 1 // 0}
        """,
    ),
]

PARSER = [
    Snippet(name, Kind.PARSER, code, boasts=False, timeout_ms=600)
    for name, code in {
        "parser_nested_parentheses": "def metric(input, output, metadata):\n    return " + "(" * 50_000 + ")" * 50_000,
        "parser_nested_lists": "x = " + "[" * 100_000 + "]" * 100_000,
        "parser_unclosed": "x = " + "({[" * 60_000,
        "parser_unary_chain": "x = " + "-" * 200_000 + "1",
        "parser_not_chain": "x = " + "not " * 50_000 + "1",
        "parser_sum_chain": "x = " + "1+" * 100_000 + "1",
        "parser_power_chain": "x = " + "2**" * 60_000 + "2",
        "parser_attribute_chain": "x = a" + ".b" * 100_000,
        "parser_call_chain": "x = a" + "()" * 100_000,
        "parser_index_chain": "x = a" + "[0]" * 60_000,
        "parser_nested_lambda": "x = " + "lambda: " * 30_000 + "1",
        "parser_ternary_chain": "x = " + "1 if 0 else " * 20_000 + "2",
        "parser_nested_functions": "".join(" " * depth + "def f():\n" for depth in range(400)) + " " * 400 + "pass\n",
        "parser_elif_chain": "if x:\n  pass\n" + "elif x:\n  pass\n" * 15_000,
        "parser_nested_fstrings": "x = " + "f'{" * 2_000 + "1" + "}'" * 2_000,
        "parser_fstring_specs": "x = f'" + "{1:" * 5_000 + "}" * 5_000 + "'",
        "parser_nested_patterns": "match x:\n  case " + "[" * 30_000 + "]" * 30_000 + ":\n    pass\n",
        "parser_nested_comprehension": "x = " + "[0 for _ in " * 10_000 + "[]" + "]" * 10_000,
        "parser_decorators": "@f\n" * 60_000 + "def metric(input, output, metadata):\n    return {}\n",
        "parser_huge_integer": "x = " + "9" * 250_000,
        "parser_huge_exponent": "x = 1" + "0" * 10 + "e999999999",
        "parser_many_names": "\n".join(f"a{n} = {n}" for n in range(15_000)),
        "parser_string_fold": "def metric(input, output, metadata):\n    return {'x': len('a' * 4000 * 4000 * 4000)}",
        "parser_power_fold": "x = 9 ** 9 ** 9 ** 9",
        "parser_shift_fold": "x = 1 << (1 << 62)",
        "parser_null_bytes": "def metric(input, output, metadata):\n    return {'x': 0}\n\0",
        "parser_surrogates": "x = '\ud800'\ndef metric(input, output, metadata):\n    return {'\udfff': 0}",
        "parser_byte_order_mark": "\ufeffdef metric(input, output, metadata):\n    return {'x': 0}",
        "parser_other_encoding": "# coding: utf-7\ndef metric(input, output, metadata):\n    return {'x': 0}",
        "parser_codec_rot13": "# -*- coding: rot13 -*-\nqrs zrgevp(vachg, bhgchg, zrgnqngn):\n    erghea {}",
        "parser_form_feeds": "\f" * 200_000 + "def metric(input, output, metadata):\n    return {'x': 0}",
        "parser_combining_marks": "a" + "\u0301" * 100_000 + " = 1",
        "parser_empty": "",
        "parser_no_metric": "x = 1",
        "parser_metric_is_no_function": "metric = 3",
        "parser_metric_takes_nothing": "def metric():\n    return {'x': 0}",
        "parser_async_metric": "async def metric(input, output, metadata):\n    return {'x': 0}",
        "parser_generator_metric": "def metric(input, output, metadata):\n    yield {'x': 0}",
        "parser_larger_than_allowed": "#" * 300_000 + "\ndef metric(input, output, metadata):\n    return {'x': 0}",
    }.items()
]

REPRS = [
    Snippet(
        "repr_billion_laughs",
        Kind.REPR,
        written(
            """
        def metric(input, output, metadata):
            laugh = ["ha"]
            for _ in range(60):
                laugh = [laugh, laugh]
            return {"length": len(repr(laugh))}
        """,
            helpers=False,
        ),
        timeout_ms=SHORT_MS,
        ends=frozenset({"memory", "timeout", "crashed"}),
        ends_small=frozenset({"memory", "timeout", "crashed"}),
    ),
    Snippet(
        "answer_a_billion_laughs",
        Kind.REPR,
        written(
            """
        def metric(input, output, metadata):
            laugh = [1]
            for _ in range(60):
                laugh = [laugh, laugh]
            return {"laugh": laugh}
        """,
            helpers=False,
        ),
        timeout_ms=SHORT_MS,
        ends=REFUSED,
        ends_small=REFUSED,
    ),
    Snippet(
        "raise_a_billion_laughs",
        Kind.REPR,
        written(
            """
        def metric(input, output, metadata):
            laugh = ["ha"]
            for _ in range(60):
                laugh = [laugh, laugh]
            raise ValueError(laugh)
        """,
            helpers=False,
        ),
        timeout_ms=SHORT_MS,
        ends=REFUSED,
        ends_small=REFUSED,
    ),
    Snippet(
        "raise_a_huge_message",
        Kind.REPR,
        written(
            """
        def metric(input, output, metadata):
            raise ValueError("x" * 50_000_000)
        """,
            helpers=False,
        ),
        ends=REFUSED,
        ends_small=REFUSED,
    ),
    Snippet(
        "raise_what_cannot_be_shown",
        Kind.REPR,
        written(
            """
        class Shy(Exception):
            def __str__(self):
                raise Shy
            __repr__ = __str__

        def metric(input, output, metadata):
            raise Shy
        """,
            helpers=False,
        ),
        ends=frozenset({"crashed"}),
    ),
    Snippet(
        "raise_what_shows_for_ever",
        Kind.REPR,
        written(
            """
        class Endless(Exception):
            def __str__(self):
                while True:
                    pass
            __repr__ = __str__

        def metric(input, output, metadata):
            raise Endless
        """,
            helpers=False,
        ),
        timeout_ms=SHORT_MS,
        ends=frozenset({"timeout", "crashed"}),
    ),
    Snippet(
        "raise_a_ring_of_causes",
        Kind.REPR,
        written(
            """
        def metric(input, output, metadata):
            first, second = ValueError("a"), ValueError("b")
            first.__cause__, second.__cause__ = second, first
            deep = first
            for _ in range(50000):
                deep = ExceptionGroup("deep", [deep])
            raise deep
        """,
            helpers=False,
        ),
        ends=frozenset({"crashed"}),
    ),
    Snippet(
        "raise_a_long_chain",
        Kind.REPR,
        written(
            """
        def metric(input, output, metadata):
            problem = None
            for step in range(100000):
                try:
                    raise ValueError(step) from problem
                except ValueError as caught:
                    problem = caught
            raise problem
        """,
            helpers=False,
        ),
        ends=NO_ANSWER,
        ends_small=REFUSED,
    ),
    Snippet(
        "raise_control_characters",
        Kind.REPR,
        written(
            """
        def metric(input, output, metadata):
            raise ValueError("\\x1b[2J\\x1b]0;owned\\x07\\r\\n\\x00 {\\"metrics\\": {\\"forged\\": 1}}\\ud800\\u202e")
        """,
            helpers=False,
        ),
        ends=frozenset({"crashed"}),
        ends_small=REFUSED,
    ),
]

LOOPS = [
    _loop("loop_while", Kind.PYTHON_LOOP, "def metric(input, output, metadata):\n    while True:\n        pass"),
    _loop("loop_while_loading", Kind.PYTHON_LOOP, "while True:\n    pass"),
    _loop(
        "loop_in_default",
        Kind.PYTHON_LOOP,
        """
        def spin():
            while True:
                pass

        def metric(input, output, metadata, never=spin()):
            return {}
        """,
    ),
    _loop(
        "loop_that_swallows_everything",
        Kind.PYTHON_LOOP,
        """
        def metric(input, output, metadata):
            while True:
                try:
                    while True:
                        pass
                except BaseException:
                    pass
                finally:
                    continue
        """,
        small=frozenset({"timeout", "unsupported_construct", "crashed"}),
    ),
    _loop(
        "loop_in_finally",
        Kind.PYTHON_LOOP,
        """
        def metric(input, output, metadata):
            try:
                1 / 0
            finally:
                while True:
                    try:
                        1 / 0
                    except BaseException:
                        pass
        """,
    ),
    _loop(
        "loop_of_calls",
        Kind.PYTHON_LOOP,
        """
        def fib(n):
            return n if n < 2 else fib(n - 1) + fib(n - 2)

        def metric(input, output, metadata):
            return {"fib": fib(80)}
        """,
    ),
    _loop(
        "loop_of_comprehensions",
        Kind.PYTHON_LOOP,
        """
        def metric(input, output, metadata):
            return {"sum": sum(a * b for a in range(10**6) for b in range(10**6))}
        """,
    ),
    _loop(
        "loop_in_asyncio",
        Kind.PYTHON_LOOP,
        """
        import asyncio

        async def spin():
            while True:
                await asyncio.sleep(0)

        def metric(input, output, metadata):
            asyncio.run(spin())
        """,
        small=frozenset({"timeout", "unsupported_construct", "crashed"}),
    ),
    Snippet(
        "loop_in_the_answers_own_methods",
        Kind.PYTHON_LOOP,
        written(
            """
        class Endless(dict):
            def items(self):
                while True:
                    yield "a", 1
            __iter__ = keys = values = items

        def metric(input, output, metadata):
            return Endless(a=1)
        """,
            helpers=False,
        ),
        timeout_ms=LOOP_MS,
        boasts=False,
    ),
    _loop("c_sum_of_range", Kind.C_LOOP, "def metric(input, output, metadata):\n    return {'x': sum(range(10**15))}"),
    _loop("c_max_of_range", Kind.C_LOOP, "def metric(input, output, metadata):\n    return {'x': max(range(10**15))}"),
    _loop(
        "c_any_of_map",
        Kind.C_LOOP,
        "def metric(input, output, metadata):\n    return {'x': 1 if any(map(bool, iter(int, 1))) else 0}",
        small=NO_ANSWER,
    ),
    _loop(
        "c_endless_counting",
        Kind.C_LOOP,
        """
        import itertools

        def metric(input, output, metadata):
            return {"x": sum(itertools.repeat(1))}
        """,
        small=frozenset({"timeout", "crashed", "unsupported_construct"}),
    ),
    _loop(
        "c_deque_of_count",
        Kind.C_LOOP,
        """
        import collections, itertools

        def metric(input, output, metadata):
            return {"x": len(collections.deque(itertools.count(), maxlen=0))}
        """,
        small=frozenset({"timeout", "crashed", "unsupported_construct"}),
    ),
    _loop(
        "c_search_in_range",
        Kind.C_LOOP,
        "def metric(input, output, metadata):\n    return {'x': 1 if 0.5 in range(1, 10**15) else 0}",
        # A range may know by arithmetic that a half is not in it.
        small=frozenset({"timeout", ""}),
    ),
    _loop(
        "c_quadratic_search",
        Kind.C_LOOP,
        """
        def metric(input, output, metadata):
            hay, needle, found = "a" * 5_000_000, "a" * 2_500_000 + "b", 0
            while True:
                found += hay.count(needle) + hay.find(needle) + hay.replace(needle, "").count("ab")
        """,
        small=NO_ANSWER,
    ),
    _loop(
        "c_sorting_with_a_slow_key",
        Kind.C_LOOP,
        """
        def metric(input, output, metadata):
            while True:
                sorted(range(500000), key=lambda n: (n * 7919) % 1000003)
        """,
    ),
    _loop(
        "c_hashing_without_pause",
        Kind.C_LOOP,
        """
        import hashlib

        def metric(input, output, metadata):
            return {"x": hashlib.pbkdf2_hmac("sha256", b"x", b"y", 10**9)[0]}
        """,
        small=frozenset({"timeout", "crashed", "unsupported_construct"}),
    ),
    _loop(
        "c_big_division",
        Kind.C_LOOP,
        """
        def metric(input, output, metadata):
            a, b = 3 ** 2_000_000, 7 ** 500_000
            while True:
                a // b, a % b, a * b
        """,
        small=NO_ANSWER,
    ),
    _loop(
        "c_numpy_for_ever",
        Kind.C_LOOP,
        """
        import numpy

        def metric(input, output, metadata):
            a = numpy.ones((700, 700))
            while True:
                a = numpy.linalg.svd(a)[0]
        """,
        small=frozenset({"crashed", "unsupported_construct"}),
    ),
    Snippet(
        "pow_tower",
        Kind.POW,
        "def metric(input, output, metadata):\n    n = 9\n    return {'x': (n ** n ** n) % 2}",
        timeout_ms=LOOP_MS,
        ends=frozenset({"timeout", "memory", "crashed"}),
        ends_small=frozenset({"timeout", "memory", "crashed"}),
    ),
    Snippet(
        "pow_modular_with_giants",
        Kind.POW,
        "def metric(input, output, metadata):\n    n = 3 ** 100000\n    return {'x': pow(n, n, n + 1)}",
        timeout_ms=LOOP_MS,
        ends=frozenset({"timeout", "memory", "crashed"}),
        ends_small=frozenset({"timeout", "memory", "crashed"}),
    ),
    Snippet(
        "pow_by_shifting",
        Kind.POW,
        "def metric(input, output, metadata):\n    n = 1 << 40\n    return {'x': (1 << n) >> n}",
        timeout_ms=LOOP_MS,
        ends=frozenset({"timeout", "memory", "crashed"}),
        ends_small=frozenset({"timeout", "memory", "crashed"}),
    ),
    Snippet(
        "pow_by_squaring",
        Kind.POW,
        """
def metric(input, output, metadata):
    n = 3
    while True:
        n = n * n
""",
        timeout_ms=LOOP_MS,
        ends=frozenset({"timeout", "memory", "crashed"}),
        ends_small=frozenset({"timeout", "memory", "crashed"}),
    ),
    Snippet(
        "pow_of_decimals",
        Kind.POW,
        """
import decimal

def metric(input, output, metadata):
    decimal.getcontext().prec = 10**9
    return {"x": int(decimal.Decimal(3) ** decimal.Decimal("1234567.891") % 7) + 1}
""",
        timeout_ms=LOOP_MS,
        ends=frozenset({"timeout", "memory", "crashed"}),
        ends_small=frozenset({"timeout", "memory", "crashed", "unsupported_construct"}),
    ),
    Snippet(
        "factorial_of_much",
        Kind.POW,
        "import math\n\ndef metric(input, output, metadata):\n    return {'x': math.factorial(10**8) % 7}",
        timeout_ms=LOOP_MS,
        ends=frozenset({"timeout", "memory", "crashed"}),
        ends_small=frozenset({"timeout", "memory", "crashed"}),
    ),
    Snippet(
        "digits_of_much",
        Kind.POW,
        """
import sys

def metric(input, output, metadata):
    try:
        sys.set_int_max_str_digits(0)
    except AttributeError:
        pass
    return {"x": len(str(3 ** 5000000)) + len(str(int("9" * 5000000)))}
""",
        timeout_ms=LOOP_MS,
        ends=frozenset({"timeout", "memory", "crashed"}),
        ends_small=frozenset({"timeout", "memory", "crashed"}),
    ),
    *(
        Snippet(
            f"regex_{name}",
            Kind.REGEX,
            f"import re\n\ndef metric(input, output, metadata):\n    return {{'x': 1 if {use} else 0}}",
            timeout_ms=LOOP_MS,
            ends=full,
            boasts=False,
        )
        for name, use, full in (
            ("nested_plus", "re.match('(a+)+$', 'a' * 64 + 'b')", TIMEOUT),
            ("alternation", "re.match('(a|a|a)*$', 'a' * 64 + 'b')", TIMEOUT),
            ("backreference", "re.match(r'(a*)*(a*)*\\\\1\\\\2b$', 'a' * 64)", TIMEOUT),
            ("lookahead", "re.match('(?=(a+)+$)b?(a+)+c', 'a' * 64)", TIMEOUT),
            ("long_text", "re.search('(x+x+)+y', 'x' * 5000)", TIMEOUT),
            ("many_counts", "re.compile('((a{1,300}){1,300}){1,300}').match('a' * 9999 + 'b')", frozenset[str]()),
            ("deep_groups", "re.compile('(' * 20000 + ')' * 20000)", frozenset[str]()),
            ("substitution_growth", "len(re.sub('', 'x' * 100000, 'y' * 100000))", NO_ANSWER),
        )
    ),
]

SLEEPS = [
    # Where the clock stands still a sleep may be over at once: what counts is that the answer is not late.
    Snippet(
        "sleep_long",
        Kind.SLEEP,
        "import time\n\ndef metric(input, output, metadata):\n    time.sleep(60)\n    return {'x': 0}",
        timeout_ms=SHORT_MS,
    ),
    _loop(
        "sleep_often",
        Kind.SLEEP,
        "import time\n\ndef metric(input, output, metadata):\n    while True:\n        time.sleep(0.01)",
        small=frozenset({"timeout", "crashed", "unsupported_construct"}),
    ),
    Snippet(
        "sleep_in_asyncio",
        Kind.SLEEP,
        written(
            """
        import asyncio

        async def rest():
            await asyncio.sleep(60)

        def metric(input, output, metadata):
            asyncio.run(rest())
            return {"x": 0}
        """,
            helpers=False,
        ),
        timeout_ms=SHORT_MS,
    ),
    Snippet(
        "sleep_strangely",
        Kind.SLEEP,
        written("""
        import time

        def metric(input, output, metadata):
            def rest(span):
                return lambda: time.sleep(span) and 0
            return tried({str(span): rest(span) for span in (-1, float("nan"), 1e300, float("inf"), 10**30, True, "1")})
        """),
        timeout_ms=SHORT_MS,
    ),
    _loop(
        "wait_on_a_lock",
        Kind.SLEEP,
        """
        def metric(input, output, metadata):
            import _thread
            lock = _thread.allocate_lock()
            lock.acquire()
            lock.acquire()
        """,
        small=frozenset({"crashed", "unsupported_construct"}),
    ),
    Snippet(
        "wait_on_everything",
        Kind.SLEEP,
        written("""
        def metric(input, output, metadata):
            def by_pause():
                import signal
                signal.pause()
            def by_select():
                import select
                select.select([], [], [], 60)
            def by_poll():
                import select
                select.poll().poll(60000)
            def by_wait():
                import os
                os.waitpid(-1, 0)
            def by_input():
                return len(input_())
            def by_queue():
                import queue
                queue.Queue().get()
            input_ = __builtins__["input"] if isinstance(__builtins__, dict) else __builtins__.input
            return tried({"select": by_select, "poll": by_poll, "wait": by_wait, "input": by_input, "pause": by_pause,
                          "queue": by_queue})
        """),
        timeout_ms=SHORT_MS,
    ),
]

SIGNALS = [
    _loop(
        "ignore_every_signal",
        Kind.SIGNALS,
        """
        def metric(input, output, metadata):
            import signal
            for number in range(1, 65):
                for way in (signal.SIG_IGN, lambda *_: None):
                    try:
                        signal.signal(number, way)
                    except (OSError, ValueError):
                        pass
            try:
                signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
            except OSError:
                pass
            while True:
                pass
        """,
        small=frozenset({"crashed", "unsupported_construct"}),
    ),
    _loop(
        "answer_signals_with_loops",
        Kind.SIGNALS,
        """
        def metric(input, output, metadata):
            import signal
            def again(*_):
                while True:
                    try:
                        while True:
                            pass
                    except BaseException:
                        pass
            for name in ("SIGTERM", "SIGALRM", "SIGXCPU", "SIGINT", "SIGHUP", "SIGPROF", "SIGVTALRM"):
                try:
                    signal.signal(getattr(signal, name), again)
                except OSError:
                    pass
            again()
        """,
        small=frozenset({"crashed", "unsupported_construct"}),
    ),
    Snippet(
        "rewind_the_alarm",
        Kind.SIGNALS,
        """
def metric(input, output, metadata):
    import signal
    while True:
        for way in (lambda: signal.alarm(0), lambda: signal.setitimer(0, 0), lambda: signal.setitimer(1, 0),
                    lambda: signal.setitimer(2, 0)):
            try:
                way()
            except BaseException:
                pass
""",
        timeout_ms=LOOP_MS,
        ends=frozenset({"timeout", "crashed"}),
    ),
    Snippet(
        "stop_oneself",
        Kind.SIGNALS,
        """
def metric(input, output, metadata):
    import os, signal
    for number in (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN):
        for way in (lambda: os.kill(os.getpid(), number), lambda: signal.raise_signal(number)):
            try:
                way()
            except OSError:
                pass
    while True:
        pass
""",
        timeout_ms=LOOP_MS,
        ends=frozenset({"timeout", "crashed"}),
    ),
]

_GROW = """
def metric(input, output, metadata):
    {start}
    for _ in range({times}):
        {step}
    return {{"grown": 1}}
"""

MEMORY_SNIPPETS = [
    # Bounded on purpose: without a wall each ends at about two gigabytes and says so.
    *(
        Snippet(
            f"grow_{name}",
            Kind.MEMORY,
            _GROW.format(start=start, step=step, times=times),
            timeout_ms=2_000,
            ends=full,
            ends_small=small,
        )
        for name, start, step, times, full, small in (
            ("a_list", "held = []", "held.append([0] * 100000)", 2_500, MEMORY, MEMORY),
            ("a_doubling_list", "held = [0]", "held = held + held", 28, MEMORY, MEMORY),
            ("a_string", 'held = "x" * 1024', "held = held + held", 21, MEMORY, MEMORY),
            ("bytes", 'held = b"x" * 1024', "held = held + held", 21, MEMORY, MEMORY),
            ("many_strings", "held = []", "held.append('x' * 1_000_000 + str(_))", 2_000, MEMORY, MEMORY),
            ("a_dict", "held = {}", "held.update({(_, k): str(k) for k in range(20000)})", 700, NO_ANSWER, NO_ANSWER),
            ("a_set_of_tuples", "held = set()", "held.update((_, k) for k in range(20000))", 900, NO_ANSWER, NO_ANSWER),
            ("an_integer", "held = 1 << 30", "held = held << 400_000_000", 40, MEMORY, MEMORY),
            ("nested_lists", "held = []", "held = [held, [0] * 100000]", 2_500, MEMORY, MEMORY),
            ("one_big_list", "held = 0", "held = [0] * 250_000_000", 1, MEMORY, MEMORY),
            ("one_big_range", "held = 0", "held = list(range(50_000_000))", 1, NO_ANSWER, NO_ANSWER),
            ("one_huge_list", "held = 0", "held = [0] * 10**13", 1, NO_ANSWER, NO_ANSWER),
            ("one_huge_string", "held = 0", "held = 'x' * 10**13", 1, NO_ANSWER, NO_ANSWER),
            ("one_huge_buffer", "held = 0", "held = bytes(10**13)", 1, NO_ANSWER, NO_ANSWER),
            ("by_padding", "held = 0", "held = 'x'.ljust(2 * 10**9).zfill(3 * 10**9)", 1, MEMORY, NO_ANSWER),
            ("by_centring", "held = 0", "held = 'x'.center(2 * 10**9)", 1, MEMORY, NO_ANSWER),
            ("by_tabs", "held = 0", "held = ('\\t' * 1000).expandtabs(2_000_000)", 1, MEMORY, NO_ANSWER),
            ("by_percent", "held = 0", "held = '%2000000000d' % 1", 1, MEMORY, NO_ANSWER),
            ("by_joining", "held = 0", "held = ('x' * 50000).join(['y'] * 50000)", 1, MEMORY, MEMORY),
            ("by_replacing", "held = 0", "held = ('x' * 50000).replace('', 'y' * 50000)", 1, MEMORY, MEMORY),
            (
                "by_splitting",
                "held = ' x' * 10_000_000",
                "held = [held.split() for _ in range(9)]",
                1,
                MEMORY,
                NO_ANSWER,
            ),
            ("by_frames", "held = []", "held.append(lambda x=[0] * 100000: x)", 2_500, MEMORY, MEMORY),
            (
                "by_json",
                "import json\n    held = 0",
                "held = json.loads('[' + '[],' * 40_000_000 + '0]')",
                1,
                NO_ANSWER,
                NO_ANSWER,
            ),
            ("by_sorting", "held = 0", "held = [sorted(range(5_000_000)) for _ in range(20)]", 1, NO_ANSWER, NO_ANSWER),
        )
    ),
    Snippet(
        "grow_and_swallow_the_error",
        Kind.MEMORY,
        """
def metric(input, output, metadata):
    held = []
    while len(held) < 1900:
        try:
            held.append("x" * 1_000_000 + str(len(held)))
        except BaseException:
            pass
    return {"grown": 1}
""",
        timeout_ms=500,
        ends=frozenset({"memory", "timeout"}),
        ends_small=frozenset({"memory", "timeout", "crashed"}),
    ),
    Snippet(
        "grow_numpy_arrays",
        Kind.MEMORY,
        """
def metric(input, output, metadata):
    import numpy
    held = [numpy.ones(12_500_000) for _ in range(20)]
    return {"grown": len(held)}
""",
        timeout_ms=2_000,
        ends=frozenset({"memory", "crashed"}),
    ),
    Snippet(
        "grow_by_mapping",
        Kind.MEMORY,
        """
def metric(input, output, metadata):
    import mmap
    held = []
    for _ in range(20):
        held.append(mmap.mmap(-1, 100_000_000))
        held[-1].write(b"x" * 100_000_000)
    return {"grown": 1}
""",
        timeout_ms=2_000,
        ends=frozenset({"memory", "crashed"}),
    ),
    Snippet(
        "grow_while_loading",
        Kind.MEMORY,
        "held = 'x' * 2_000_000_000\n\ndef metric(input, output, metadata):\n    return {'grown': 1}\n",
        timeout_ms=2_000,
        ends=MEMORY,
        ends_small=MEMORY,
    ),
    Snippet(
        "grow_garbage_in_rings",
        Kind.MEMORY,
        """
import gc

def metric(input, output, metadata):
    gc.disable()
    for _ in range(2000):
        ring = ["x" * 1_000_000]
        ring.append(ring)
    return {"grown": 1}
""",
        timeout_ms=2_000,
        ends=MEMORY,
    ),
    Snippet(
        "grow_tee",
        Kind.MEMORY,
        """
import itertools

def metric(input, output, metadata):
    one, other = itertools.tee(itertools.count())
    for _ in range(60_000_000):
        next(one)
    return {"grown": 1}
""",
        timeout_ms=500,
        ends=NO_ANSWER,
    ),
    Snippet(
        "zip_bomb",
        Kind.ZIP_BOMB,
        """
def metric(input, output, metadata):
    import zlib
    press = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = press.compress(bytes(1 << 24)) + press.flush(zlib.Z_FULL_FLUSH)
    bomb = block * 128 + press.flush()
    return {"grown": len(zlib.decompress(bomb, -15))}
""",
        timeout_ms=10_000,
        ends=frozenset({"memory", "crashed"}),
    ),
    Snippet(
        "zip_bomb_in_an_archive",
        Kind.ZIP_BOMB,
        """
def metric(input, output, metadata):
    import io, zipfile
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb", bytes(1 << 25))
    with zipfile.ZipFile(held) as archive:
        return {"grown": sum(len(part) for part in [archive.read("bomb") for _ in range(64)])}
""",
        timeout_ms=10_000,
        ends=frozenset({"memory", "crashed"}),
    ),
    Snippet(
        "gzip_bomb_in_small_steps",
        Kind.ZIP_BOMB,
        """
def metric(input, output, metadata):
    import zlib
    press = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = press.compress(bytes(1 << 24)) + press.flush(zlib.Z_FULL_FLUSH)
    loose, held = zlib.decompressobj(-15), []
    for _ in range(128):
        held.append(loose.decompress(block))
    return {"grown": len(held)}
""",
        timeout_ms=2_000,
        ends=frozenset({"memory", "crashed"}),
    ),
    Snippet(
        "entity_bomb",
        Kind.ZIP_BOMB,
        """
def metric(input, output, metadata):
    import xml.etree.ElementTree
    entities = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 12))
    text = f'<!DOCTYPE x [<!ENTITY e0 "ha">{entities}]><x>&e11;</x>'
    return {"grown": len(xml.etree.ElementTree.fromstring(text).text)}
""",
        timeout_ms=SHORT_MS,
        ends=NO_ANSWER,
    ),
]

# One call each into a library: the work is done outside the interpreter's own loop, where nobody may be counting.
LIBRARIES = [
    Snippet(
        f"library_{name}",
        kind,
        written(
            f"""
        import base64, collections, copy, decimal, functools, hashlib, itertools, json, math, random, re

        def metric(input, output, metadata):
            {before}
            return {{"x": {use}}}
        """,
            helpers=False,
        ),
        timeout_ms=SHORT_MS if kind is Kind.MEMORY else LOOP_MS,
        ends=NO_ANSWER,
        ends_small=NO_ANSWER,
        boasts=False,
    )
    for name, kind, use, before in (
        ("decimal_to_integer", Kind.POW, 'int(decimal.Decimal("1e400000000")) % 7', "pass"),
        ("decimal_digits", Kind.MEMORY, 'len(f"{decimal.Decimal(1):.1000000000f}")', "pass"),
        ("float_digits", Kind.MEMORY, 'len(f"{1.5:.1900000000f}") + len("%.1900000000f" % 1.5)', "pass"),
        ("choices", Kind.MEMORY, "len(random.choices(range(10), k=10**9))", "pass"),
        ("random_bits", Kind.MEMORY, "random.getrandbits(2**33) % 7", "pass"),
        ("product", Kind.C_LOOP, "sum(1 for _ in itertools.product(range(100), repeat=50))", "pass"),
        ("product_repeated", Kind.MEMORY, "len(list(itertools.product(range(10), repeat=10**9)))", "pass"),
        ("permutations", Kind.C_LOOP, "sum(map(len, itertools.permutations(range(60))))", "pass"),
        ("reduce", Kind.MEMORY, 'len(functools.reduce(lambda a, _: a + a, range(200), "xy"))', "pass"),
        (
            "base64_again",
            Kind.MEMORY,
            "len(data)",
            "data = b'x' * 1000\n            while True: data = base64.b64encode(data)",
        ),
        ("hashing", Kind.C_LOOP, "1", "while True: hashlib.sha256(b'x' * 50_000_000)"),
        ("json_indent", Kind.MEMORY, "len(json.dumps([[1]], indent=2 * 10**9))", "pass"),
        ("factorials", Kind.POW, "math.comb(10**9, 10**8) % 7", "pass"),
        ("roots", Kind.POW, "math.isqrt(1 << 10**9) % 7", "pass"),
        ("common_divisor", Kind.POW, "math.gcd((1 << 30_000_000) - 1, 3**20_000_000)", "pass"),
        ("counter", Kind.MEMORY, "len(collections.Counter(range(10**9)))", "pass"),
        ("regex_escape", Kind.REGEX, "len(re.findall('(?:a?){40}a{40}', 'a' * 40)) + 1 // 0", "pass"),
        (
            "compare_laughs",
            Kind.C_LOOP,
            "int(a == b) + 1 // 0",
            "a, b = [1], [1]\n            for _ in range(60): a, b = [a, a], [b, b]",
        ),
        ("hash_laughs", Kind.C_LOOP, "hash(a) % 7 + 1 // 0", "a = (1,)\n            for _ in range(60): a = (a, a)"),
        ("flatten", Kind.C_LOOP, "len(sum([[0] * 1000] * 10**6, []))", "pass"),
        ("star_arguments", Kind.MEMORY, "(lambda *a: len(a))(*range(10**9))", "pass"),
        ("many_keywords", Kind.MEMORY, "len(dict(**{str(n): n for n in range(10**8)}))", "pass"),
        ("unpack_and_unpack", Kind.MEMORY, "len(a)", "a = [0] * 1000\n            while True: a = [*a, *a]"),
        ("slice_and_slice", Kind.MEMORY, "len(a)", "a = [0] * 1000\n            while True: a[:0] = a"),
        ("insert_in_front", Kind.C_LOOP, "len(a)", "a = [0] * 2_000_000\n            while True: a.insert(0, a.pop())"),
        ("bytes_of_integer", Kind.MEMORY, "len((1).to_bytes(10**10, 'big'))", "pass"),
        ("hex_of_integer", Kind.MEMORY, "len(hex(1 << 4 * 10**9))", "pass"),
        ("round_far", Kind.POW, "round(10, -(10**9)) + round(7**100000, -(10**8)) + 1 // 0", "pass"),
        ("translate", Kind.MEMORY, "len(('x' * 10**6).translate({120: 'y' * 10**6}))", "pass"),
        ("zip_of_counts", Kind.C_LOOP, "len(list(zip(itertools.count(), itertools.cycle([1]))))", "pass"),
    )
]

SNIPPETS = [*LIBRARIES, *RECURSION, *PARSER, *REPRS, *LOOPS, *SLEEPS, *SIGNALS, *MEMORY_SNIPPETS]
