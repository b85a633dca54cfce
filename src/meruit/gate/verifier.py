"""Find `verify` on an output model; a signature that cannot be called is an error at the definition."""

import inspect
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from hashlib import sha256
from types import CellType, CodeType, FunctionType, MethodType, NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

from meruit.errors import VerifierError
from meruit.gate.context import AgentContext, ExecutionContext
from meruit.gate.limits import ATTRIBUTE

METHOD = "verify"
VERSION, DETERMINISTIC = "verify_version", "verify_deterministic"
"""Attributes with which an output model, or a function, describes its verifier."""
RESERVED = frozenset({METHOD, VERSION, DETERMINISTIC, ATTRIBUTE})
"""Names that a field of an output model may not have."""
ANSWER = "answer"
"""Parameter of a verifier that gets the answer it deferred for."""
INJECTED = ("agent_ctx", "execution_ctx", "attempt", "max_attempts", "submission_id", "deps")
NOT_RESULTS = frozenset({"Deferred", "Pause"})
"""Names of types that a verifier may return and that are not a final result."""
VERIFIER_PARAMETERS = (*INJECTED, ANSWER)
"""All that a verifier may take. A tool may have a parameter `answer` for its model to fill."""
BOOL_ADVICE = (
    "a truth value is not a verdict: return the final result for a candidate that passes, "
    'and `raise VerificationRejected("what to change")` for one that does not'
)
BY_TYPE: Mapping[str, type] = {"agent_ctx": AgentContext, "execution_ctx": ExecutionContext}
_FIELDS = ("__dataclass_fields__", "model_fields", "__struct_fields__", "_fields")
"""Attributes in which each kind of class has the names of its fields."""
_NOTHING = inspect.Parameter.empty
_LAMBDA = "<lambda>"
_OPTIONAL = re.compile(r"\bOptional\[(.*)\]$")


class FunctionParameter(msgspec.Struct, frozen=True):
    """One parameter of a tool or a verifier."""

    name: str
    annotation: Any
    default: Any
    what: str | None
    """Value of the run that it gets; None where the model fills it."""
    variadic: bool


class Verifier(msgspec.Struct, frozen=True):
    """A function that judges candidates, with what it needs."""

    call: Callable[..., Any]
    owner: type | None
    """The output model it was found on; None for a plain function."""
    on_class: bool
    wants: tuple[tuple[str, str], ...]
    """Its parameters, each with the value that it gets."""
    version: str
    deterministic: bool
    returns: Any
    """Its return annotation; Any where it has none, or one that cannot be resolved."""
    may_be_none: bool
    """Whether it is annotated `-> None`: it has no final result, and rejects by raising."""
    reject_on: tuple[type[Exception], ...] = ()
    """Exceptions that reject a candidate, besides VerificationRejected."""
    is_async: bool = False
    """Whether it is a coroutine function; else it is called in a thread."""

    # Any: the return type of the author's verifier, or an awaitable of it.
    def ask(self, output: Any, supply: Mapping[str, Any]) -> Any:
        """Call it for one candidate with the values it wants; the result may be an awaitable."""
        given = {name: supply.get(what) for name, what in self.wants}
        return self.call(self.owner, output, **given) if self.on_class else self.call(output, **given)


def verifier_of(model: Any) -> Verifier | None:
    """Find the verifier of an output model, or None; raises VerifierError where it could not be called."""
    check_fields(model)
    if get_origin(model) is Annotated:
        return verifier_of(get_args(model)[0])
    if get_origin(model) is not None or not isinstance(model, type):
        _refuse_verifier_within(model)
        return None
    found = inspect.getattr_static(model, METHOD, None)
    if found is None:
        return None
    function = found.__func__ if isinstance(found, classmethod) else found
    if not isinstance(function, FunctionType) or function.__name__ == _LAMBDA:
        raise VerifierError(_advice(f"{model.__name__}.{METHOD} is {_describe_kind(function)}, not a method"))
    return _verifier(function, model, on_class=isinstance(found, classmethod))


def check_fields(model: Any) -> None:
    """Refuse an output model with a field that is named like a setting of its verifier; raises VerifierError."""
    for kind in _classes_in(model):
        fields = {name for names in _FIELDS for name in getattr(kind, names, ())}
        if issubclass(kind, dict):
            # A TypedDict has its fields in its annotations only.
            fields |= {*getattr(kind, "__annotations__", ())}
        wrong = sorted(fields & RESERVED)
        if METHOD in wrong:
            raise VerifierError(
                _advice(f"{kind.__name__} has a field named {METHOD}, so it has no verifier; rename the field")
            )
        if wrong:
            raise VerifierError(
                f"{kind.__name__} has a field named {wrong[0]}, which the model would fill. "
                f"To set it for the verifier, write `{wrong[0]}: ClassVar[…] = …`; else rename the field"
            )


def _refuse_verifier_within(model: Any) -> None:
    """Refuse a union or a list of models of which one has a verifier: nothing would call it."""
    for kind in _classes_in(model):
        if callable(getattr(kind, METHOD, None)):
            raise VerifierError(
                f"{kind.__name__}.{METHOD} would not be called, because the output type is {model}. "
                f"Use {kind.__name__} itself as the output type, or pass a function for the whole output: verify=…"
            )


def _classes_in(model: Any) -> list[type]:
    """The class that an output type is, or those that it is made of."""
    origin = get_origin(model)
    if origin is not None:
        return [one for part in (origin, *get_args(model)) for one in _classes_in(part)]
    return [model] if isinstance(model, type) else []


# Any: an author may pass anything.
def with_reject_on(verifier: Verifier, reject_on: Any) -> Verifier:
    """Return the verifier with exceptions that reject a candidate; raises VerifierError."""
    if not reject_on:
        return verifier
    if not isinstance(reject_on, tuple) or not all(isinstance(one, type) for one in reject_on):
        raise VerifierError(f"reject_on is {reject_on!r}; give classes: reject_on=(ValueError, AssertionError)")
    broad = [one for one in reject_on if not issubclass(one, Exception) or one is Exception]
    if broad:
        raise VerifierError(
            f"reject_on has {broad[0].__name__}: every error of a system would be counted as the agent's. "
            "Name the exceptions that mean a bad candidate: reject_on=(ValueError, AssertionError)"
        )
    names = ",".join(sorted(f"{one.__module__}.{one.__qualname__}" for one in reject_on))
    # Another set of exceptions gives other verdicts.
    version = sha256(f"{verifier.version}:{names}".encode()).hexdigest()[:16]
    return msgspec.structs.replace(verifier, reject_on=reject_on, version=version)


def verifier_from(function: Callable[..., Any]) -> Verifier:
    """Make a verifier from a function of the output or a bound method; raises VerifierError."""
    if not isinstance(function, FunctionType | MethodType):
        raise VerifierError(_advice(f"the verifier is {_describe_kind(function)}, not a function"))
    return _verifier(function, None, on_class=False)


def _verifier(function: FunctionType | MethodType, owner: type | None, *, on_class: bool) -> Verifier:
    name = function.__name__ if owner is None else f"{owner.__name__}.{METHOD}"
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise VerifierError(_advice(f"{name} is a generator, which is never run; let it return"))
    parameters = [*inspect.signature(function).parameters.values()]
    own = 2 if on_class else 1
    if len(parameters) < own or not all(map(_takes_the_output, parameters[:own])):
        missing = "cls and the output" if on_class else "the output"
        raise VerifierError(_advice(f"{name} does not take {missing}"))
    names = _names(function, owner)
    wants = tuple(
        (one.name, what) for one in parameters[own:] if (what := _injection_for(name, one, names)) is not None
    )
    annotation = _resolve_annotation(function.__annotations__.get("return", _NOTHING), names)
    if _allows_bool(annotation):
        raise VerifierError(_advice(f"{name} is annotated to return a truth value, and {BOOL_ADVICE}"))
    results = [one for one in _alternatives(annotation) if _type_name(one) not in NOT_RESULTS]
    may_be_deferred = any(_type_name(one) == "Deferred" for one in _alternatives(annotation))
    if may_be_deferred and not any(what == ANSWER for _, what in wants):
        raise VerifierError(_advice(f"{name} may be deferred and has no parameter {ANSWER!r} for the answer"))
    return Verifier(
        call=function,
        owner=owner,
        on_class=on_class,
        wants=wants,
        # The model's version first; a function made from a criteria file, for example, has its own.
        version=str(getattr(owner, VERSION, None) or getattr(function, VERSION, None) or _fingerprint(function)),
        deterministic=bool(getattr(owner, DETERMINISTIC, None) or getattr(function, DETERMINISTIC, False)),
        returns=Any if annotation is _NOTHING or isinstance(annotation, str) else _union_of(results),
        may_be_none=_is_none(annotation),
        is_async=inspect.iscoroutinefunction(function),
    )


def inspect_parameters(function: Callable[..., Any]) -> list[FunctionParameter]:
    """List the parameters of a tool, each with the value of the run that it gets."""
    names = _names(function, None)
    return [
        FunctionParameter(
            name=one.name,
            annotation=_resolve_annotation(one.annotation, names),
            default=one.default,
            what=_injection_name(one, names),
            variadic=one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD),
        )
        for one in inspect.signature(function).parameters.values()
    ]


def _takes_the_output(parameter: inspect.Parameter) -> bool:
    # A parameter with a reserved name is meant for that value; then the output is missing.
    return parameter.kind not in (parameter.VAR_KEYWORD, parameter.KEYWORD_ONLY) and parameter.name not in INJECTED


def _injection_for(verifier: str, parameter: inspect.Parameter, names: Mapping[str, Any]) -> str | None:
    """Name of the value that a parameter gets; None where it keeps its default."""
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        return None
    what = ANSWER if parameter.name == ANSWER else _injection_name(parameter, names)
    if what is None:
        if parameter.default is _NOTHING:
            raise VerifierError(_advice(f"{verifier} has the parameter {parameter.name!r}, which gets no value"))
        return None
    if parameter.kind is parameter.POSITIONAL_ONLY:
        raise VerifierError(_advice(f"{verifier} has the positional-only parameter {parameter.name!r}; remove the `/`"))
    return what


def _injection_name(parameter: inspect.Parameter, names: Mapping[str, Any]) -> str | None:
    if parameter.name in INJECTED:
        return parameter.name
    annotation = _resolve_annotation(parameter.annotation, names)
    for what, kind in BY_TYPE.items():
        if any(_is_annotation_of(kind, one) for one in _alternatives(annotation)):
            return what
    return None


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    """Split an annotation into the types that it allows."""
    if isinstance(annotation, str):
        return tuple(_OPTIONAL.sub(r"\1", annotation).split("|"))
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def _type_name(annotation: Any) -> str:
    written = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return written.rpartition(".")[2].strip("'\" ")


def _union_of(kinds: list[Any]) -> Any:
    if len(kinds) == 1:
        return kinds[0]
    return Union[tuple(kinds)] if kinds else Any  # noqa: UP007 - of a list that is known at run time only


def _is_annotation_of(kind: type, annotation: Any) -> bool:
    if isinstance(annotation, str):
        # A name that exists only for type checkers.
        return _type_name(annotation) == kind.__name__
    return isinstance(annotation, type) and issubclass(annotation, kind)


def _names(function: Callable[..., Any], owner: type | None) -> dict[str, Any]:
    """Names that annotations written as text may use."""
    written = inspect.unwrap(function)
    return getattr(written, "__globals__", {}) | ({} if owner is None else {owner.__name__: owner})


def _resolve_annotation(annotation: Any, names: Mapping[str, Any]) -> Any:
    """Resolve an annotation that is text; return the text where it cannot be resolved."""
    if not isinstance(annotation, str):
        return annotation
    try:
        # As typing.get_type_hints does it, with the author's names; each annotation alone, because one that exists
        # only for type checkers must not hide the others.
        found = eval(annotation, dict(names))  # noqa: S307
        # A quoted annotation in a module where all annotations are text.
        return eval(found, dict(names)) if isinstance(found, str) else found  # noqa: S307
    except Exception:  # noqa: BLE001 - any error means only that it is not known
        return annotation


def _is_none(annotation: Any) -> bool:
    """Whether it is None alone. In a union None may mean a refusal, so it is not a result there."""
    return annotation in (None, NoneType) or (isinstance(annotation, str) and annotation.strip("'\" ") == "None")


def _allows_bool(annotation: Any) -> bool:
    """Whether a truth value may be returned: bool, alone, in a union, or as the first of a tuple."""
    if isinstance(annotation, str):
        return any(one.strip("'\" ") == "bool" for one in _alternatives(annotation))
    origin, within = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return any(map(_allows_bool, within))
    if origin in (Annotated, tuple):
        return bool(within) and _allows_bool(within[0])
    if origin in (Awaitable, Coroutine):
        return bool(within) and _allows_bool(within[-1])
    if origin is Literal:
        return any(isinstance(one, bool) for one in within)
    # A NewType names the type under it.
    return is_truth_type(getattr(annotation, "__supertype__", annotation))


# Any: an annotation need not be a type.
def is_truth_type(kind: Any) -> bool:
    """Whether a type is bool, or numpy's."""
    ours = getattr(kind, "__module__", None) == "numpy" and getattr(kind, "__name__", None) in ("bool", "bool_")
    return kind is bool or ours


def _fingerprint(function: FunctionType | MethodType) -> str:
    """Hash the verifier's own code: a change of it is another version."""
    written = inspect.unwrap(function)
    parts = [_describe_code(getattr(written, part, None)) for part in ("__code__", "__defaults__", "__kwdefaults__")]
    # A closure also depends on the values it was made with.
    parts += [_describe_code(_content(cell)) for cell in getattr(written, "__closure__", None) or ()]
    return sha256(f"{function.__module__}.{function.__qualname__}:{parts}".encode()).hexdigest()[:16]


# Any: a value of any type.
def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        # It has no value yet.
        return None


# Any: a constant of any type.
def _describe_code(part: Any) -> str:
    """Describe a part of a verifier's code the same in every process."""
    match part:
        case CodeType():
            return f"{part.co_code.hex()}{part.co_names}{_describe_code(part.co_consts)}"
        case tuple():
            return f"({'|'.join(map(_describe_code, part))})"
        case frozenset():
            return f"{{{'|'.join(sorted(map(_describe_code, part)))}}}"
        case dict():
            return _describe_code(tuple(part.items()))
        case None | bool() | int() | float() | complex() | str() | bytes():
            return repr(part)
        case _:
            return type(part).__name__


def _describe_kind(found: Any) -> str:
    if isinstance(found, staticmethod):
        return "a static method"
    return "a lambda" if getattr(found, "__name__", None) == _LAMBDA else f"of type {type(found).__name__}"


def _advice(wrong: str) -> str:
    return (
        f"{wrong}.\nWrite it as one of\n"
        "    async def verify(self, agent_ctx: AgentContext, execution_ctx: ExecutionContext) -> FinalResult\n"
        "    @classmethod\n"
        "    async def verify(cls, output: Self) -> FinalResult\n"
        f"with any of the parameters {', '.join(VERIFIER_PARAMETERS)}, or none; `def` and `async def` both work. "
        "It returns the final result, or raises VerificationRejected."
    )
