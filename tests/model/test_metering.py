"""What a run says it did at its provider: absence is no zero."""

from datetime import UTC, datetime

import msgspec
import pytest
from pydantic import ValidationError

from meruit.errors import FetchError, FetchFailed, MeruitError
from meruit.model.metering import CallState, MeteredCall, MeteredRun, MeteredStep, UsageAccount
from meruit.model.usage import Tokens, UsageRun, UsageStep

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
ONE, TWO = Tokens(10, 1, 1), Tokens(20, 2, 1)


def call(tokens: Tokens | None = None, state: CallState = CallState.OK, model: str = "") -> MeteredCall:
    return MeteredCall(NOW, model, tokens, state)


def run(*steps: MeteredStep, declares_no_usage: bool = False) -> MeteredRun:
    return MeteredRun("r1", "crew", ended_at=NOW, steps=steps, declares_no_usage=declares_no_usage)


@pytest.mark.parametrize(
    ("calls", "local"),
    [
        ((call(ONE), call(TWO)), Tokens(30, 3, 2)),
        ((call(ONE), call()), None),
        ((call(ONE), call(state=CallState.ABORTED)), None),
        ((call(ONE), call(state=CallState.FAILED)), ONE),
        ((call(ONE), call(TWO, CallState.ABORTED)), Tokens(30, 3, 2)),
        ((call(state=CallState.FAILED),), Tokens(0, 0, 0, 0, 0, 0)),
    ],
    ids=["all say", "one is silent", "one broken off", "one refused", "broken off, and told", "all refused"],
)
def test_a_step_used_what_its_calls_say_if_all_do(calls: tuple[MeteredCall, ...], local: Tokens | None) -> None:
    assert MeteredStep("a", calls=calls).local == local


def test_a_step_without_calls_used_what_it_says_itself() -> None:
    assert MeteredStep("a", tokens=ONE).local == ONE
    assert MeteredStep("a").local is None
    # Calls that are listed are the finer word.
    assert MeteredStep("a", tokens=ONE, calls=(call(TWO),)).local == TWO


def test_a_run_used_what_its_steps_say_if_all_do_that_may_have_used_something() -> None:
    told, silent = MeteredStep("a", tokens=ONE), MeteredStep("b")
    tokenless = MeteredStep("c", expects_usage=False)
    assert run(told, tokenless).local == ONE
    assert run(told, silent).local is None
    assert run().local is None
    assert run(declares_no_usage=True).local == Tokens(0, 0, 0, 0, 0, 0)


def test_what_is_judged_is_what_was_recorded() -> None:
    step = MeteredStep("a", succeeded=True, calls=(call(ONE, model="o1"), call(TWO, model="gpt-4o"), call(ONE)))
    judged = run(step, MeteredStep("b", expects_usage=False), declares_no_usage=True).for_judging
    assert judged == UsageRun(
        NOW,
        (
            UsageStep("a", None, succeeded=True, local=Tokens(40, 4, 3), models=("gpt-4o", "o1")),
            UsageStep("b", expects_usage=False),
        ),
        declares_no_usage=True,
    )


@pytest.mark.parametrize(
    ("calls", "by_model"),
    [
        (
            (call(ONE, model="o1"), call(TWO, model="gpt-4o"), call(ONE, model="o1")),
            {"o1": Tokens(20, 2, 2), "gpt-4o": TWO},
        ),
        ((call(ONE, model="o1"), call(TWO)), {}),
        ((call(ONE, model="o1"), call(model="gpt-4o")), {}),
        ((call(ONE, model="o1"), call(model="gpt-4o", state=CallState.ABORTED)), {}),
        ((call(ONE, model="o1"), call(state=CallState.FAILED)), {"o1": ONE}),
        ((call(ONE, model="o1"), call(Tokens(0, 0, 1), CallState.FAILED)), {"o1": ONE}),
        ((call(ONE, CallState.FAILED), call(ONE, model="o1")), {}),
        ((), {}),
    ],
    ids=[
        "all say",
        "one without a model",
        "one without tokens",
        "one broken off",
        "one refused",
        "one used nothing",
        "refused, and yet used",
        "none",
    ],
)
def test_a_step_says_what_it_used_of_each_model_if_all_its_calls_do(
    calls: tuple[MeteredCall, ...], by_model: dict[str, Tokens]
) -> None:
    (judged,) = run(MeteredStep("a", calls=calls, tokens=ONE)).for_judging.steps
    assert judged.by_model == by_model


def test_calls_of_all_steps_stand_in_order() -> None:
    recorded = run(MeteredStep("a", calls=(call(ONE),)), MeteredStep("b"), MeteredStep("c", calls=(call(TWO), call())))
    assert [one.tokens for one in recorded.calls] == [ONE, TWO, None]


def test_a_record_is_read_back_as_it_was_written() -> None:
    recorded = run(MeteredStep("a", NOW, calls=(call(ONE),)))
    assert MeteredRun.from_json(recorded.to_json()) == recorded


@pytest.mark.parametrize(
    "written",
    [
        b'{"id": "", "framework": "crew"}',
        b'{"id": "r1", "framework": "crew", "ended_at": "2026-03-01T12:00:00"}',
        b'{"id": "r1", "framework": "crew", "score": 1.5}',
        b'{"id": "r1", "framework": "crew", "steps": [{"id": "a", "tokens": {"input": -1}}]}',
    ],
    ids=["no name", "naive time", "score above one", "negative"],
)
def test_what_cannot_be_meant_is_refused(written: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        MeteredRun.from_json(written)


def test_a_failed_fetch_says_its_kind_and_when() -> None:
    failed = FetchFailed(FetchError.AUTH, "the key lacks api.usage.read", at=NOW)
    assert isinstance(failed, MeruitError)
    assert (failed.kind, failed.at, str(failed)) == (FetchError.AUTH, NOW, "the key lacks api.usage.read")
    assert FetchFailed(FetchError.TIMEOUT, "no answer").at is None


def test_an_account_takes_no_field_that_it_does_not_know() -> None:
    with pytest.raises(ValidationError, match="secret"):
        UsageAccount.model_validate({"provider": "openai", "secret": "x"})
