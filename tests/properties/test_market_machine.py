"""Contracts and their money do what a plain model says, whatever two clients ask for, repeat or leave unfinished."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from fractions import Fraction
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import select
from tests.contracts.trading import BEGINNING, COPY, ENGINE, GOOD, LEAKED, REFERENCE, WEAK, Hands, Trading, sent
from tests.postgres import NewDatabase
from tests.sampling import is_in_full

from meruit.contracts.invariants import find_violations
from meruit.contracts.store import ledger
from meruit.contracts.store.read import ContractSnapshot
from meruit.contracts.transitions import AwardContract, ExpireContracts
from meruit.errors import BadAmount, WrongState
from meruit.outcomes.store.read import criteria_body, criteria_from
from meruit.outcomes.store.write import AddVersions, NewVersion
from meruit.store import tables
from meruit.store.idempotency import IdempotentReplay
from meruit.store.location import Location
from meruit.store.recorder import Write
from meruit.store.store import ClockAndEntropy, Store

EXAMPLES, POSTGRES_EXAMPLES = (25, 5) if is_in_full() else (12, 3)
STEPS = 30
MAX_CONTRACTS = 4
SHORT_H, LONG_H, WINDOW_H = 1, 168, 24
CPC = 50_000
FEE_PERCENT = 15
ON_REQUEST, TIMED = "on_request", "timed"
QUICK = {"duration_ms": 100}
AMOUNTS, MOST = (0, 1, 10, 30, 70_000, 90_000, 100_000), 110_000
"""In millionths; the most that is held is 100,000."""

OUTPUTS = {
    "good": (GOOD, QUICK),
    "weak": (WEAK, QUICK),
    "cheating": (LEAKED, QUICK),
    "copied": (COPY, QUICK),
    "unmeasured": (GOOD, {}),
}
"""What is handed in, and what is told of the run."""
_NUMBERS = count()


# The model: what contracts do, said once more, in the plainest way.


class Refused(Exception):
    """The model does not allow it."""

    def __init__(self, code: str) -> None:
        self.code = code
        super().__init__(code)


@dataclass(frozen=True)
class Opinion:
    """What a verdict comes to."""

    success: bool
    held: bool
    objected: bool
    """Whether governance holds it."""
    total: int
    """What is paid for it once nothing holds it."""


def opinion(kind: str, output: str, *, governed: bool = True) -> Opinion:
    """What is thought of an output; a later verdict is not governed again."""
    cap = 50_000 if kind == TIMED else 40_000
    objected = governed and output in ("cheating", "copied")
    if kind == "plain":
        # Nothing passes by default; completion is paid all the same.
        return Opinion(False, objected, objected, CPC)
    timely = 10_000 if kind == TIMED and output != "unmeasured" else 0
    if output == "weak":
        return Opinion(False, False, False, CPC + min(30_000 + timely, cap) - 10_000)
    unmeasured = kind == TIMED and output == "unmeasured"
    # What may still change is no success yet.
    return Opinion(not unmeasured, objected or unmeasured, objected, CPC + min(50_000 + timely, cap))


@dataclass
class Model:
    """One contract."""

    kind: str
    deadline: datetime
    hold: int
    state: str = "awarded"
    escrow: str = "held"
    handed_in: str | None = None
    opinion: Opinion | None = None
    version: int = 0
    paid_version: int = 0
    settlements: int = 0
    paid: int = 0
    """By the live settlement."""
    settled_at: datetime | None = None
    disputes: int = 0
    disputed_from: str = ""
    moves: dict[tuple[str, int], str] = field(default_factory=dict)
    """What was done, and by which words: the same again is no second time."""
    told: list[str] = field(default_factory=lambda: ["contract.awarded"])

    def _only_from(self, *states: str) -> None:
        if self.state not in states:
            raise Refused("wrong_state")

    def _only_held(self) -> None:
        if self.escrow != "held":
            raise Refused("wrong_state")

    def start(self, now: datetime) -> None:
        if ("start", 0) in self.moves:
            return
        self._only_from("awarded")
        if now > self.deadline:
            raise Refused("deadline_passed")
        self.state = "executing"
        self.moves["start", 0] = ""
        self.told.append("contract.started")

    def complete(self, output: str, now: datetime) -> None:
        if self.handed_in is not None:
            if self.handed_in != output:
                raise Refused("already_completed")
            return
        self._only_from("awarded", "executing")
        if now > self.deadline:
            raise Refused("deadline_passed")
        self.handed_in, self.version, self.opinion = output, 1, opinion(self.kind, output)
        self.told += ["contract.completed", "outcome.recorded"]
        if self.opinion.held:
            self.state = "verification_pending"
            self.told.append("contract.held")
            return
        self._verified()
        if self.kind != ON_REQUEST:
            self._pay(now)

    def _verified(self) -> None:
        assert self.opinion is not None
        self.state = "verified" if self.opinion.success else "failed"
        self.told.append("contract.verified" if self.opinion.success else "contract.failed")

    def _pay(self, now: datetime) -> None:
        assert self.opinion is not None
        if self.version <= self.paid_version:
            raise Refused("already_settled")
        self.settlements += 1
        self.state, self.escrow, self.settled_at = "settled", "paid", now
        self.paid, self.paid_version = self.opinion.total, self.version
        self.told.append("contract.settled")

    def settle(self, now: datetime) -> None:
        if self.state == "settled":
            return
        self._only_from("verification_pending", "verified", "failed")
        self._only_held()
        assert self.opinion is not None
        if self.opinion.held:
            raise Refused("on_hold")
        if self.state == "verification_pending":
            self._verified()
        self._pay(now)

    def release(self, reason: str, now: datetime) -> None:
        if self.state != "verification_pending" or self.escrow != "held":
            return self._again("release", self.settlements, reason)
        assert self.opinion is not None
        if self.opinion.objected:
            self.version += 1
            self.opinion = replace(self.opinion, objected=False, held=False)
            self.told.append("outcome.rescored")
        self.moves["release", self.settlements + 1] = reason
        self.told.append("contract.released")
        self._verified()
        return self._pay(now)

    def void(self, reason: str) -> None:
        unpaid = ("awarded", "executing", "verification_pending", "verified", "failed")
        if self.state not in unpaid or self.escrow != "held":
            return self._again("void", 0, reason)
        return self._call_off(reason)

    def _call_off(self, mark: str) -> None:
        self.state, self.escrow = "failed", "released"
        self.moves["void", 0] = mark
        self.told.append("contract.voided")

    def reverse(self, reason: str) -> None:
        if self.state != "settled":
            return self._again("reverse", self.settlements, reason)
        return self._take_back(reason)

    def _take_back(self, mark: str) -> None:
        self.state, self.escrow, self.paid, self.settled_at = "verification_pending", "held", 0, None
        self.moves["reverse", self.settlements] = mark
        self.told.append("contract.reversed")

    def dispute(self, reason: str, now: datetime) -> None:
        try:
            self._may_be_disputed(now)
        except Refused:
            if self.moves.get(("dispute", self.disputes)) == reason:
                return
            raise
        self.disputed_from, self.state = self.state, "disputed"
        self.escrow = "frozen" if self.escrow == "held" else self.escrow
        self.disputes = self.settlements + 1
        self.moves["dispute", self.disputes] = reason
        self.told.append("contract.disputed")

    def _may_be_disputed(self, now: datetime) -> None:
        self._only_from("verification_pending", "verified", "failed", "settled")
        if self.escrow == "released":
            raise Refused("wrong_state")
        if self.disputes > self.settlements:
            raise Refused("already_disputed")
        if self.settled_at is not None and now > self.settled_at + timedelta(hours=WINDOW_H):
            raise Refused("dispute_window_closed")

    def resolve(self, decision: str, reason: str) -> None:
        mark = f"{decision}/{reason}"
        if self.state != "disputed":
            return self._again("resolve", self.disputes, mark)
        if decision == "take back" and self.escrow != "paid":
            raise Refused("nothing_paid")
        self.moves["resolve", self.disputes] = mark
        self.state, self.escrow = self.disputed_from, "held" if self.escrow == "frozen" else self.escrow
        if decision in ("take back", "undo") and self.escrow == "paid":
            self._take_back(mark)
        if decision == "undo":
            self._call_off(mark)
        self.told.append("contract.resolved")
        return None

    def adjust(self, micros: int, reason: str, now: datetime) -> None:
        mark = f"adjust/{micros}/{reason}"
        if self.state != "disputed":
            return self._again("resolve", self.disputes, mark)
        if micros > (self.paid if self.escrow == "paid" else self.hold):
            raise Refused("above_paid" if self.escrow == "paid" else "above_held")
        self.moves["resolve", self.disputes] = mark
        if self.escrow == "paid":
            self._take_back(mark)
        if self.version <= self.paid_version:
            self.version += 1
            self.told.append("outcome.rescored")
        self.settlements += 1
        self.state, self.escrow, self.settled_at = "settled", "paid", now
        self.paid, self.paid_version = micros, self.version
        self.told += ["contract.settled", "contract.resolved"]
        return None

    def rescore(self, output: str) -> None:
        self.version += 1
        self.opinion = opinion(self.kind, output, governed=False)
        self.told.append("outcome.rescored")

    def expire(self, now: datetime) -> bool:
        due = self.state in ("awarded", "executing") and now > self.deadline
        if due:
            self.state, self.escrow = "expired", "released"
            self.told.append("contract.expired")
        return due

    def _again(self, operation: str, number: int, mark: str) -> None:
        if self.moves.get((operation, number)) != mark:
            raise Refused("wrong_state")

    @property
    def payout(self) -> int:
        # A fee of half a millionth goes to the even one.
        return self.paid - round(Fraction(self.paid * FEE_PERCENT, 100))


# The machine.

places = st.integers(0, MAX_CONTRACTS - 1)
clients = st.integers(0, 1)
reasons = st.sampled_from(["x", "y"])


class Asked(NamedTuple):
    """A request that can be made again, by either client."""

    contract_id: str
    # Any: each move has an answer of its own kind.
    make: Callable[[Trading], Write[Any]]
    expected: Callable[[Model], None]
    """What it does to the model, or raises."""
    answer: bytes | None = None
    """None when it was refused."""


class Machine(RuleBasedStateMachine):
    """Two clients of one store, and the model that knows what each is told."""

    def __init__(self, location: Location) -> None:
        super().__init__()
        self.location = location
        self.tenant = f"tenant-{next(_NUMBERS)}"
        self.hands = Hands()
        self.parties = [self._opened() for _ in range(2)]
        self.works: dict[str, str] = {}
        self.models: dict[str, Model] = {}
        self.keys = count()
        self.last: Asked | None = None

    def _opened(self) -> Trading:
        return Trading(Store.open(self.location, ClockAndEntropy(clock=self.hands)), self.tenant)

    def teardown(self) -> None:
        # On a server's database the next example must find nothing that is due.
        self.hands.pass_h(LONG_H + SHORT_H)
        while self.parties[0].store.recorder.write(ExpireContracts("clock")):
            pass
        for party in self.parties:
            party.store.close()

    @initialize()
    def publish(self) -> None:
        kinds = ("usual", ON_REQUEST, "brief", TIMED, "plain")
        self.works = {kind: self.parties[0].publish(kind).id for kind in kinds}
        self.award(0, "usual")

    # One move: the model says first what is to come.

    def _ask(
        self,
        client: int,
        contract_id: str,
        make: Callable[[Trading, str], Write[Any]],
        expected: Callable[[Model], None],
    ) -> None:
        key = f"key {next(self.keys)}"
        self._asked(client, Asked(contract_id, lambda party: make(party, key), expected))

    def _asked(self, client: int, asked: Asked) -> None:
        model, party = self.models[asked.contract_id], self.parties[client]
        # On a copy: whoever is refused has changed nothing.
        after = replace(model, moves=dict(model.moves), told=[*model.told])
        code = _refusal(asked.expected, after)
        if code:
            with pytest.raises((WrongState, BadAmount)) as refused:
                party.store.recorder.write(asked.make(party))
            assert refused.value.code == code
            self.last = asked
            return
        self.models[asked.contract_id] = after
        answer = party.store.recorder.write(asked.make(party))
        assert isinstance(answer, ContractSnapshot), answer
        assert (str(answer.contract.state), str(answer.contract.escrow)) == (after.state, after.escrow)
        assert answer.contract.total_micros == after.paid
        assert (answer.bill is None) == (after.escrow != "paid")
        self.last = asked._replace(answer=sent(answer))

    def _chosen(self, place: int) -> str:
        ids = [*self.models]
        return ids[place % len(ids)]

    @precondition(lambda self: len(self.models) < MAX_CONTRACTS)
    @rule(client=clients, kind=st.sampled_from(["usual", ON_REQUEST, "brief", TIMED, "plain"]))
    def award(self, client: int, kind: str) -> None:
        contract_id, agent = f"con_{self.tenant}_{len(self.models)}", f"agent {len(self.models)}"
        bonus = {"plain": 0, TIMED: 50_000}.get(kind, 40_000)
        deadline = self.hands.now + timedelta(hours=SHORT_H if kind == "brief" else LONG_H)
        self.models[contract_id] = Model(kind, deadline, CPC + bonus)
        self._ask(
            client,
            contract_id,
            lambda party, key: party.once(AwardContract(party.request(key), contract_id, self.works[kind], agent), key),
            lambda _model: None,
        )

    def _move(self, name: str, client: int, place: int, expected: Callable[[Model], None], reason: str = "x") -> None:
        contract_id = self._chosen(place)
        self._ask(client, contract_id, lambda party, key: party.move(name, contract_id, reason, key), expected)

    @rule(client=clients, place=places)
    def start(self, client: int, place: int) -> None:
        self._move("start", client, place, lambda model: model.start(self.hands.now))

    @rule(client=clients, place=places, output=st.sampled_from([*OUTPUTS]))
    def complete(self, client: int, place: int, output: str) -> None:
        contract_id = self._chosen(place)
        text, metadata = OUTPUTS[output]
        self._ask(
            client,
            contract_id,
            lambda party, key: party.handed_in(contract_id, text, metadata, key),
            lambda model: model.complete(output, self.hands.now),
        )

    @rule(client=clients, place=places)
    def settle(self, client: int, place: int) -> None:
        self._move("settle", client, place, lambda model: model.settle(self.hands.now))

    @rule(client=clients, place=places, reason=reasons)
    def release(self, client: int, place: int, reason: str) -> None:
        self._move("release", client, place, lambda model: model.release(reason, self.hands.now), reason)

    @rule(client=clients, place=places, reason=reasons)
    def void(self, client: int, place: int, reason: str) -> None:
        self._move("void", client, place, lambda model: model.void(reason), reason)

    @rule(client=clients, place=places, reason=reasons)
    def reverse(self, client: int, place: int, reason: str) -> None:
        self._move("reverse", client, place, lambda model: model.reverse(reason), reason)

    @rule(client=clients, place=places, reason=reasons)
    def dispute(self, client: int, place: int, reason: str) -> None:
        self._move("dispute", client, place, lambda model: model.dispute(reason, self.hands.now), reason)

    @rule(client=clients, place=places, reason=reasons, decision=st.sampled_from(["uphold", "take back", "undo"]))
    def resolve(self, client: int, place: int, reason: str, decision: str) -> None:
        self._move(decision, client, place, lambda model: model.resolve(decision, reason), reason)

    @rule(client=clients, place=places, reason=reasons, micros=st.sampled_from(AMOUNTS) | st.integers(0, MOST))
    def adjust(self, client: int, place: int, reason: str, micros: int) -> None:
        """Settle a dispute on an amount, whatever was held or paid; some end on half a millionth of a fee."""
        contract_id = self._chosen(place)
        self._ask(
            client,
            contract_id,
            lambda party, key: party.adjust(contract_id, micros, reason, key),
            lambda model: model.adjust(micros, reason, self.hands.now),
        )

    @precondition(lambda self: any(model.handed_in for model in self.models.values()))
    @rule(client=clients, place=places, output=st.sampled_from(["good", "weak", "unmeasured"]))
    def rescore(self, client: int, place: int, output: str) -> None:
        """Judge it again, with another result perhaps."""
        ids = [name for name, model in self.models.items() if model.handed_in]
        contract_id = ids[place % len(ids)]
        model, party = self.models[contract_id], self.parties[client]
        version = _another(party, contract_id, model.version, output)
        (done,) = party.store.recorder.write(version)
        model.rescore(output)
        assert done.version == model.version
        # The one that comes too late changes nothing.
        assert self.parties[1 - client].store.recorder.write(version) == []

    @rule(client=clients)
    def expire(self, client: int) -> None:
        due = sum(model.expire(self.hands.now) for model in self.models.values())
        assert self.parties[client].store.recorder.write(ExpireContracts("clock")) == due

    @rule(hours=st.sampled_from([SHORT_H, WINDOW_H, WINDOW_H + 1, LONG_H]))
    def let_pass(self, hours: int) -> None:
        self.hands.pass_h(hours)

    @precondition(lambda self: self.last is not None)
    @rule(client=clients)
    def retry(self, client: int) -> None:
        """The last request once more, by either client, is answered as it was."""
        assert self.last is not None
        if self.last.answer is None:
            # Nothing is kept of what was refused: it is asked anew, and time may have passed.
            return self._asked(client, self.last)
        party = self.parties[client]
        assert party.store.recorder.write(self.last.make(party)) == IdempotentReplay(200, self.last.answer)
        return None

    @rule(client=clients)
    def crash(self, client: int) -> None:
        """Its connections go before it could say goodbye; another process takes its place."""
        gone = self.parties[client].store
        gone.database.close()
        gone.recorder.close()
        gone.database.close()
        self.parties[client] = self._opened()

    # What holds after every step.

    @invariant()
    def the_books_are_sound_and_say_what_the_model_says(self) -> None:
        with self.parties[0].store.database.reading() as connection:
            books = ledger.books(connection, self.tenant)
        assert find_violations(books) == []
        found = {one.id: (str(one.state), str(one.escrow), one.settlements, one.disputes) for one in books.contracts}
        assert found == {
            name: (model.state, model.escrow, model.settlements, model.disputes) for name, model in self.models.items()
        }
        models = [*self.models.values()]
        for number, model in enumerate(models):
            assert books.balances.get(("USD", f"agent:agent {number}"), 0) == model.payout
        held = sum(model.hold for model in models if model.escrow in ("held", "frozen"))
        spent = held + sum(model.paid for model in models)
        assert books.balances.get(("USD", "consumer:buyer"), 0) == -spent
        live = [one.operation for one in books.transfers].count("settle")
        live -= [one.operation for one in books.transfers].count("reverse")
        assert live == sum(model.escrow == "paid" for model in models)

    @invariant()
    def each_move_is_told_once(self) -> None:
        events = tables.events
        query = select(events.c.subject, events.c.type, events.c.idempotency_key)
        with self.parties[1].store.database.reading() as connection:
            rows = connection.execute(query.where(events.c.tenant == self.tenant).order_by(events.c.seq)).all()
        told: dict[str, list[str]] = {name: [] for name in self.models}
        for row in rows:
            if row.subject in told:
                told[row.subject].append(row.type)
        assert told == {name: model.told for name, model in self.models.items()}
        keys = [row.idempotency_key for row in rows]
        assert len(keys) == len(set(keys))


def _refusal(expected: Callable[[Model], None], model: Model) -> str:
    """The code of what the model refuses; empty when it does not."""
    try:
        expected(model)
    except Refused as refusal:
        return refusal.code
    return ""


def _another(party: Trading, contract_id: str, version: int, output: str) -> AddVersions:
    """A later verdict, as if the output had been this one."""
    verdicts, works = tables.verdicts, tables.works
    contract = party.standing(contract_id).contract
    with party.store.database.reading() as connection:
        mine = (verdicts.c.tenant == party.tenant) & (verdicts.c.outcome_id == contract.outcome_id)
        row = connection.execute(select(verdicts).where(mine, verdicts.c.version == version)).one()
        body = criteria_body(connection, party.tenant, row.criteria_digest)
        assert connection.execute(select(works.c.id).where(works.c.id == contract.work_id)).first() is not None
    text, metadata = OUTPUTS[output]
    result = ENGINE.verify_sync(contract_id, {"reference": REFERENCE}, {"text": text}, criteria_from(body), metadata)
    new = NewVersion(row.outcome_id, version, result, b"r" * 16)
    return AddVersions(party.tenant, body, (new,), "judged again")


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new data directory, made once and copied for each example."""
    folder = tmp_path_factory.mktemp("pristine") / "data"
    Store.open(Location(folder), ClockAndEntropy(clock=lambda: BEGINNING)).close()
    return folder


def test_two_clients_of_one_file_agree_with_the_model(pristine: Path, tmp_path: Path) -> None:
    class Fresh(Machine):
        def __init__(self) -> None:
            folder = tmp_path / f"example-{next(_NUMBERS)}"
            shutil.copytree(pristine, folder)
            super().__init__(Location(folder))

    run_state_machine_as_test(Fresh, settings=settings(max_examples=EXAMPLES, stateful_step_count=STEPS))


def test_two_clients_of_one_server_agree_with_the_model(new_postgres: NewDatabase, tmp_path: Path) -> None:
    location = Location(tmp_path / "data", new_postgres())

    class Served(Machine):
        def __init__(self) -> None:
            super().__init__(location)

    # Shrinking takes minutes here, and the other store's examples are the same.
    chosen = settings(max_examples=POSTGRES_EXAMPLES, stateful_step_count=STEPS, phases=[Phase.generate])
    run_state_machine_as_test(Served, settings=chosen)
