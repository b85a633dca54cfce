"""Finding `verify`: every specified shape is called with what it wants, every other one is refused when defined."""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from functools import partial, wraps
from types import FunctionType
from typing import Annotated, Any, ClassVar, Generic, Literal, NamedTuple, NewType, Optional, Self, TypedDict, TypeVar

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from tests.gate import postponed

from meruit.errors import VerifierError
from meruit.gate.agent import Agent
from meruit.gate.context import AgentContext, ExecutionContext
from meruit.gate.tools import Deferred, tool
from meruit.gate.verifier import INJECTED, Verifier, inspect_parameters, verifier_from, verifier_of

T = TypeVar("T")
SUPPLY: dict[str, Any] = {
    "agent_ctx": AgentContext(run_id="r1"),
    "execution_ctx": ExecutionContext(run_id="r1"),
    "attempt": 2,
    "max_attempts": 5,
    "submission_id": "s1",
    "deps": {"db": 1},
}


class Coding(AgentContext):
    """An agent's own context."""


def found(model: Any) -> Verifier:
    verifier = verifier_of(model)
    assert verifier is not None
    return verifier


def asked(verifier: Verifier, output: Any, **supply: Any) -> Any:
    """What the verifier answers, awaited where it must be."""
    answer = verifier.ask(output, SUPPLY | supply)
    if not inspect.iscoroutine(answer):
        return answer
    with pytest.raises(StopIteration) as done:
        answer.send(None)
    return done.value.value


def written(head: str, *, on_class: bool, is_async: bool) -> type:
    """An output model with a `verify` that returns what it was given."""
    decorator = "@classmethod\n    " if on_class else ""
    prefix = "async " if is_async else ""
    source = f"class Output:\n    {decorator}{prefix}def verify({head}):\n        return dict(locals())\n"
    scope: dict[str, Any] = {}
    exec(source, scope)
    made = scope["Output"]
    assert isinstance(made, type)
    return made


@given(st.permutations(INJECTED), st.integers(0, 6), st.integers(0, 6), st.booleans(), st.booleans(), st.booleans())
def test_every_shape_is_given_what_it_names_in_any_order(
    names: list[str], many: int, by_keyword: int, on_class: bool, is_async: bool, has_rest: bool
) -> None:
    wanted = names[:many]
    head = ["cls", "output"] if on_class else ["self"]
    plain, keyword = wanted[:by_keyword], wanted[by_keyword:]
    star = ["*rest"] if has_rest else (["*"] if keyword else [])
    tail = ["**others"] if has_rest else []
    model = written(", ".join([*head, *plain, *star, *keyword, *tail]), on_class=on_class, is_async=is_async)
    output = model()
    seen = asked(found(model), output)
    assert seen.pop("output" if on_class else "self") is output
    assert seen.pop("cls", model) is model
    assert (seen.pop("rest", ()), seen.pop("others", {})) == ((), {})
    assert seen == {name: SUPPLY[name] for name in wanted}


@given(st.text("abcxyz", min_size=1))
def test_an_unknown_parameter_is_refused_with_the_right_signature(name: str) -> None:
    for head, on_class in ((f"self, {name}", False), (f"cls, output, *, {name}", True)):
        with pytest.raises(VerifierError) as refused:
            verifier_of(written(head, on_class=on_class, is_async=True))
        said = str(refused.value)
        assert "Output.verify" in said
        assert repr(name) in said
        assert "verify(self, " in said
        assert "verify(cls, " in said
        assert all(one in said for one in INJECTED)
    left_alone = found(written(f"self, {name}=7", on_class=False, is_async=False))
    assert left_alone.wants == ()
    assert asked(left_alone, None)[name] == 7


# The specification's own shapes, and how people write them.


class FinalResult(BaseModel):
    summary: str


class AgentOutput(BaseModel):
    summary: str = "done"

    async def verify(self, agent_ctx: AgentContext, execution_ctx: ExecutionContext) -> FinalResult:
        return FinalResult(summary=f"{self.summary} in {agent_ctx.run_id} by {execution_ctx.run_id}")


class OnClass(BaseModel):
    @classmethod
    async def verify(cls, output: Self, attempt: int, max_attempts: int) -> tuple[type, Self, int, int]:
        return cls, output, attempt, max_attempts


def test_the_specified_method() -> None:
    verifier = found(AgentOutput)
    assert asked(verifier, AgentOutput()) == FinalResult(summary="done in r1 by r1")
    assert (verifier.owner, verifier.on_class, verifier.returns) == (AgentOutput, False, FinalResult)
    assert (verifier.may_be_none, verifier.deterministic) == (False, False)


def test_the_specified_class_method() -> None:
    output = OnClass()
    assert asked(found(OnClass), output) == (OnClass, output, 2, 5)


def test_an_inherited_verifier_serves_the_model_that_inherits_it() -> None:
    class Longer(OnClass):
        more: str = ""

    class Renamed(AgentOutput):
        pass

    output = Longer()
    assert asked(found(Longer), output)[:2] == (Longer, output)
    assert found(Renamed).owner is Renamed
    assert asked(found(Renamed), Renamed(summary="x")).summary == "x in r1 by r1"


def test_an_annotation_says_what_is_wanted_under_any_name() -> None:
    class Output:
        def verify(
            self,
            ctx: AgentContext,
            own: Coding,
            worker: ExecutionContext,
            maybe: AgentContext | None = None,
            old: Optional[ExecutionContext] = None,  # noqa: UP045 - as people write it
            count: int = 1,
            both: int | str = 2,
        ) -> Any:
            return ctx, own, worker, maybe, old, count, both

    agent, worker = SUPPLY["agent_ctx"], SUPPLY["execution_ctx"]
    assert asked(found(Output), Output()) == (agent, agent, worker, agent, worker, 1, 2)


def test_annotations_that_are_text_are_resolved_one_by_one() -> None:
    verifier = found(postponed.Postponed)
    assert dict(verifier.wants) == {
        "mine": "agent_ctx",
        "quoted": "agent_ctx",
        "dotted": "agent_ctx",
        "unseen": "execution_ctx",
        "maybe": "execution_ctx",
        "either": "execution_ctx",
    }
    assert verifier.returns is postponed.Result
    mine = postponed.Remembering(lessons=4)
    assert asked(verifier, postponed.Postponed(), agent_ctx=mine).lessons == 4


def test_a_name_is_enough_where_the_annotation_is_nonsense() -> None:
    assert asked(found(postponed.Nonsense), postponed.Nonsense()) == 2


def test_what_the_supply_lacks_is_given_as_nothing() -> None:
    class Output:
        def verify(self, deps: Any) -> Any:
            return deps

    assert found(Output).ask(Output(), {}) is None


# What it may return.


def test_none_is_a_result_only_where_the_annotation_is_none_alone() -> None:
    def returning(annotation: Any) -> Verifier:
        def verify(output: Any) -> Any: ...

        verify.__annotations__["return"] = annotation
        return verifier_from(verify)

    assert all(returning(annotation).may_be_none for annotation in [None, type(None), "None"])
    # In a union None may be how a verifier says no.
    unions = [int | None, Optional[int], "int | None", "Missing | None", "Optional[Missing]"]  # noqa: UP045 - as people write it
    others = [int, Any, "Any", int | str, "Nonesuch", list[None]]
    assert not any(returning(annotation).may_be_none for annotation in [*unions, *others])

    def silent(output):  # type: ignore[no-untyped-def]  # That is the case.
        return output

    assert (verifier_from(silent).may_be_none, verifier_from(silent).returns) == (False, Any)


@pytest.mark.parametrize(
    ("model", "returns", "may_be_none"),
    [
        (postponed.Unseen, Any, False),
        (postponed.UnseenOrNone, Any, False),
        (postponed.SaysNone, None, True),
        (postponed.Own, postponed.Own | Any, False),
    ],
)
def test_a_return_annotation_that_is_text_is_resolved(model: type, returns: Any, may_be_none: bool) -> None:
    assert (found(model).returns, found(model).may_be_none) == (returns, may_be_none)


# What is no verifier, and what is none that could be called.


@dataclass
class DataclassField:
    verify: bool = True


@dataclass(slots=True)
class SlottedField:
    verify: bool


class PydanticField(BaseModel):
    verify: bool = True


class StructField(msgspec.Struct):
    verify: bool = True


class TupleField(NamedTuple):
    verify: bool = True


class Withdrawn(AgentOutput):
    verify: ClassVar[None] = None  # type: ignore[assignment]  # How a model takes back what it inherits.


class Plain(BaseModel):
    text: str


class Keys(TypedDict):
    verify: bool


class BudgetField(BaseModel):
    verify_max_attempts: int = 5


class VersionField(BaseModel):
    verify_version: str = ""


@dataclass
class DeterministicField:
    verify_deterministic: bool = True


@dataclass
class Box(Generic[T]):
    content: T

    def verify(self) -> int:
        return 1


@pytest.mark.parametrize("model", [Withdrawn, Plain, str, list[int], Plain | None, AgentOutput(), None, "AgentOutput"])
def test_a_model_without_verify_has_no_verifier(model: Any) -> None:
    assert verifier_of(model) is None


@pytest.mark.parametrize(
    "model",
    [
        DataclassField,
        SlottedField,
        PydanticField,
        StructField,
        TupleField,
        Keys,
        BudgetField,
        VersionField,
        DeterministicField,
        list[PydanticField],
        BudgetField | None,
    ],
    ids=str,
)
def test_a_field_named_like_a_setting_of_the_verifier_is_refused(model: Any) -> None:
    with pytest.raises(VerifierError, match="has a field named verify"):
        Agent("a", output_type=model)
    with pytest.raises(VerifierError):
        Agent("a", output_type=model, verify=free)


@pytest.mark.parametrize(
    "model", [list[AgentOutput], AgentOutput | None, dict[str, AgentOutput | int], Box[int]], ids=str
)
def test_a_verifier_inside_the_output_type_that_nothing_would_call_is_refused(model: Any) -> None:
    with pytest.raises(VerifierError, match="would not be called"):
        Agent("a", output_type=model)
    assert Agent("a", output_type=model, verify=free).output is not None


def test_an_annotated_output_type_is_verified_like_the_type_itself() -> None:
    assert found(Annotated[AgentOutput, "of weirs"]) == found(AgentOutput)


@pytest.mark.parametrize(
    "annotation",
    [
        *(bool, "bool", bool | None, "Report | bool", "Optional[bool]", Annotated[bool, 1]),
        *(Literal[True], Literal["no", False], tuple[bool, str], tuple[bool, ...]),
        *(Awaitable[bool], Coroutine[Any, Any, bool], NewType("Fits", bool), np.bool_),
    ],
    ids=str,
)
def test_a_verifier_annotated_with_a_truth_value_is_refused(annotation: Any) -> None:
    def verify(output: Any) -> Any: ...

    verify.__annotations__["return"] = annotation
    with pytest.raises(VerifierError, match="raise VerificationRejected"):
        Agent("a", output_type=Plain, verify=verify)


@pytest.mark.parametrize(
    "annotation", [list[bool], dict[str, bool], "Boolean", tuple[()], tuple[str, bool], Literal[1]], ids=str
)
def test_a_result_that_holds_truth_values_is_allowed(annotation: Any) -> None:
    def verify(output: Any) -> Any: ...

    verify.__annotations__["return"] = annotation
    assert verifier_from(verify).may_be_none is False


def test_a_verifier_that_may_be_deferred_needs_a_parameter_for_the_answer() -> None:
    def deaf(output: Any) -> int | Deferred: ...  # type: ignore[empty-body]

    def hears(output: Any, answer: Any) -> int | Deferred: ...  # type: ignore[empty-body]

    with pytest.raises(VerifierError, match="'answer'"):
        verifier_from(deaf)
    assert (verifier_from(hears).wants, verifier_from(hears).returns) == ((("answer", "answer"),), int)


def test_a_verifier_may_call_its_output_answer() -> None:
    def verify(answer: Any) -> int: ...  # type: ignore[empty-body]

    assert verifier_from(verify).wants == ()


def test_a_tool_may_have_a_parameter_named_answer() -> None:
    def check(answer: str) -> str: ...  # type: ignore[empty-body]

    assert tool(check).spec.parameters["required"] == ["answer"]


@pytest.mark.parametrize(
    "wrong", [(Exception,), (BaseException,), (KeyboardInterrupt,), [ValueError], ("ValueError",), ValueError]
)
def test_exceptions_that_would_blame_the_agent_for_everything_are_refused(wrong: Any) -> None:
    with pytest.raises(VerifierError, match="reject_on"):
        Agent("a", output_type=AgentOutput, reject_on=wrong)


def test_another_set_of_rejecting_exceptions_is_another_version() -> None:
    plain, strict = (Agent("a", output_type=AgentOutput, reject_on=which).output for which in ((), (ValueError,)))
    assert plain is not None
    assert strict is not None
    assert plain.verifier is not None
    assert strict.verifier is not None
    assert plain.verifier.version != strict.verifier.version


def free(output: Any) -> Any:
    return output


class Unrelated:
    def __call__(self, output: Any) -> Any:
        return output


def model_with(verify: Any) -> type:
    return type("Output", (), {"verify": verify})


@pytest.mark.parametrize(
    ("verify", "kind"),
    [
        (staticmethod(free), "static"),
        (property(free), "property"),
        (partial(free), "partial"),
        (lambda self: self, "lambda"),
        (classmethod(lambda cls, output: output), "lambda"),
        (classmethod(property(free)), "property"),  # type: ignore[arg-type]  # Nonsense.
        (Unrelated(), "Unrelated"),
        (3, "int"),
        (AgentOutput, "ModelMetaclass"),
    ],
)
def test_a_verify_that_is_not_a_method_is_refused_by_its_kind(verify: Any, kind: str) -> None:
    with pytest.raises(VerifierError, match=rf"^Output\.verify .*\b{kind}\b"):
        verifier_of(model_with(verify))


@pytest.mark.parametrize(
    ("head", "on_class", "said"),
    [
        ("", False, "the output"),
        ("**given", False, "the output"),
        ("*, attempt", False, "the output"),
        ("agent_ctx", False, "the output"),
        ("cls", True, "cls and"),
        ("cls, **given", True, "cls and"),
        ("cls, *, output", True, "cls and"),
        ("cls, agent_ctx", True, "cls and"),
        ("self, attempt, /", False, "'attempt'"),
        ("self, attempt=1, /", False, "'attempt'"),
        ("self, other, /", False, "'other'"),
    ],
)
def test_a_verifier_that_cannot_be_called_is_refused(head: str, on_class: bool, said: str) -> None:
    with pytest.raises(VerifierError) as refused:
        verifier_of(written(head, on_class=on_class, is_async=False))
    first_line = str(refused.value).partition("\n")[0]
    assert first_line.startswith("Output.verify ")
    assert said in first_line


@pytest.mark.parametrize("head", ["self, /", "*all", "*all, attempt", "self, other=1, /, *rest, attempt, **more"])
def test_unusual_but_callable_shapes_are_called(head: str) -> None:
    model = written(head, on_class=False, is_async=False)
    output = model()
    seen = asked(found(model), output)
    assert seen.get("self", output) is output
    assert seen.get("all", (output,)) == (output,)
    assert seen.get("attempt", 2) == 2


def test_a_generator_is_not_a_verifier() -> None:
    async def later(self: Any) -> AsyncIterator[int]:
        yield 1

    def slowly(self: Any) -> Iterator[int]:
        yield 1

    for yielding in (later, slowly):
        with pytest.raises(VerifierError, match=r"^Output\.verify .*generator"):
            verifier_of(model_with(yielding))


# Plain functions.


def test_a_function_of_the_output_is_a_verifier() -> None:
    def judge(candidate: str, attempt: int) -> str:
        return f"{candidate} at {attempt}"

    verifier = verifier_from(judge)
    assert (verifier.owner, verifier.on_class) == (None, False)
    assert asked(verifier, "x") == "x at 2"
    assert asked(verifier_from(lambda output: output), "x") == "x"
    assert asked(verifier_from(Unrelated().__call__), "x") == "x"


def test_a_function_may_say_of_itself_what_a_model_may() -> None:
    def judge(candidate: str) -> str:
        return candidate

    vars(judge).update(verify_version="7", verify_deterministic=True)
    assert (verifier_from(judge).version, verifier_from(judge).deterministic) == ("7", True)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (partial(free), "partial"),
        (Unrelated(), "Unrelated"),
        (print, "builtin_function_or_method"),
        (3, "int"),
    ],
)
def test_a_verifier_must_be_a_function(function: Any, said: str) -> None:
    with pytest.raises(VerifierError) as refused:
        verifier_from(function)
    assert f" {said}," in str(refused.value).partition("\n")[0]


# Tools.


def test_parameters_of_the_model_and_of_the_run_are_distinguished() -> None:
    def search(words: str, ctx: AgentContext, limit: int = 3, *more: str, deps: Any = None) -> None: ...

    told = [(one.name, one.annotation, one.what, one.variadic) for one in inspect_parameters(search)]
    assert told == [
        ("words", str, None, False),
        ("ctx", AgentContext, "agent_ctx", False),
        ("limit", int, None, False),
        ("more", str, None, True),
        ("deps", Any, "deps", False),
    ]
    assert [one.default for one in inspect_parameters(search)][2::2] == [3, None]


# Its version.


def test_a_model_may_set_version_and_determinism_of_its_verifier() -> None:
    class Versioned(AgentOutput):
        verify_version: ClassVar[str] = "2026-01"
        verify_deterministic: ClassVar[bool] = True

    assert (found(Versioned).version, found(Versioned).deterministic) == ("2026-01", True)


def version(body: str, head: str = "self") -> str:
    scope: dict[str, Any] = {"__name__": "author"}
    exec(f"class Output:\n    def verify({head}):\n        {body}\n", scope)
    return found(scope["Output"]).version


@pytest.mark.parametrize(
    ("body", "head"),
    [
        ("return self.score > 2", "self"),
        ("return self.scale > 1", "self"),
        ("return self.score >= 1", "self"),
        ("return [one > 2 for one in (self.score, 1)]", "self"),
        ("return self.score > 1", "self, least=1"),
        ("return self.score > 1", "self, *, least=1"),
    ],
)
def test_other_code_is_another_version(body: str, head: str) -> None:
    assert version("return self.score > 1") == version("return self.score > 1") != version(body, head)


def test_another_default_is_another_version() -> None:
    versions = {version("return least", head) for head in ("self, least=1", "self, least=2", "self, *, least=2")}
    assert len(versions) == 3
    # What has no text of its own would have another one in every process.
    assert version("return least", "self, least=object()") == version("return least", "self, least=object()")


def test_the_order_of_a_set_does_not_change_the_version() -> None:
    def verify(output: Any) -> bool:
        return output in {0, 8}

    def with_set(members: frozenset[int]) -> Callable[..., Any]:
        code = verify.__code__
        constants = tuple(members if isinstance(one, frozenset) else one for one in code.co_consts)
        return FunctionType(code.replace(co_consts=constants), {})

    one, other = frozenset([0, 8]), frozenset([8, 0])
    assert repr(one) != repr(other)
    assert verifier_from(with_set(one)).version == verifier_from(with_set(other)).version
    assert verifier_from(with_set(one)).version != verifier_from(with_set(frozenset([0, 9]))).version


def test_a_decorated_verifier_is_known_by_what_it_decorates() -> None:
    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return wrapper

    def made(body: str) -> Verifier:
        scope: dict[str, Any] = {"timed": timed, "__name__": "author"}
        exec(f"class Output:\n    @timed\n    def verify(self, attempt):\n        {body}\n", scope)
        return found(scope["Output"])

    assert asked(made("return attempt"), None) == 2
    assert made("return attempt").version == made("return attempt").version != made("return 7").version


def test_a_verifier_that_uses_what_is_not_there_yet_has_a_version_too() -> None:
    def made() -> tuple[str, str]:
        def verify(output: Any) -> Any:
            return output, later

        before = verifier_from(verify).version
        later = 1
        return before, verifier_from(verify).version

    before, after = made()
    assert before != after
