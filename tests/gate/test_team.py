"""Teams: a plan, members behind their own gates, and a scheduler that sees only how they end."""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from pydantic import BaseModel

from meruit.errors import AgentError, BudgetError, RunCancelled, VerificationRejected
from meruit.events.store import outbox
from meruit.gate.agent import Agent
from meruit.gate.run import AgentRun, RunRequest, RunState
from meruit.gate.runner.engine import AgentRoster
from meruit.gate.runner.local import InlineEngine
from meruit.gate.store import read as agent_reading
from meruit.gate.store.runs import CancelRun, ClaimRun, QueueRun
from meruit.gate.team import MAX_ITEMS, Signal, Team, WorkItem, drive_team, signal_of
from meruit.model.time import to_micros
from meruit.store.store import Store
from meruit.testing import ScriptedModel, ScriptLine, submits


class Out(BaseModel):
    """Good from 10 on; 7 can never be mended."""

    n: int

    async def verify(self) -> dict[str, int]:
        if self.n < 10:
            raise VerificationRejected("too small", retryable=self.n != 7)
        return {"n": self.n}


def member(name: str, *script: ScriptLine) -> Agent:
    return Agent(name, "", ScriptedModel(script), output_type=Out)


ONE = member("one", submits(n=10))


class Place:
    """A tenant with a worker that takes what is due, one run after the other."""

    def __init__(self, store: Store, tenant: str) -> None:
        self.store, self.tenant = store, tenant

    def queue(self, team: Team, **more: Any) -> None:
        request = RunRequest("the whole", {"given": 1}, **more)
        self.store.recorder.write(QueueRun(self.tenant, "me", "t", team.name, request, team.limits(**more)))

    def due(self, names: Iterable[str]) -> list[agent_reading.DueRun]:
        now = to_micros(self.store.surroundings.clock())
        with self.store.database.reading() as connection:
            found = agent_reading.due_runs(connection, now, [*names], 200)
        return [one for one in found if one.tenant == self.tenant]

    def work(self, team: Team, *, turns: int = 100) -> AgentRun:
        """Take what is due, so many times at most."""
        engine = InlineEngine(self.store, AgentRoster([team]))

        async def all_of_it() -> None:
            for _ in range(turns):
                due = self.due(engine.agents.names)
                if not due:
                    return
                await engine.run(due[0])

        asyncio.run(all_of_it())
        return self.run("t")

    def run(self, run_id: str) -> AgentRun:
        with self.store.database.reading() as connection:
            return agent_reading.find(connection, self.tenant, run_id)

    def members(self) -> dict[str | None, AgentRun]:
        with self.store.database.reading() as connection:
            return {one.item: one for one in agent_reading.members(connection, self.tenant, "t")}

    def signals(self, team: Team) -> dict[str, Signal]:
        found = self.members()
        return {name: signal_of(found.get(name)) for name in team.plan}


@pytest.fixture
def here(shared: Store, tenant: str) -> Place:
    return Place(shared, tenant)


# Plans


@pytest.mark.parametrize(
    ("plan", "more", "named"),
    [
        ([], {}, f"'team'.* 0 .*{MAX_ITEMS}"),
        ([WorkItem(str(n), ONE, "") for n in range(MAX_ITEMS + 1)], {}, f"{MAX_ITEMS + 1}"),
        ([WorkItem("a/b", ONE, "")], {}, "'a/b'"),
        ([WorkItem("", ONE, "")], {}, "''"),
        ([WorkItem("a", ONE, ""), WorkItem("a", ONE, "again")], {}, "'team'.*'a'"),
        ([WorkItem("a", ONE, "", ("b",))], {}, "'a'.*'team'.*'b'"),
        ([WorkItem("a", ONE, "", "b")], {}, r"'a'.*needs=\('b',\)"),
        ([WorkItem("a", ONE, "", ("a",))], {}, r"'team', a\b"),
        (
            [WorkItem("a", ONE, "", ("b",)), WorkItem("b", ONE, "", ("a",)), WorkItem("c", ONE, "")],
            {},
            r"'team', a, b\b",
        ),
        ([WorkItem("a", ONE, "")], {"output": "b"}, "'team'.*'b'"),
    ],
)
def test_a_plan_that_is_not_valid_is_refused(plan: list[WorkItem], more: dict[str, Any], named: str) -> None:
    with pytest.raises(AgentError, match=named):
        Team("team", plan, **more)


@pytest.mark.parametrize("wrong", [0, True, 1001, "3"])
def test_a_budget_that_cannot_be_meant_is_refused(wrong: Any) -> None:
    plan = [WorkItem("a", ONE, "")]
    with pytest.raises(BudgetError, match="team"):
        Team("team", plan, verify_max_attempts=wrong)
    with pytest.raises(BudgetError, match="run"):
        Team("team", plan).limits(wrong)


def test_a_team_without_a_budget_has_as_much_as_all_its_members() -> None:
    plan = [WorkItem("a", ONE, "")]
    assert Team("team", plan).limits().max_attempts == 1000 * MAX_ITEMS
    assert Team("team", plan, verify_max_attempts=4).limits().max_attempts == 4
    assert Team("team", plan, verify_max_attempts=4).limits(2).max_attempts == 2


# Running


def chain(*scripts: list[ScriptLine], output: str | None = None, **more: Any) -> Team:
    """Items in a row, each of which needs the one before."""
    names = [f"i{number}" for number in range(len(scripts))]
    return Team(
        "team",
        [
            WorkItem(name, member(f"m{name}", *script), "of {query}: {results} {x}", tuple(names[number - 1 : number]))
            for number, (name, script) in enumerate(zip(names, scripts, strict=True))
        ],
        output=output,
        **more,
    )


def test_results_are_handed_on_and_become_the_teams(here: Place) -> None:
    team = chain([submits(n=10)], [submits(n=1), submits(n=11)], [submits(n=12)])
    here.queue(team)
    done = here.work(team)
    assert (done.status, done.result) == (RunState.COMPLETED, {"i0": {"n": 10}, "i1": {"n": 11}, "i2": {"n": 12}})
    assert done.usage.requests == 4
    asked = {item: run.request for item, run in here.members().items()}
    assert asked["i0"].query == "of the whole: {} {x}"
    assert asked["i2"].query == 'of the whole: {"i1":{"n":11}} {x}'
    assert asked["i2"].payload == {"given": 1}
    assert {run.id for run in here.members().values()} == {"t.i0", "t.i1", "t.i2"}
    # A member's rejection is the team's as well.
    assert done.verification.attempts_used == 1


def test_the_result_of_one_item_is_the_teams_where_it_says_so(here: Place) -> None:
    team = chain([submits(n=10)], [submits(n=11)], output="i0")
    here.queue(team)
    assert here.work(team).result == {"n": 10}


def test_the_scheduler_sees_success_revision_and_failure(here: Place) -> None:
    team = Team(
        "team",
        [
            WorkItem("good", member("g", submits(n=10)), ""),
            WorkItem("bad", member("b", submits(n=7)), ""),
            WorkItem("slow", member("s", submits(n=1), OSError("no model")), ""),
            WorkItem("next", member("n"), "", ("good",)),
        ],
    )
    here.queue(team)
    assert set(here.signals(team).values()) == {Signal.WAITING}
    here.work(team, turns=1)
    assert here.signals(team) == dict.fromkeys(team.plan, Signal.WAITING)
    claimed = here.store.recorder.write(ClaimRun(here.tenant, "t.good", "own", "w"))
    assert signal_of(claimed) is Signal.WORKING
    here.store.recorder.write(ClaimRun(here.tenant, "t.good", "gone", "w2", takeover=True))
    asyncio.run(
        InlineEngine(here.store, AgentRoster([team])).run(
            agent_reading.DueRun(here.tenant, "t.good", "g"), takeover=True
        )
    )
    waiting = here.work(team)
    assert here.signals(team) == {
        "good": Signal.SUCCESS,
        "bad": Signal.FAILURE,
        "slow": Signal.REVISION,
        "next": Signal.WAITING,
    }
    # What another member has begun is finished first; nothing new is begun.
    assert (waiting.status, waiting.waiting_for) == (RunState.WAITING, "members")
    here.store.recorder.write(CancelRun(here.tenant, "t.slow"))
    failed = here.work(team)
    assert (failed.status, failed.ending) == (RunState.FAILED, "member")
    assert (failed.error or "").startswith("bad: too small")
    assert here.members().keys() == {"good", "bad", "slow"}


def test_rejections_of_all_members_use_the_budget_of_their_team(here: Place) -> None:
    team = chain([submits(n=1), submits(n=10)], [submits(n=1), submits(n=2), submits(n=10)], verify_max_attempts=3)
    here.queue(team)
    failed = here.work(team)
    assert (failed.status, failed.verification.attempts_used) == (RunState.FAILED, 3)
    second = here.members()["i1"]
    assert (second.ending, second.verification.attempts_used) == ("team_budget", 2)
    here_too = Place(here.store, f"{here.tenant}x")
    here_too.queue(team, max_attempts=4)
    assert here_too.work(team).status is RunState.COMPLETED


def test_a_team_that_is_cancelled_ends_with_its_members(here: Place) -> None:
    team = Team("team", [WorkItem(name, member(name, submits(n=10)), "") for name in "ab"])
    here.queue(team)
    here.work(team, turns=2)
    here.store.recorder.write(CancelRun(here.tenant, "t"))
    assert here.work(team).status is RunState.CANCELLED
    states = {item: run.status for item, run in here.members().items()}
    assert states == {"a": RunState.COMPLETED, "b": RunState.CANCELLED}


def test_a_team_that_is_cancelled_while_it_is_driven_begins_nothing_more(here: Place) -> None:
    team = chain([submits(n=10)])
    here.queue(team)
    run = here.store.recorder.write(ClaimRun(here.tenant, "t", "own", "w"))
    here.store.recorder.write(CancelRun(here.tenant, "t"))
    with pytest.raises(RunCancelled):
        asyncio.run(drive_team(team, here.store, here.tenant, run))
    assert here.members() == {}


def test_a_team_that_is_driven_twice_queues_each_member_once(here: Place) -> None:
    team = Team("team", [WorkItem(name, member(name, submits(n=10)), "") for name in "ab"])
    here.queue(team)
    run = here.run("t")

    async def twice() -> None:
        await asyncio.gather(*(drive_team(team, here.store, here.tenant, run) for _ in range(2)))

    asyncio.run(twice())
    assert here.members().keys() == {"a", "b"}
    assert here.work(team).status is RunState.COMPLETED
    with here.store.database.reading() as connection:
        events = [one.event for one in outbox.events_after(connection, 0, tenant=here.tenant)]
    assert len({one.idempotency_key for one in events}) == len(events)
    assert sum(one.event_type == "agent_run.completed" for one in events) == 3


def test_a_query_may_contain_braces_and_placeholders(here: Place) -> None:
    team = Team("team", [WorkItem("a", member("a", submits(n=10)), "{query} {0} {results}")])
    request = RunRequest("say {results} {}")
    here.store.recorder.write(QueueRun(here.tenant, "me", "t", "team", request, team.limits()))
    here.work(team)
    asked = here.members()["a"].request.query
    assert asked == "say {results} {} {0} {}"
