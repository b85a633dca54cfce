"""What agents do in the crash matrix of the gate, and what must come of it, told without any code of the gate."""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

ATTEMPTS, NO_PROGRESS, SCHEMA_ERRORS, SYSTEM_ERRORS = 5, 3, 3, 5
"""What a run may use up, as the documentation says."""
SHORT_TURNS = 3
"""Turns of the agent that has few."""
ITEMS = {"a": (), "b": (), "c": ("a", "b")}
"""The plan of the team: the last builds on the other two."""


class Move(NamedTuple):
    """One call in an answer of the model."""

    kind: str
    """look, nap, ask, hope: tools. submit: a candidate. misfit: a payload that is none."""
    n: int = 0
    verdict: str = "reject"
    """What the verifier will say of a candidate: pass, reject, final."""
    breaks: int = 0
    """How often the verifier breaks before it says so."""
    doubts: str = ""
    """What the verifier does first: ask somebody who answers, or hope for an answer that does not come."""

    @property
    def hands_in(self) -> bool:
        """Whether it is the output's tool that is called."""
        return self.kind in ("submit", "misfit")


Turn = tuple[Move, ...]
"""An answer of the model; without a call, it is text."""


class Story(NamedTuple):
    """One run from its beginning to its end."""

    name: str
    turns: tuple[Turn, ...] = ()
    attempts: int = ATTEMPTS
    agent: str = "writer"
    cancel: str | None = None
    """Somebody wants it stopped: while it is `queued`, `waiting`, or `verifying` for the first time."""
    unreachable: bool = False
    """Whether the model cannot be reached when it is asked for the first time."""
    members: tuple[str, ...] = ()
    """Of a team: the stories of its members, in the order of the plan."""


@dataclass
class Expected:
    """How a run ends, whoever dies on the way."""

    status: str = ""
    ending: str | None = None
    attempts_used: int = 0
    submissions: list[tuple[str, int, str, bool]] = field(default_factory=list)
    """Each with its number, its outcome, and whether it was counted."""
    events: Counter[str] = field(default_factory=Counter)
    """By idempotency key, without the run's id."""
    done: Counter[str] = field(default_factory=Counter)
    """How often the model is asked in a turn, a tool is called, and a candidate is verified."""
    last: tuple[object, ...] | None = None
    identical: int = 0
    misfits: int = 0

    def end(self, status: str, ending: str | None = None) -> "Expected":
        """The last event is the run's own."""
        self.status, self.ending = status, ending
        self.events[status] += 1
        return self

    def submitted(self, name: str, outcome: str, *, counted: bool = False) -> None:
        """One more submission."""
        self.submissions.append((name, len(self.submissions) + 1, outcome, counted))


def expected(story: Story) -> Expected:
    """The rules of the gate as the documentation has them."""
    told = Expected(events=Counter(["queued"]))
    if story.cancel == "queued":
        return told.end("cancelled")
    told.events["started"] += 1
    turns = story.turns[:SHORT_TURNS] if story.agent == "hasty" else story.turns
    for turn, moves in enumerate(turns, 1):
        told.done[f"model {turn}"] += 1 + (story.unreachable and turn == 1)
        outputs = [(f"{turn}:{call_id(place)}", move) for place, move in enumerate(moves) if move.hands_in]
        if outputs and outputs[0][1].kind == "submit":
            # With the answer itself: the verification begins though a tool of the same turn waits.
            told.events[f"{outputs[0][0]}:started"] += 1
        if _called(told, story, turn, moves):
            return told.end("cancelled")
        # The first one counts; others in the same turn are not looked at.
        for name, move in outputs[:1]:
            over = _misfit(told, name) if move.kind == "misfit" else _candidate(told, story, turn, name, move)
            if over is not None:
                return told.end(*over)
    told.events[":exhausted"] += 1
    return told.end("failed", "turns")


def _called(told: Expected, story: Story, turn: int, moves: Turn) -> bool:
    """The tools of a turn; answers whether the run was stopped while it waited for one."""
    for place, move in enumerate(moves):
        if move.hands_in:
            continue
        told.done[f"tool {turn}.{place}"] += 1
        if move.kind in ("ask", "hope"):
            told.events[f"waiting:{turn}.{place}"] += 1
            if story.cancel == "waiting":
                return True
            told.events[f"resumed:{turn}.{place}"] += 1
    return False


Over = tuple[str, str | None]
"""How a run stands at its end, and why."""


def _misfit(told: Expected, name: str) -> Over | None:
    told.misfits += 1
    told.submitted(name, "schema_error")
    if told.misfits < SCHEMA_ERRORS:
        return None
    told.events[f"{name}:exhausted"] += 1
    return "failed", "schema_errors"


def _candidate(told: Expected, story: Story, turn: int, name: str, move: Move) -> Over | None:
    told.done[f"verify {turn}"] += min(move.breaks + 1, SYSTEM_ERRORS) + (move.doubts == "ask")
    if story.cancel == "verifying":
        return "cancelled", None
    if move.doubts and (over := _deferred(told, story, turn, move)) is not None:
        return over
    if move.breaks >= SYSTEM_ERRORS:
        return "failed", "system_error"
    told.misfits = 0
    if move.verdict == "pass":
        told.submitted(name, "passed")
        told.events[f"{name}:passed"] += 1
        return "completed", None
    counted = move[1:] != told.last
    told.last, told.identical = move[1:], 0 if counted else told.identical + 1
    told.attempts_used += counted
    told.submitted(name, "rejected", counted=counted)
    told.events[f"{name}:rejected"] += 1
    if counted:
        told.events[f"{name}:attempt_counted"] += 1
    ending = _ending(story, move, told)
    if ending is None:
        return None
    told.events[f"{name}:exhausted"] += 1
    return "failed", ending


def _deferred(told: Expected, story: Story, turn: int, move: Move) -> Over | None:
    told.events[f"waiting:verify:{turn}:0"] += 1
    if story.cancel == "waiting":
        told.done[f"verify {turn}"] = 1
        return "cancelled", None
    told.events[f"resumed:verify:{turn}:0"] += 1
    return ("failed", "system_error") if move.doubts == "hope" else None


def _ending(story: Story, move: Move, told: Expected) -> str | None:
    if move.verdict == "final":
        return "rejected_final"
    if told.attempts_used >= story.attempts:
        return "attempts"
    return "no_progress" if told.identical >= NO_PROGRESS else None


def call_id(place: int) -> str:
    """What a call is named by the model."""
    return f"call_{place}"


def _no(n: int, breaks: int = 0, doubts: str = "") -> Turn:
    return (Move("submit", n, "reject", breaks, doubts),)


def _yes(doubts: str = "") -> Turn:
    return (Move("submit", 99, "pass", 0, doubts),)


YES = _yes()
MISFIT: Turn = (Move("misfit"),)
LOOK, NAP, ASK, HOPE = Move("look", 7), Move("nap"), Move("ask"), Move("hope")


def told_stories() -> list[Story]:
    """Those that a person would ask for, each with a kind of step that the others do not have."""
    return [
        Story("twice no, then yes", (_no(1), _no(2), YES)),
        Story("out of attempts", (_no(1), _no(2), _no(1)), attempts=3),
        Story("no progress", (_no(1),) * 4),
        Story("never again", (_no(1), (Move("submit", 2, "final"),))),
        Story("misshapen", (MISFIT, _no(1), MISFIT, MISFIT, MISFIT)),
        Story("the verifier breaks", (_no(1, breaks=2), YES)),
        Story("the verifier is broken", (_no(1), (Move("submit", 2, "pass", SYSTEM_ERRORS),))),
        Story("tools", ((LOOK, LOOK), (NAP,), (LOOK, Move("submit", 1)), (), YES)),
        Story("two at once", ((Move("submit", 1), LOOK, Move("submit", 99, "pass")), YES)),
        Story("somebody is asked", ((ASK,), _no(1), (LOOK, ASK), YES)),
        Story("nobody answers", ((HOPE,), YES)),
        Story("the verifier asks", (_no(1, doubts="ask"), _no(2, breaks=1, doubts="ask"), _yes("ask"))),
        Story("nobody answers the verifier", (_no(1), _yes("hope"))),
        Story("stopped while its verifier waits", (_no(1), _yes("ask")), cancel="waiting"),
        Story("the model is away", (_no(1), YES), unreachable=True),
        Story("out of turns", (_no(1), _no(2), ()), agent="hasty"),
        Story("stopped before it began", (YES,), cancel="queued"),
        Story("stopped while it waits", (_no(1), (ASK,), YES), cancel="waiting"),
        Story("stopped while it is verified", (MISFIT, YES), cancel="verifying"),
        Story("team", agent="team", members=("tools", "twice no, then yes", "the verifier breaks")),
        Story("team with a failure", agent="team", members=("never again", "twice no, then yes", "tools")),
    ]


def made_up(seed: int) -> Iterator[Story]:
    """Stories by chance, without an end."""
    chance = random.Random(seed)
    while True:
        turns = tuple(_turn(chance) for _ in range(chance.randint(1, 5)))
        attempts = chance.choice((1, 2, 3, ATTEMPTS))
        yield Story(f"made up {chance.randrange(10**9)}", (*turns, YES), attempts, unreachable=chance.random() < 0.1)


def _turn(chance: random.Random) -> Turn:
    tools = [chance.choice((LOOK, NAP, ASK, HOPE)) for _ in range(chance.choice((0, 0, 0, 1, 2)))]
    submit = Move("submit", chance.randint(1, 3), chance.choice(("reject", "reject", "reject", "final")))
    shaky = Move("submit", chance.randint(1, 3), "reject", chance.randint(1, 3), chance.choice(("", "ask")))
    handed = chance.choice(((submit,), (submit,), (shaky,), (Move("misfit"),), (), (submit, submit)))
    return (*tools, *handed)
