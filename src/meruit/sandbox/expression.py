"""The `expr` tier: one expression in CEL, which has no loops and can read only its arguments.

An expression that is certainly cheap for this work is evaluated in the host process, in microseconds. One that walks
lists or builds text could take long or grow large before CEL's own budget stops it, so it runs in a jail.
"""

import re
from functools import cache, lru_cache
from importlib import metadata
from typing import TYPE_CHECKING, Any

import orjson

from meruit.errors import Failure, MissingExtra, SandboxError
from meruit.model.limits import MAX_EXPRESSION
from meruit.sandbox.contract import BOOLEAN, VALUE, to_one_line, validate_metrics

if TYPE_CHECKING:
    from cel_expr_python import cel

CHEAP = 4_000_000
"""Characters of the expression times bytes of the work: a bound on what evaluating without loops can touch."""
CHEAP_CALLS = frozenset(
    {
        *("size", "has", "int", "uint", "double", "bool", "dyn", "type", "timestamp", "duration"),
        *("startsWith", "endsWith", "contains", "indexOf", "lastIndexOf", "charAt", "substring", "split"),
        *("lowerAscii", "upperAscii", "trim", "greatest", "least", "abs", "ceil", "floor", "round", "trunc", "sign"),
        *("sqrt", "isNaN", "isInf", "isFinite", "getFullYear", "getMonth", "getDayOfMonth", "getHours", "getSeconds"),
    }
)
"""Functions that do not loop over a list, do not lengthen text and do not compile a pattern."""
_CALL = re.compile(r"\b(\w++)\s*+\(")
_NUMBERS = ("INT", "UINT", "DOUBLE")
_TRUTH = "BOOL"
_UNKNOWN = "DYN"
"""The type of an expression that depends on the work."""
_HINTS = {
    "STRING": "compare it, or take its size(…)",
    "NULL": "use has(…) to test whether it exists",
}


@cache
def engine() -> str:
    """The evaluator and its version."""
    try:
        return f"cel-expr-python {metadata.version('cel-expr-python')}"
    except metadata.PackageNotFoundError:
        raise MissingExtra("custom metrics need `pip install 'meruit[custom]'`") from None


def admit(code: str) -> None:
    """Refuse an expression that is too long, before it is compiled."""
    if len(code) > MAX_EXPRESSION:
        raise SandboxError(
            Failure.UNSUPPORTED_CONSTRUCT,
            f"the expression has {len(code):,} characters; at most {MAX_EXPRESSION:,} are allowed; "
            "write metric code instead",
        )


def is_cheap(code: str, context: bytes) -> bool:
    """Whether evaluating certainly takes little time and little memory."""
    # A comment between a name and its bracket would hide the call from the pattern.
    plain = "//" not in code and CHEAP_CALLS.issuperset(_CALL.findall(code))
    return plain and len(code) * len(context) <= CHEAP


def check(code: str) -> bool:
    """Compile the expression; raises SandboxError for one that never gives a number, true or false.

    Returns whether it certainly gives true or false. Compiling is bounded by the length and by CEL's limit on depth.
    """
    kind: str = _compile(code).return_type().name()
    if kind not in (*_NUMBERS, _TRUTH, _UNKNOWN):
        raise _wrong_kind(kind)
    return kind == _TRUTH


def evaluate(code: str, context: bytes) -> dict[str, float]:
    """Evaluate to `{"value": number}`, or `{"boolean": 1}` for true; raises SandboxError for anything else.

    No context asks only whether the expression compiles.
    """
    if not context:
        check(code)
        return {}
    expression = _compile(code)
    try:
        found = expression.eval(data=orjson.loads(context))
    except (RuntimeError, ValueError, TypeError, RecursionError) as problem:
        message = _reword_complaint(str(problem))
        failure = Failure.TIMEOUT if "budget exceeded" in message else Failure.CRASHED
        raise SandboxError(failure, message) from None
    kind = found.type().name()
    if kind == "ERROR":
        raise SandboxError(Failure.CRASHED, _reword_complaint(str(found.plain_value())))
    if kind == _TRUTH:
        return {BOOLEAN: int(found.plain_value())}
    if kind not in _NUMBERS:
        raise _wrong_kind(kind)
    return validate_metrics({VALUE: found.plain_value()})


def _wrong_kind(kind: str) -> SandboxError:
    hint = f"; {_HINTS[kind]}" if kind in _HINTS else ""
    message = f"the expression gives {kind.lower()}, not a number, true or false{hint}"
    return SandboxError(Failure.RESULT_REJECTED, message)


@cache
# Any: the library's environment has no typed constructor.
def _environment() -> Any:
    from cel_expr_python import cel
    from cel_expr_python.ext import ext_math, ext_strings

    return cel.NewEnv(
        variables=dict.fromkeys(("input", "output", "metadata"), cel.Type.DYN),
        extensions=[ext_math.ExtMath(), ext_strings.ExtStrings()],
    )


@lru_cache(maxsize=64)
def _compile(code: str) -> "cel.Expression":
    admit(code)
    try:
        expression: cel.Expression = _environment().compile(code)
    except (RuntimeError, ValueError, TypeError) as problem:
        raise SandboxError(Failure.UNSUPPORTED_CONSTRUCT, _reword_complaint(str(problem))) from None
    return expression


_REWORDED = (
    # The library's name for the kind of error, and its list of expected tokens.
    (r"^[A-Z_]+: (ERROR: )?(<input>:)?|\s*\[[A-Z_]+\]$| expecting \{.*\}| \(in container ''\)", ""),
    (
        r"[Nn]o matching overloads? found : (\S+)\((.*)\)",
        r"\1 is not defined for (\2): convert with double(…) or int(…)",
    ),
    (r'Key not found in map : "(.*)"', r"key '\1' not found; test for it with has(…)"),
    (r"undeclared reference to 'len'", "CEL has no 'len'; use size(…)"),
    (r"undeclared reference to '(abs|min|max|round|floor|ceil|sqrt)'", r"CEL has no '\1'; use math.abs, math.least, …"),
)


def _reword_complaint(message: str) -> str:
    """Reword the library's first error message for the author."""
    message = message.partition("\n")[0]
    for pattern, words in _REWORDED:
        message = re.sub(pattern, words, message)
    return to_one_line(message)
