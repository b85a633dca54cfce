"""What must hold of a gated run that is over, however many processes died of it."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, select
from tests.faults import deaths_invariants as log_rules
from tests.faults.deaths_invariants import Seen, look
from tests.faults.deaths_requests import Asked
from tests.faults.gate_doomed import STORIES, TENANT
from tests.faults.gate_killing import redone
from tests.faults.gate_stories import ITEMS, Expected, Story, expected

from meruit.gate.run import AgentRun
from meruit.gate.store import read as agent_reading
from meruit.gate.store.submissions import commitment_content
from meruit.log.commitment import matches
from meruit.log.entries import GateEntry, read_entry
from meruit.store import tables
from meruit.store.store import Store

LOG_RULES = (
    log_rules.the_log_only_grew,
    log_rules.events_have_no_gap,
    log_rules.entries_of_a_contract_have_no_gap,
    log_rules.checkpoints_are_of_this_log,
)


class Death(NamedTuple):
    """Where a process died, and of which run."""

    what: str
    run: str
    place: str
    slept: bool = False
    """It only slept there, and went on when the run was over."""


class Ending(NamedTuple):
    """How the runs of a story ended, without times, ids and chance."""

    runs: dict[str, list[Any]]
    """By what is left of a run's id without the story's."""
    said: dict[str, list[list[Any]]]
    """What was answered to each submission."""


class Told(NamedTuple):
    """A story that is over, and all that was seen of it."""

    run_id: str
    story: Story
    deaths: Sequence[Death]
    done: Counter[str]
    """What happened outside the store, by run, kind and place."""
    heard: dict[str, set[str]]
    """By run and turn, the conversations that its model was asked to go on with."""


def runs_of(connection: Connection, run_id: str) -> list[AgentRun]:
    """The run, and its members where it is a team's."""
    found = [agent_reading.find(connection, TENANT, run_id)]
    return found + agent_reading.members(connection, TENANT, run_id)


def ending(connection: Connection, run_id: str) -> Ending:
    """Read it."""
    runs: dict[str, list[Any]] = {}
    said: dict[str, list[list[Any]]] = {}
    for run in runs_of(connection, run_id):
        state = msgspec.to_builtins(run.verification) | {"last_attempt_at": None}
        name = run.id.removeprefix(run_id)
        told = [run.status, run.ending, run.error, run.turn, run.result, msgspec.to_builtins(run.usage), state]
        runs[name] = [*map(str, told)]
        of = tables.submissions
        query = select(of).where(of.c.tenant == TENANT, of.c.run_id == run.id).order_by(of.c.number)
        left_out = ("run_id", "salt", "leaf", "at")
        said[name] = [
            [str(value) for key, value in row._mapping.items() if key not in left_out]
            for row in connection.execute(query)
        ]
    return Ending(runs, said)


def broken(connection: Connection, told: Told, undisturbed: Ending) -> Iterator[str]:
    """Every rule that does not hold, each with the story and its deaths."""
    where = f"{told.story.name} ({told.run_id}, died at {[death.what for death in told.deaths]})"
    rules = (_as_undisturbed(connection, told, undisturbed), _as_the_oracle_says(connection, told))
    for rule in (*rules, _done_no_more_than_deaths_allow(told), _one_conversation(told)):
        yield from (f"{where}: {problem}" for problem in rule)


def _as_undisturbed(connection: Connection, told: Told, undisturbed: Ending) -> Iterator[str]:
    """The same results, answers and usage as without a death."""
    found = ending(connection, told.run_id)
    if told.story.cancel is not None:
        # How far it had come is told by who ends it, and whoever takes over a run that nobody wants does not look.
        found, undisturbed = _standing(found), _standing(undisturbed)
    if found.runs[""][0] == undisturbed.runs[""][0] == "failed" and told.story.members:
        # A member that was not queued yet when another failed never is: what there is must be as it would have been.
        found = found._replace(runs={**found.runs, "": found.runs[""][:3]})
        runs = {**undisturbed.runs, "": undisturbed.runs[""][:3]}
        undisturbed = Ending({name: runs[name] for name in runs if name in found.runs}, undisturbed.said)
    for name, run in undisturbed.runs.items():
        if found.runs.get(name) != run:
            yield f"run {name!r} is {found.runs.get(name)}, undisturbed {run}"
        if found.said.get(name) != undisturbed.said[name]:
            yield f"to {name!r} was said {found.said.get(name)}, undisturbed {undisturbed.said[name]}"
    if found.runs.keys() != undisturbed.runs.keys():
        yield f"there are the runs {[*found.runs]}"


def _standing(ending: Ending) -> Ending:
    return ending._replace(runs={name: [run[0], *run[1:3], run[4], run[6]] for name, run in ending.runs.items()})


def _as_the_oracle_says(connection: Connection, told: Told) -> Iterator[str]:
    """Counted as the rules say, each submission once, each event once and none too few."""
    runs = {run.id: run for run in runs_of(connection, told.run_id)}
    members = [run for run in runs.values() if run.parent_id is not None]
    for run in runs.values():
        if run.agent == "team":
            used = sum(one.verification.attempts_used for one in members)
            if run.verification.attempts_used != used:
                yield f"the team used {run.verification.attempts_used} attempts, its members {used}"
            oracle = _of_team(members, run)
        else:
            oracle = expected(STORIES[run.request.query])
            yield from _submissions(connection, run, oracle)
        seen = (run.status.value, run.ending, run.verification.attempts_used)
        wanted = (oracle.status, oracle.ending, oracle.attempts_used)
        if seen != wanted:
            yield f"{run.id} is {seen}, the oracle says {wanted}"
        yield from _events(connection, run, oracle)


def _submissions(connection: Connection, run: AgentRun, oracle: Expected) -> Iterator[str]:
    of, log = tables.submissions, tables.log_leaves
    rows = connection.execute(
        select(of, log.c.body)
        .join(log, log.c.seq == of.c.leaf)
        .where(of.c.tenant == TENANT, of.c.run_id == run.id)
        .order_by(of.c.number)
    ).all()
    found = [(row.submission_id, row.number, row.outcome, bool(row.counted)) for row in rows]
    if found != oracle.submissions:
        yield f"{run.id} submitted {found}, the oracle says {oracle.submissions}"
    for row in rows:
        entry = read_entry(row.body)
        if not isinstance(entry, GateEntry) or (entry.run, entry.number) != (run.id, row.number):
            yield f"submission {row.number} of {run.id} has the entry {entry}"
        elif not matches(entry.submission, row.salt, commitment_content(row.candidate, row.said)):
            yield f"submission {row.number} of {run.id} is not what the log commits to"


def _events(connection: Connection, run: AgentRun, oracle: Expected) -> Iterator[str]:
    of = tables.events
    query = select(of.c.idempotency_key).where(of.c.tenant == TENANT, of.c.subject == run.id)
    keys = [key.removeprefix(f"{run.id}:") for key in connection.execute(query).scalars()]
    twice = [key for key, times in Counter(keys).items() if times > 1]
    if twice:
        yield f"{run.id} told twice of {twice}"
    # A wait is told of with a number, because a team may wait more than once.
    found = Counter(re.sub(r"^(waiting:.*):\d+$", r"\1", key) for key in keys)
    if run.agent == "team":
        # How often it waits depends on how its members' ends fall together; each wait but the last ends with one.
        waits = found.pop("waiting:members", 0)
        woken = [key for key in found if key.startswith("member:")]
        for key in woken:
            del found[key]
        if waits != len(woken):
            yield f"{run.id} waited {waits} times and was woken by {woken}"
    if found != oracle.events:
        yield f"{run.id} told too much: {found - oracle.events}, too little: {oracle.events - found}"


def _of_team(members: Sequence[AgentRun], run: AgentRun) -> Expected:
    oracle = Expected(attempts_used=run.verification.attempts_used)
    oracle.events.update(("queued", "started"))
    if all(member.status.value == "completed" for member in members) and len(members) == len(ITEMS):
        return oracle.end("completed")
    return oracle.end("failed", "member")


def _done_no_more_than_deaths_allow(told: Told) -> Iterator[str]:
    """Models, tools and verifiers were asked as often as without a death, and once more for what a death lost."""
    wanted = _wanted(told)
    lost = Counter(
        f"{death.run} {kind} {death.place}"
        for death in told.deaths
        if (kind := redone(death.what, slept=death.slept)) is not None
    )
    for key in wanted.keys() | told.done.keys():
        least = wanted[key]
        most = least + lost[key]
        if told.story.members or told.story.cancel == "verifying":
            # Others were at work when it died.
            most = least + len(told.deaths)
        elif not told.story.unreachable:
            least = most
        if not least <= told.done[key] <= most:
            yield f"{key} happened {told.done[key]} times, not {least} to {most}"


def _wanted(told: Told) -> Counter[str]:
    if not told.story.members:
        return Counter({f"{told.run_id} {key}": times for key, times in expected(told.story).done.items()})
    wanted: Counter[str] = Counter()
    for item in ITEMS:
        # What a team that failed never began did not happen.
        if any(key.startswith(f"{told.run_id}.{item} ") for key in told.done):
            done = expected(STORIES[f"{told.story.name}/{item}"]).done
            wanted.update({f"{told.run_id}.{item} {key}": times for key, times in done.items()})
    return wanted


def _one_conversation(told: Told) -> Iterator[str]:
    """Whoever goes on tells the model the same."""
    yield from (
        f"the model heard {len(said)} stories before {turn}" for turn, said in told.heard.items() if len(said) > 1
    )


def broken_log(store: Store, connection: Connection) -> list[str]:
    """What is wrong with the audit log as a whole; nothing of the gate's may be in it without its submission."""
    view = look(store, connection, Seen(), Asked(), [])
    of = tables.submissions
    known = {row.leaf for row in connection.execute(select(of.c.leaf))}
    strange = [seq for seq, (_, entry) in view.leaves.items() if isinstance(entry, GateEntry) and seq not in known]
    found = [f"the entry {seq} is of no submission" for seq in strange]
    return found + [problem for rule in LOG_RULES for problem in rule(view)]
