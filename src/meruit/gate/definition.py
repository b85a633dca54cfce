"""The definition of an agent: its instructions, tools, output type and limits."""

import re
from collections.abc import Callable, Hashable, Iterable
from functools import cached_property, lru_cache
from typing import Any

import msgspec
from pydantic import BaseModel, PydanticUserError, RootModel, TypeAdapter, ValidationError

from meruit.documents.sanitize import describe
from meruit.errors import AgentError, NotJsonSerializable
from meruit.gate.candidate import is_lossless, to_json_value_and_hash
from meruit.gate.context import AgentContext
from meruit.gate.limits import ATTRIBUTE, GateLimits, budget, validate_count, validate_seconds
from meruit.gate.run import AgentRun
from meruit.gate.tools import Tool, tool
from meruit.gate.verifier import Verifier, check_fields, verifier_from, verifier_of, with_reject_on
from meruit.model.chat import ChatModel, ToolSpec

OUTPUT_TOOL = "agent_output"
"""Name of the tool with which the model submits its output, unless its agent sets another."""
_TOOL_NAME = re.compile("[A-Za-z0-9_-]{1,64}")
"""What chat endpoints accept."""
WRAPPED = "output"
"""Argument of the tool that holds an output that is not an object."""
DEFAULT_TURNS = 30
VERIFY_TIMEOUT_S = 600.0


class Candidate(msgspec.Struct, frozen=True):
    """An output that matches the schema."""

    output: Any
    plain: Any
    """As plain JSON."""
    hash: str

    @property
    def is_lossless(self) -> bool:
        """Whether an equal hash means an equal output: its JSON shows all of it."""
        return is_lossless(self.output, self.plain)


class SchemaMismatch(msgspec.Struct, frozen=True):
    """A payload that does not match the schema of the output."""

    problems: str


class OutputType:
    """The type of an agent's output, with its verifier."""

    def __init__(
        self,
        kind: Any,
        verify: Callable[..., Any] | None = None,
        reject_on: tuple[type[Exception], ...] = (),
        tool_name: str = OUTPUT_TOOL,
    ) -> None:
        self.kind = kind
        self.name = getattr(kind, "__name__", str(kind))
        self.tool_name = tool_name
        self.verifier = _find_verifier(kind, verify, reject_on)
        self._adapter = _adapter(kind)
        is_object = isinstance(kind, type) and issubclass(kind, BaseModel) and not issubclass(kind, RootModel)
        self._wraps = not is_object

    @cached_property
    def spec(self) -> ToolSpec:
        """The tool with which a model submits it."""
        schema = self._adapter.json_schema()
        # References resolve from the top level, where endpoints want an object.
        shared = {"$defs": schema.pop("$defs")} if "$defs" in schema else {}
        if self._wraps:
            schema = {"type": "object", "properties": {WRAPPED: schema}, "required": [WRAPPED]}
        elif "$ref" in schema:
            # A recursive model is one of its own definitions.
            schema = shared["$defs"][schema["$ref"].rpartition("/")[2]]
        schema = {**schema, **shared}
        return ToolSpec(self.tool_name, f"Hand in the final output ({self.name}). It is verified.", schema)

    @property
    def budget(self) -> Any:
        """The budget that the model class sets, if any."""
        return getattr(self.kind, ATTRIBUTE, None)

    def read(self, arguments: str) -> Candidate | SchemaMismatch:
        """Parse the arguments of a model's call of the tool."""
        try:
            if self._wraps:
                return self.candidate(_ARGUMENTS_ADAPTER.validate_json(arguments or "{}").get(WRAPPED))
            return self._to_candidate(self._adapter.validate_json(arguments or "{}"))
        except ValidationError as problem:
            return SchemaMismatch(describe_problems(problem))
        except Exception as crash:  # noqa: BLE001 - a validator of the author may raise any exception
            return SchemaMismatch(describe(crash))

    def candidate(self, payload: Any) -> Candidate | SchemaMismatch:
        """Validate what a host submits: an instance of the output type, or data that makes one."""
        try:
            return self._to_candidate(self._adapter.validate_python(payload))
        except ValidationError as problem:
            return SchemaMismatch(describe_problems(problem))
        except Exception as crash:  # noqa: BLE001 - as above
            return SchemaMismatch(describe(crash))

    def _to_candidate(self, output: Any) -> Candidate | SchemaMismatch:
        try:
            plain, hashed = to_json_value_and_hash(self.name, output)
        except NotJsonSerializable as problem:
            return SchemaMismatch(f"it is not JSON serializable: {problem}")
        return Candidate(output=output, plain=plain, hash=hashed)

    def restore(self, plain: Any) -> Any:
        """Build the output from its JSON."""
        return _read_back(self._adapter, plain)

    def final(self, plain: Any) -> Any:
        """Build the verifier's result from its JSON, as the return type of the verifier."""
        returns = self.kind if self.verifier is None else self.verifier.returns
        try:
            return _read_back(TypeAdapter(returns), plain)
        except Exception:  # noqa: BLE001 - a type that pydantic cannot build stays plain JSON
            return plain


# Any: a type of the author's own.
def _adapter(kind: Any) -> TypeAdapter[Any]:
    if not isinstance(kind, str | dict | BaseModel):
        try:
            return TypeAdapter(kind)
        except PydanticUserError:
            pass
    raise AgentError(f"{kind!r} is not a valid output type; pass the class itself, for example AgentOutput")


# Any: a value of the adapter's type.
def _read_back(adapter: TypeAdapter[Any], plain: Any) -> Any:
    """Build a value from its JSON, in which fields have their own names or their aliases."""
    return adapter.validate_json(msgspec.json.encode(plain), by_alias=True, by_name=True)


def _find_verifier(
    kind: Any, verify: Callable[..., Any] | None, reject_on: tuple[type[Exception], ...]
) -> Verifier | None:
    check_fields(kind)
    found = verifier_of(kind) if verify is None else verifier_from(verify)
    return found if found is None else with_reject_on(found, reject_on)


def output_type_of(
    kind: Any, verify: Callable[..., Any] | None = None, reject_on: tuple[type[Exception], ...] = ()
) -> OutputType:
    """Return the output type from a cache: a gate is opened for every run."""
    # A list of exceptions cannot be a key of the cache; it is refused with its own error.
    if isinstance(kind, Hashable) and isinstance(reject_on, tuple):
        return _build_output_type(kind, verify, reject_on)
    return OutputType(kind, verify, reject_on)


@lru_cache(maxsize=256)
def _build_output_type(
    kind: Hashable, verify: Callable[..., Any] | None, reject_on: tuple[type[Exception], ...]
) -> OutputType:
    return OutputType(kind, verify, reject_on)


_ARGUMENTS_ADAPTER: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])


def describe_problems(problem: ValidationError) -> str:
    """List the schema problems of a payload, one per line."""
    return "\n".join(f"{'.'.join(map(str, one['loc'])) or 'output'}: {one['msg']}" for one in problem.errors()[:10])


class AgentDefinition:
    """A model with instructions and tools, whose output counts once it is verified."""

    def __init__(  # noqa: PLR0913 - one for each setting of an author
        self,
        name: str,
        instructions: str = "",
        model: ChatModel | None = None,
        tools: Iterable[Callable[..., Any] | Tool] = (),
        output_type: Any = None,
        verify_max_attempts: int | None = None,
        *,
        verify: Callable[..., Any] | None = None,
        reject_on: tuple[type[Exception], ...] = (),
        verify_timeout_s: float = VERIFY_TIMEOUT_S,
        no_progress_limit: int = 3,
        schema_error_limit: int = 3,
        system_error_limit: int = 5,
        max_turns: int = DEFAULT_TURNS,
        context_type: type[AgentContext] = AgentContext,
        output_tool: str = OUTPUT_TOOL,
    ) -> None:
        if not name or len(name) > 200:
            raise AgentError(f"an agent's name has 1 to 200 characters, not {len(name)}")
        if not output_tool or not _TOOL_NAME.fullmatch(str(output_tool)):
            raise AgentError(
                f"output_tool of agent {name!r} is {output_tool!r}; a tool's name has 1 to 64 letters, digits, _ and -"
            )
        if model is not None and (isinstance(model, type) or not callable(getattr(model, "answer", None))):
            raise AgentError(
                f"the model of agent {name!r} is {model!r}, not a chat model; write model=ChatEndpoint(url, model)"
            )
        if verify is not None and output_type is None:
            raise AgentError(f"agent {name!r} has a verifier and no output_type for it to judge")
        self.name = name
        self.instructions = instructions
        self.model = model
        self.tools = {one.spec.name: one for one in map(tool, tools)}
        self.output = None if output_type is None else OutputType(output_type, verify, reject_on, output_tool)
        self.verify_max_attempts = verify_max_attempts
        self.verify_timeout_s = validate_seconds(verify_timeout_s, "verify_timeout_s")
        self.max_turns = validate_count(max_turns, "max_turns")
        self.context_type = context_type
        self._others = {
            "no_progress": validate_count(no_progress_limit, "no_progress_limit"),
            "schema_errors": validate_count(schema_error_limit, "schema_error_limit"),
            "system_errors": validate_count(system_error_limit, "system_error_limit"),
        }
        if output_tool in self.tools:
            raise AgentError(f"a tool of agent {name!r} is named {output_tool}, which is reserved for the output")
        # A wrong budget is an error at the definition, not at the first run.
        self.limits()

    def limits(self, max_attempts: int | None = None) -> GateLimits:
        """The limits of a run; the run's own number of attempts overrides the agent's."""
        own = None if self.output is None else self.output.budget
        return GateLimits(max_attempts=budget(max_attempts, self.verify_max_attempts, own), **self._others)

    def specs(self) -> list[ToolSpec]:
        """The specifications of the tools, for the model."""
        own = [one.spec for one in self.tools.values()]
        return own if self.output is None else [*own, self.output.spec]

    def context(self, run: AgentRun) -> AgentContext:
        """Build the context that a run starts with."""
        messages: list[dict[str, Any]] = [{"role": "user", "content": run.request.query}]
        if self.instructions:
            messages.insert(0, {"role": "system", "content": self.instructions})
        named = {name: value for name, value in run.request.payload.items() if name in self.context_type.model_fields}
        rest = {name: value for name, value in run.request.payload.items() if name not in named}
        return self.context_type.model_validate(
            {
                **named,
                "run_id": run.id,
                "agent": self.name,
                "query": run.request.query,
                "messages": messages,
                "payload": rest,
                "verification": run.verification,
            }
        )


def dump_context(context: AgentContext) -> dict[str, Any]:
    """Dump the fields of a context that are recorded: all that do not follow from the journal."""
    derived = {"run_id", "agent", "query", "messages", "turn", "verification"}
    return BaseModel.model_dump(context, mode="json", exclude=derived)
