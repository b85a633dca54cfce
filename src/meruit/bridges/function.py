"""`gate(fn)`: any function that makes candidates, asked again with feedback until one is verified."""

import asyncio
import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import wraps
from typing import Any, NamedTuple, ParamSpec

from meruit.errors import MeruitError
from meruit.gate.gate import Gate, Passed, Rejected

FEEDBACK = "feedback"
P = ParamSpec("P")


# Any: what the verifier returns is the author's own type.
def gate(function: Callable[P, Any], output_type: Any = None, **settings: Any) -> Callable[P, Any]:
    """The function, held to its output's `verify`: it is called until a candidate passes, and answers the final result.

    It is given the last rejection as `feedback` where it takes one, None at first. The output type is what the
    function says that it returns, unless named. Settings are those of `Gate`: `max_attempts`, and `store` for a
    record, among them; every call is a run of its own. An async function stays async. Another one may be called
    inside an event loop too, which then stands still until it is done; write it with `async def` where it must not.
    Raises VerificationExhausted once the budget is used up, and CouldNotVerify where the verifier broke.
    """
    if "run_id" in settings:
        raise MeruitError(f"every call of {_name(function)} is a run of its own; for one that has a name, use Gate")
    loop = _RevisionLoop(function, output_type or _return_type(function), settings)
    # What can never work is told where it is written.
    loop.open()
    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def call_async(*positional: P.args, **named: P.kwargs) -> Any:
            return await loop.run(positional, named)

        return call_async

    @wraps(function)
    def call_sync(*positional: P.args, **named: P.kwargs) -> Any:
        return call_off_event_loop(loop.run_sync, positional, named)

    return call_sync


class _RevisionLoop(NamedTuple):
    function: Callable[..., Any]
    output_type: Any
    settings: dict[str, Any]

    def open(self) -> Gate:
        return Gate(self.output_type, **self.settings)

    async def run(self, positional: tuple[Any, ...], named: dict[str, Any]) -> Any:
        gate, feedback = self.open(), None
        while True:
            answer = await _submit(gate, self._call_function(positional, named, feedback))
            if isinstance(answer, Passed):
                return answer.result
            feedback = answer.feedback

    def run_sync(self, positional: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """The function stays in this thread, and may run a loop of its own; only the gate is run in ours."""
        gate, feedback = self.open(), None
        with asyncio.Runner() as runner:
            while True:
                answer = runner.run(_submit(gate, self._call_function(positional, named, feedback)))
                if isinstance(answer, Passed):
                    return answer.result
                feedback = answer.feedback

    def _call_function(self, positional: tuple[Any, ...], named: dict[str, Any], feedback: str | None) -> Any:
        takes_feedback = FEEDBACK in inspect.signature(self.function).parameters
        return self.function(*positional, **({**named, FEEDBACK: feedback} if takes_feedback else named))


async def _submit(gate: Gate, made: Any) -> Passed | Rejected:
    return await gate.submit(await made if inspect.isawaitable(made) else made)


# Any: whatever the function takes and returns.
def call_off_event_loop(function: Callable[..., Any], *positional: Any, **named: Any) -> Any:
    """Call what runs an event loop: here, or in a thread of its own where a loop runs here already."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return function(*positional, **named)
    with ThreadPoolExecutor(1, "meruit-gate") as thread:
        return thread.submit(copy_context().run, function, *positional, **named).result()


def _return_type(function: Callable[..., Any]) -> Any:
    try:
        found = inspect.signature(function, eval_str=True).return_annotation
    except NameError as unknown:
        raise MeruitError(
            f"what {_name(function)} returns cannot be looked up ({unknown}); name it: output_type=…"
        ) from None
    if found in (inspect.Signature.empty, None):
        raise MeruitError(f"{_name(function)} does not say what it returns; annotate it, or name output_type=…")
    return found


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", None) or repr(function)
