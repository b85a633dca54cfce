"""The `expr` tier: one expression in CEL, which has no loops of its own and cannot reach anything but its arguments.

An expression that is plainly cheap on the work at hand is evaluated here, in microseconds. One that walks lists or
builds texts could take long or grow large before CEL's own budget stops it; that one goes to a jail.
"""

import re
from functools import cache, lru_cache
from importlib import metadata
from typing import TYPE_CHECKING, Any

import orjson

from meruit.model.limits import MAX_EXPRESSION
from meruit.sandbox.contract import Failure, SandboxError, to_one_line, validate_metrics

if TYPE_CHECKING:
    from cel_expr_python import cel

CHEAP = 4_000_000
"""Characters of the expression times bytes of the work: a bound on what evaluating without loops can touch."""
VALUE = "value"
"""What an expression's number is called among the metrics."""
CHEAP_CALLS = frozenset(
    {
        *("size", "has", "int", "uint", "double", "bool", "dyn", "type", "timestamp", "duration"),
        *("startsWith", "endsWith", "contains", "indexOf", "lastIndexOf", "charAt", "substring", "split"),
        *("lowerAscii", "upperAscii", "trim", "greatest", "least", "abs", "ceil", "floor", "round", "trunc", "sign"),
        *("sqrt", "isNaN", "isInf", "isFinite", "getFullYear", "getMonth", "getDayOfMonth", "getHours", "getSeconds"),
    }
)
"""What neither loops over a list, nor makes more text than it was given, nor compiles a pattern."""
_CALL = re.compile(r"\b(\w++)\s*+\(")
_NUMBERS = ("INT", "UINT", "DOUBLE")
_HINTS = {
    "BOOL": "write `… ? 1 : 0`",
    "STRING": "compare it, or take its size(…)",
    "NULL": "use has(…) to ask whether it is there",
}


@cache
def engine() -> str:
    """The evaluator and its version."""
    return f"cel-expr-python {metadata.version('cel-expr-python')}"


def admit(code: str) -> None:
    """Refuse what is longer than an expression may be, before anyone looks at it more closely."""
    if len(code) > MAX_EXPRESSION:
        raise SandboxError(
            Failure.UNSUPPORTED_CONSTRUCT,
            f"{len(code):,} characters; an expression has at most {MAX_EXPRESSION:,}; write metric code instead",
        )


def is_cheap(code: str, context: bytes) -> bool:
    """Whether evaluating is certain to take neither long nor much memory."""
    # Between a name and its bracket there may be a comment, which the pattern does not see through.
    plain = "//" not in code and CHEAP_CALLS.issuperset(_CALL.findall(code))
    return plain and len(code) * len(context) <= CHEAP


def evaluate(code: str, context: bytes) -> dict[str, float]:
    """The expression's number, as `{"value": …}`; raises `Failed` for anything else."""
    expression = _compile(code)
    try:
        found = expression.eval(data=orjson.loads(context))
    except (RuntimeError, ValueError, TypeError, RecursionError) as problem:
        said = _reword_complaint(str(problem))
        failure = Failure.TIMEOUT if "budget exceeded" in said else Failure.CRASHED
        raise SandboxError(failure, said) from None
    kind = found.type().name()
    if kind == "ERROR":
        raise SandboxError(Failure.CRASHED, _reword_complaint(str(found.plain_value())))
    if kind not in _NUMBERS:
        hint = f"; {_HINTS[kind]}" if kind in _HINTS else ""
        raise SandboxError(Failure.RESULT_REJECTED, f"the expression gives {kind.lower()}, not a number{hint}")
    return validate_metrics({VALUE: found.plain_value()})


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
    # The library's own words for the kind of error, and its list of all that might have stood there.
    (r"^[A-Z_]+: (ERROR: )?(<input>:)?|\s*\[[A-Z_]+\]$| expecting \{.*\}| \(in container ''\)", ""),
    (
        r"[Nn]o matching overloads? found : (\S+)\((.*)\)",
        r"\1 is not defined for (\2): convert with double(…) or int(…)",
    ),
    (r'Key not found in map : "(.*)"', r"there is no key '\1'; ask with has(…) whether it is there"),
    (r"undeclared reference to 'len'", "CEL has no 'len'; use size(…)"),
    (r"undeclared reference to '(abs|min|max|round|floor|ceil|sqrt)'", r"CEL has no '\1'; use math.abs, math.least, …"),
)


def _reword_complaint(said: str) -> str:
    """The library's first complaint, as an author understands it."""
    said = said.partition("\n")[0]
    for pattern, words in _REWORDED:
        said = re.sub(pattern, words, said)
    return to_one_line(said)
