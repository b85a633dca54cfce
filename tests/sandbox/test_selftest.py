"""The box tried where it stands: what holds is said to hold, what does not is named, and what cannot run says why."""

import os
import platform
import sys
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from meruit.errors import Failure, SandboxError
from meruit.model.kinds import Tier
from meruit.sandbox import confine, jail, selftest
from meruit.sandbox.contract import SandboxResult
from meruit.sandbox.sandbox import Sandbox
from meruit.sandbox.selftest import EscapeTarget, Trial, describe_machine, examine

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the walls are Linux's")


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may need more time."""
    monkeypatch.setattr(selftest, "TIMEOUT_MS", 750)
    monkeypatch.setattr(selftest, "GRACE_S", 60)


@pytest.mark.parametrize("tier", Tier)
@pytest.mark.usefixtures("expr", "small", "full")
def test_where_a_tier_runs_its_walls_hold(tier: Tier) -> None:
    found = examine(tier)
    assert [trial for trial in found.trials if not trial.held] == []
    assert (found.tier, found.ready, found.reason) == (tier, True, "")
    assert found.engine
    assert found.trials[-1].name == selftest._HONEST[tier].name


def held(result: SandboxResult, world: EscapeTarget) -> bool:
    return True


@pytest.mark.parametrize(
    ("code", "holds", "why"),
    [
        ("1", lambda result, world: False, "a wall fell"),
        ("2", held, ""),
    ],
)
def test_a_wall_that_falls_is_named(
    monkeypatch: pytest.MonkeyPatch, code: str, holds: Callable[[SandboxResult, EscapeTarget], bool], why: str
) -> None:
    monkeypatch.setattr(selftest, "_HOSTILE", {Tier.EXPR: (Trial("a wall fell", code, holds),)})
    found = examine(Tier.EXPR)
    assert found.ready is not bool(why)
    assert why in found.reason
    assert [trial.held for trial in found.trials] == [not why, True]


def test_a_trial_that_learns_the_secret_has_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    # The error message names an index that is not in the map.
    monkeypatch.setattr(EscapeTarget, "context", lambda world: {"output": {"text": "a b c", "leak": world.secret}})
    monkeypatch.setattr(selftest, "_HOSTILE", {Tier.EXPR: (Trial("tells", "output[output.leak]", held),)})
    found = examine(Tier.EXPR)
    assert found.reason.endswith(": tells")


def test_a_trial_that_leaves_a_file_has_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    def leaves(_result: SandboxResult, world: EscapeTarget) -> bool:
        (world.folder / "left").touch()
        return True

    trials = (Trial("leaves", "1", leaves), Trial("finds", "1", held))
    monkeypatch.setattr(selftest, "_HOSTILE", {Tier.EXPR: trials})
    found = examine(Tier.EXPR)
    assert [trial.held for trial in found.trials] == [True, False, False]
    assert [trial.name for trial in found.trials if not trial.held] == ["finds", selftest._HONEST[Tier.EXPR].name]


def test_an_answer_that_comes_too_late_has_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "GRACE_S", -60)
    assert not examine(Tier.EXPR).ready


def test_a_tier_that_cannot_start_is_not_ready_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise SandboxError(Failure.SANDBOX_UNAVAILABLE, "no wall here")

    monkeypatch.setattr(jail, "Jail", refused)
    found = examine(Tier.PYTHON_FULL, 40)
    assert (found.ready, found.reason, found.trials) == (False, "no wall here", [])


@pytest.mark.parametrize("user", [0, 1234])
@pytest.mark.parametrize("version", [0, 6])
def test_the_machine_is_described_in_a_line(monkeypatch: pytest.MonkeyPatch, user: int, version: int) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(confine, "landlock_version", lambda: version)
    said = describe_machine()
    assert said.startswith(f"Linux {platform.release()} on {platform.machine()}, ")
    assert ("Landlock 6" if version else "no Landlock") in said
    assert ("user 1234" if user else "root") in said
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    assert "no Landlock" in describe_machine()


@pytest.mark.parametrize(("late", "ready"), [(1, True), (2, True), (3, False)])
def test_a_trial_that_was_only_late_gets_more_time(monkeypatch: pytest.MonkeyPatch, late: int, ready: bool) -> None:
    """A busy machine may be late; one that is late every time is not ready."""
    given: list[int] = []
    real = Sandbox.execute_sync

    def slow(sandbox: Sandbox, code: str, context: Mapping[str, Any], timeout_ms: int) -> SandboxResult:
        if code != "3":
            return real(sandbox, code, context, timeout_ms)
        given.append(timeout_ms)
        found = Failure.TIMEOUT if len(given) <= late else Failure.MEMORY
        return SandboxResult(None, {}, found)

    monkeypatch.setattr(Sandbox, "execute_sync", slow)
    trial = Trial("takes memory", "3", lambda result, _world: result.failure is Failure.MEMORY)
    monkeypatch.setattr(selftest, "_HOSTILE", {Tier.EXPR: (trial,)})
    assert examine(Tier.EXPR).ready is ready
    assert given == [750, 6_000, 48_000][: min(late + 1, 3)]
