"""Attacks through the answer and through what is left behind: strange results, exits, printing, poison, old state."""

from .snippet import Kind, Snippet, written

REJECTED = frozenset({"result_rejected", "crashed", "memory", "unsupported_construct", "timeout"})
LEFT = frozenset({"crashed", "result_rejected"})


def _answer(name: str, kind: Kind, value: str, before: str = "pass") -> Snippet:
    """A result that is no mapping of names to a few finite numbers: whatever happens, it is not taken for metrics."""
    code = f"""
        import math, json

        def metric(input, output, metadata):
            {before}
            return {value}
        """
    return Snippet(
        name, kind, written(code, helpers=False), ends=REJECTED, ends_small=REJECTED, boasts=False, timeout_ms=2_000
    )


RESULTS = [
    _answer("result_nan", Kind.NAN, '{"x": float("nan")}'),
    _answer("result_nan_computed", Kind.NAN, '{"x": float("inf") - float("inf")}'),
    _answer("result_nan_key", Kind.NAN, '{float("nan"): 1}'),
    _answer("result_infinity", Kind.INF, '{"x": float("inf")}'),
    _answer("result_minus_infinity", Kind.INF, '{"x": -float("inf")}'),
    _answer("result_overflow", Kind.INF, '{"x": 1e308 * 10}'),
    _answer("result_text", Kind.STRINGS, '{"x": "1"}'),
    _answer("result_bytes", Kind.STRINGS, '{"x": b"1"}'),
    _answer("result_true", Kind.STRINGS, '{"x": True}'),
    _answer("result_none", Kind.STRINGS, '{"x": None}'),
    _answer("result_nothing", Kind.STRINGS, "None"),
    _answer("result_number_alone", Kind.STRINGS, "1"),
    _answer("result_list", Kind.STRINGS, '[("x", 1)]'),
    _answer("result_json_text", Kind.STRINGS, """'{"x": 1}'"""),
    _answer("result_function", Kind.STRINGS, '{"x": metric}'),
    _answer("result_type", Kind.STRINGS, '{"x": int}'),
    _answer("result_module", Kind.STRINGS, '{"x": math}'),
    _answer("result_ellipsis", Kind.STRINGS, '{"x": ...}'),
    _answer("result_range", Kind.STRINGS, '{"x": range(3)}'),
    _answer("result_exception", Kind.STRINGS, '{"x": ValueError("x")}'),
    _answer("result_set", Kind.STRINGS, '{"x": {1}}'),
    _answer("result_nested", Kind.STRINGS, '{"metrics": {"x": 1}}'),
    _answer("result_context", Kind.STRINGS, '{"input": input, "output": output}'),
    _answer("result_number_as_name", Kind.STRINGS, "{1: 1}"),
    _answer("result_empty_name", Kind.STRINGS, '{"": 1}'),
    _answer("result_tuple_as_name", Kind.STRINGS, '{("x",): 1}'),
    _answer("result_newline_in_name", Kind.STRINGS, '{"a\\nb": 1}'),
    _answer("result_null_in_name", Kind.STRINGS, '{"a\\x00b": 1}'),
    _answer("result_long_name", Kind.HUGE, '{"x" * 201: 1}'),
    _answer("result_cyclic_list", Kind.CYCLIC, '{"x": ring}', "ring = []; ring.append(ring)"),
    _answer("result_cyclic_dict", Kind.CYCLIC, "ring", 'ring = {}; ring["x"] = ring'),
    _answer("result_cyclic_pair", Kind.CYCLIC, '{"x": a}', "a, b = [], []; a.append(b); b.append(a)"),
    _answer("result_beyond_doubles", Kind.HUGE, '{"x": 10**400}'),
    _answer("result_beyond_exact", Kind.HUGE, '{"x": 2**53 + 1}'),
    _answer("result_below_exact", Kind.HUGE, '{"x": -(2**53) - 1}'),
    _answer("result_float_beyond_exact", Kind.HUGE, '{"x": 1e300}'),
    _answer("result_million_digits", Kind.HUGE, '{"x": 1 << 4_000_000}'),
    _answer("result_10000_metrics", Kind.HUGE, '{"x%d" % n: n for n in range(10000)}'),
    _answer("result_65_metrics", Kind.HUGE, '{"x" + str(n): n for n in range(65)}'),
    _answer("result_million_metrics", Kind.HUGE, "{str(n): n for n in range(500000)}"),
    _answer("result_huge_text", Kind.HUGE, '{"x": "x" * 40_000_000}'),
    _answer("result_huge_name", Kind.HUGE, '{"x" * 40_000_000: 1}'),
    _answer("result_huge_list", Kind.HUGE, '{"x": [0] * 5_000_000}'),
    _answer("result_surrogate_name", Kind.SURROGATE, '{"\\ud800": 1}'),
    _answer("result_surrogate_text", Kind.SURROGATE, '{"x": "\\udcff\\ud800"}'),
    _answer("result_surrogate_among_good", Kind.SURROGATE, '{"a": 1, "b" + chr(0xDFFF): 2}'),
    _answer("result_surrogates_many", Kind.SURROGATE, '{"x": chr(0xD800) * 1_000_000}'),
    _answer(
        "result_deep_list", Kind.DEEP, '{"x": deep}', "deep = []\n            for _ in range(100000): deep = [deep]"
    ),
    _answer("result_deep_dict", Kind.DEEP, "deep", "deep = {}\n            for _ in range(100000): deep = {'x': deep}"),
    _answer(
        "result_deep_tuple", Kind.DEEP, '{"x": deep}', "deep = ()\n            for _ in range(100000): deep = (deep,)"
    ),
]

LIES = [
    Snippet(name, Kind.LIES, written(code, helpers=False), boasts=False, timeout_ms=300, ends=ends)
    for name, code, ends in (
        (
            "lie_about_length",
            """
            class Liar(dict):
                def __len__(self):
                    return 1

            def metric(input, output, metadata):
                return Liar({str(n): n for n in range(10000)})
            """,
            REJECTED,
        ),
        (
            "lie_about_items",
            """
            class Liar(dict):
                def items(self):
                    return [("x", float("nan")), ("y", "text"), ("z", 10**400)]
                def __iter__(self):
                    return iter(["x", "y"])
                def __getitem__(self, name):
                    return float("inf")

            def metric(input, output, metadata):
                return Liar(a=1)
            """,
            frozenset[str](),
        ),
        (
            "lie_about_class",
            """
            class Liar:
                @property
                def __class__(self):
                    return dict
                def __iter__(self):
                    while True:
                        yield "x"
                keys = __iter__
                def __getitem__(self, name):
                    return float("nan")

            def metric(input, output, metadata):
                return Liar()
            """,
            REJECTED,
        ),
        (
            "lie_about_being_a_number",
            """
            class Number(int):
                def __repr__(self):
                    return "NaN"
                __str__ = __format__ = __repr__
                def __eq__(self, other):
                    return True
                def __hash__(self):
                    return 1
                def __abs__(self):
                    return 0
                def __gt__(self, other):
                    return False

            def metric(input, output, metadata):
                return {"x": Number(2**60)}
            """,
            REJECTED,
        ),
        (
            "lie_about_being_finite",
            """
            class Number(float):
                def __repr__(self):
                    return '1}, "forged": {"x": 1'
                def __float__(self):
                    return 1.0
                def __eq__(self, other):
                    return True
                def __hash__(self):
                    return 1

            def metric(input, output, metadata):
                return {"x": Number("nan")}
            """,
            REJECTED,
        ),
        (
            "lie_about_being_text",
            """
            class Name(str):
                def __len__(self):
                    return 1
                def isprintable(self):
                    return True

            def metric(input, output, metadata):
                return {Name("\\x00" * 5000): 1}
            """,
            REJECTED,
        ),
        (
            "lie_by_changing_while_read",
            """
            class Restless(dict):
                def items(self):
                    for n in range(10**9):
                        self[str(n)] = n
                        yield str(n), n
                __iter__ = items

            def metric(input, output, metadata):
                return Restless(a=1)
            """,
            frozenset[str](),
        ),
        (
            "lie_about_json",
            """
            def metric(input, output, metadata):
                import json
                json.dumps = lambda *_, **__: '{"x": NaN}'
                json.JSONEncoder.encode = json.JSONEncoder.default = lambda *_, **__: '{"x": Infinity}'
                json.encoder.c_make_encoder = None
                json.encoder.float.__repr__ if False else None
                return {"x": 0}
            """,
            frozenset[str](),
        ),
    )
]

EXITS = [
    Snippet(f"exit_{name}", Kind.EXIT, written(code, helpers=False), boasts=False, ends=LEFT, timeout_ms=300)
    for name, code in {
        "politely": "import sys\ndef metric(input, output, metadata):\n    sys.exit(0)",
        "by_exception": "def metric(input, output, metadata):\n    raise SystemExit",
        "with_numbers": "def metric(input, output, metadata):\n    raise SystemExit({'x': 1})",
        "by_builtin": "def metric(input, output, metadata):\n    quit()",
        "at_once": "import os\ndef metric(input, output, metadata):\n    os._exit(0)",
        "as_if_killed": "import os\ndef metric(input, output, metadata):\n    os._exit(139)",
        "while_loading": "import os\nos._exit(0)",
        "politely_while_loading": "import sys\nsys.exit(0)",
        "by_abort": "import os\ndef metric(input, output, metadata):\n    os.abort()",
        "by_interrupt": "def metric(input, output, metadata):\n    raise KeyboardInterrupt",
        "by_generator_exit": "def metric(input, output, metadata):\n    raise GeneratorExit",
        "by_stop_iteration": "def metric(input, output, metadata):\n    raise StopIteration({'x': 1})",
        "by_naked_base": "def metric(input, output, metadata):\n    raise BaseException('x')",
        "by_segfault": "import faulthandler\ndef metric(input, output, metadata):\n    faulthandler._sigsegv()",
        "by_null": "import faulthandler\ndef metric(input, output, metadata):\n    faulthandler._read_null()",
        "by_stack": "import faulthandler\ndef metric(input, output, metadata):\n    faulthandler._stack_overflow()",
        "by_fatal": "import faulthandler\ndef metric(**_):\n    faulthandler._fatal_error_c_thread()",
        "by_raising_kill": "import signal\ndef metric(input, output, metadata):\n    signal.raise_signal(9)\n    1 / 0",
        "by_raising_term": "import signal\ndef metric(**_):\n    signal.raise_signal(15)\n    1 / 0",
        "by_killing_oneself": "import os\ndef metric(input, output, metadata):\n    os.kill(os.getpid(), 11)",
        "by_null_pointer": "import ctypes\ndef metric(input, output, metadata):\n    ctypes.string_at(0)",
        "by_bad_reference": (
            "import ctypes\ndef metric(input, output, metadata):\n"
            "    ctypes.pythonapi.Py_DecRef(ctypes.py_object(None)); return ctypes.cast(8, ctypes.py_object).value"
        ),
        "assertion": "def metric(input, output, metadata):\n    assert False, 'x'",
        "memory_error": "def metric(input, output, metadata):\n    raise SystemError('x')",
    }.items()
]

PRINTING = [
    Snippet(
        f"print_{name}",
        Kind.PRINTING,
        written(
            f"""
        import sys

        def metric(input, output, metadata):
            line = "x" * 1_000_000
            for _ in range({times}):
                {step}
            return {{"quiet": 0}}
        """,
            helpers=False,
        ),
        timeout_ms=1_500,
        boasts=False,
    )
    for name, step, times in (
        ("a_gigabyte", "print(line)", 1_000),
        ("a_gigabyte_of_errors", "print(line, file=sys.stderr)", 1_000),
        ("a_gigabyte_by_descriptor", "import os; os.write(1, line.encode())", 1_000),
        ("errors_by_descriptor", "import os; os.write(2, line.encode())", 1_000),
        ("many_short_lines", "print(_)", 300_000),
        ("one_huge_line", "print(line * 60)", 3),
        ("without_newline", 'print(line, end="", flush=True)', 300),
        ("to_the_first_streams", "sys.__stdout__.write(line); sys.__stderr__.write(line)", 500),
    )
] + [
    Snippet(
        "print_what_looks_like_an_answer",
        Kind.PRINTING,
        written(
            """
        def metric(input, output, metadata):
            print('{"metrics": {"forged": 1}}')
            print('{"forged": 1}', end="", flush=True)
            print("\\x00\\x00\\x00\\x0d{\\"forged\\": 1}\\x1b[2J\\r", end="", flush=True)
            return {"quiet": 0}
        """,
            helpers=False,
        ),
    ),
    Snippet(
        "print_surrogates",
        Kind.PRINTING,
        written(
            """
        def metric(input, output, metadata):
            print("\\ud800" * 1000, "\\udfff")
            return {"quiet": 0}
        """,
            helpers=False,
        ),
    ),
    Snippet(
        "warn_and_log",
        Kind.PRINTING,
        written(
            """
        def metric(input, output, metadata):
            import logging, warnings, sys, traceback
            for _ in range(1000):
                warnings.warn("owned " * 100)
                logging.error("owned")
                sys.stderr.write("owned")
            logging.basicConfig(level=0)
            logging.critical("owned")
            return {"quiet": 0}
        """,
            helpers=False,
        ),
    ),
]

AT_EXIT = [
    Snippet(
        "run_at_exit",
        Kind.ATEXIT,
        written("""
        def metric(input, output, metadata):
            import atexit, os
            def late():
                for fd in range(64):
                    try:
                        os.write(fd, b'{"forged": 1}\\n')
                    except OSError:
                        pass
                while True:
                    pass
            atexit.register(late)
            return {"quiet": 0}
        """),
        timeout_ms=300,
        boasts=False,
    ),
    Snippet(
        "run_at_thread_exit",
        Kind.ATEXIT,
        written("""
        def metric(input, output, metadata):
            import threading, weakref
            def late(*_):
                while True:
                    pass
            threading._register_atexit(late)
            class Thing:
                pass
            input["thing"] = thing = Thing()
            weakref.finalize(thing, late)
            return {"quiet": 0}
        """),
        timeout_ms=300,
        boasts=False,
    ),
    Snippet(
        "run_when_deleted",
        Kind.ATEXIT,
        written("""
        class Last:
            def __del__(self):
                while True:
                    pass

        LAST = Last()

        def metric(input, output, metadata):
            Last.keep = LAST
            return {"quiet": 0}
        """),
        timeout_ms=300,
        boasts=False,
    ),
    Snippet(
        "run_when_the_answer_is_deleted",
        Kind.ATEXIT,
        written("""
        class Last(float):
            def __del__(self):
                while True:
                    pass

        def metric(input, output, metadata):
            return {"quiet": Last(0)}
        """),
        timeout_ms=300,
        boasts=False,
    ),
    Snippet(
        "run_when_a_generator_ends",
        Kind.ATEXIT,
        written("""
        def stubborn():
            try:
                yield 1
            finally:
                while True:
                    pass

        HELD = stubborn()

        def metric(input, output, metadata):
            next(HELD)
            return {"quiet": 0}
        """),
        timeout_ms=300,
        boasts=False,
    ),
    Snippet(
        "run_at_fork",
        Kind.ATEXIT,
        # Where spare workers are forked from one that has run code, this would run in the next.
        written("""
        def metric(input, output, metadata):
            import os
            def late():
                while True:
                    pass
            os.register_at_fork(before=late, after_in_child=late, after_in_parent=late)
            return {"quiet": 0}
        """),
        timeout_ms=300,
        boasts=False,
    ),
]

CONTEXTS = [
    Snippet(
        "change_the_context",
        Kind.CONTEXT,
        written(
            """
        def metric(input, output, metadata):
            input["probe"] = 13
            for name in list(output):
                output[name] = 13
            metadata["poison"] = 1
            if hasattr(input, "clear"):
                input.clear()
            return {"quiet": 0}
        """,
            helpers=False,
        ),
    ),
    Snippet(
        "keep_the_context",
        Kind.CONTEXT,
        written(
            """
        HELD = []
        CALLS = [0]

        def metric(input, output, metadata, held=[]):
            CALLS[0] = CALLS[0] + 1
            HELD.append(input)
            held.append(output)
            return {"before": CALLS[0] - 1 + len(held) - 1 + len(HELD) - 1}
        """,
            helpers=False,
        ),
    ),
    Snippet(
        "meet_the_context_of_before",
        Kind.CONTEXT,
        # The very code of the snippet before it: a worker that keeps compiled modules would count on.
        written(
            """
        HELD = []
        CALLS = [0]

        def metric(input, output, metadata, held=[]):
            CALLS[0] = CALLS[0] + 1
            HELD.append(input)
            held.append(output)
            return {"before": CALLS[0] - 1 + len(held) - 1 + len(HELD) - 1}
        """,
            helpers=False,
        ),
    ),
]

POISON = [
    Snippet(
        "poison_builtins",
        Kind.POISON,
        written("""
        def metric(input, output, metadata):
            import builtins
            for name in ("len", "sum", "sorted", "abs", "max", "min", "isinstance", "round", "float", "int", "str"):
                setattr(builtins, name, lambda *_, **__: 13)
            builtins.__import__ = None
            builtins.poisoned = 1
            builtins.dict = None
            return {"quiet": 0}
        """),
        boasts=False,
    ),
    Snippet(
        "poison_by_shadowing",
        Kind.POISON,
        written(
            """
        import math
        len = sum = abs = lambda *_: 13
        sorted = None

        def metric(input, output, metadata):
            global poisoned, json, math
            poisoned = 1
            json = math = None
            return {"quiet": 0}
        """,
            helpers=False,
        ),
    ),
    Snippet(
        "poison_modules",
        Kind.POISON,
        written("""
        def metric(input, output, metadata):
            import json, math, re, sys
            math.sqrt = math.floor = math.pi = lambda *_: 13
            json.dumps = json.loads = lambda *_, **__: "{}"
            re.compile = re.match = re.findall = lambda *_, **__: []
            for name in ("statistics", "decimal", "random", "collections"):
                sys.modules[name] = sys.modules["math"]
            sys.modules["poisoned"] = sys
            sys.path[:] = sys.meta_path[:] = []
            sys.stdout = sys.stderr = sys.stdin = None
            sys.poisoned = 1
            sys.setrecursionlimit(60)
            return {"quiet": 0}
        """),
        boasts=False,
    ),
    Snippet(
        "poison_math_alone",
        Kind.POISON,
        written(
            """
        import math

        def metric(input, output, metadata):
            math.sqrt = lambda x: 13
            math.pi = 3
            return {"quiet": 0}
        """,
            helpers=False,
        ),
    ),
    Snippet(
        "poison_numpy",
        Kind.POISON,
        written("""
        def metric(input, output, metadata):
            import numpy
            numpy.sum = numpy.array = numpy.mean = lambda *_, **__: 13
            numpy.seterr(all="raise")
            numpy.ndarray.__class__ = None
            return {"quiet": 0}
        """),
        boasts=False,
    ),
    Snippet(
        "poison_chance",
        Kind.POISON,
        written("""
        def metric(input, output, metadata):
            import random
            random.seed(13)
            for _ in range(13):
                random.random()
            return {"quiet": 0}
        """),
    ),
    Snippet(
        "poison_the_worker",
        Kind.POISON,
        # Whatever runs inside the worker besides this code is patched to answer something of ours.
        written("""
        def metric(input, output, metadata):
            import sys
            def forged(*_, **__):
                return {"forged": 1}
            for name, module in list(sys.modules.items()):
                if name.split(".")[0] in ("meruit", "__main__", "json", "struct", "_json", "orjson", "zygote", "jail"):
                    for inner in list(vars(module)):
                        if not inner.startswith("__"):
                            try:
                                setattr(module, inner, forged)
                            except BaseException:
                                pass
            return {"quiet": 0}
        """),
        boasts=False,
    ),
]

LEFTOVERS = [
    Snippet(
        "leave_process_state",
        Kind.LEFTOVER,
        written("""
        def metric(input, output, metadata):
            import os
            def limits():
                import resource
                resource.setrlimit(resource.RLIMIT_CPU, (1, 1))
                resource.setrlimit(resource.RLIMIT_NOFILE, (4, 4))
            def signals():
                import signal
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
                signal.setitimer(signal.ITIMER_REAL, 0.2, 0.2)
            def clock():
                import time
                os.environ["TZ"] = "Mars/Base"
                time.tzset()
            def place():
                import locale
                locale.setlocale(locale.LC_ALL, "C")
            tried({"environ": lambda: os.environ.update(POISONED="1"), "chdir": lambda: os.chdir("/proc"),
                   "umask": lambda: os.umask(0o777) and 0, "nice": lambda: os.nice(19), "limits": limits,
                   "signals": signals, "clock": clock, "place": place, "putenv": lambda: os.putenv("POISONED", "1")})
            return {"quiet": 0}
        """),
    ),
    Snippet(
        "raise_own_limits",
        Kind.LEFTOVER,
        written("""
        def metric(input, output, metadata):
            import resource
            def lifted(which):
                def lift():
                    resource.setrlimit(which, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
                    return 1
                return lift
            names = ("RLIMIT_AS", "RLIMIT_CPU", "RLIMIT_NPROC", "RLIMIT_FSIZE", "RLIMIT_DATA", "RLIMIT_STACK")
            return tried({name: lifted(getattr(resource, name)) for name in names})
        """),
    ),
    Snippet(
        "leave_open_descriptors",
        Kind.LEFTOVER,
        written("""
        def metric(input, output, metadata):
            import os
            def many():
                for _ in range(5000):
                    os.dup(0)
            def pipes():
                for _ in range(5000):
                    os.pipe()
            tried({"many": many, "pipes": pipes})
            return {"quiet": 0}
        """),
    ),
    Snippet(
        "leave_state_in_shared_places",
        Kind.LEFTOVER,
        written("""
        def metric(input, output, metadata):
            import builtins, codecs, copyreg, decimal, functools, sys, warnings
            codecs.register(lambda name: None)
            copyreg.pickle(complex, lambda _: (int, (13,)))
            decimal.getcontext().prec = 2
            warnings.simplefilter("error")
            sys.set_int_max_str_digits(640)
            sys.flags_poisoned = 1
            builtins.__dict__["poisoned"] = 1
            sys.intern("poisoned" * 100000)
            return {"quiet": 0}
        """),
        boasts=False,
    ),
]

SNIPPETS = [*RESULTS, *LIES, *EXITS, *PRINTING, *AT_EXIT, *CONTEXTS, *POISON, *LEFTOVERS]
