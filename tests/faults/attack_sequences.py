"""Sequences of attacks by chance on contracts: an agent's key, a second tenant's key, and a writer of the database.

Operators and agents move a few contracts over HTTP. Between the moves, a writer of the database changes, swaps,
deletes and restores rows of every kind, or takes all rows back to an earlier state. What the service may append to its
log and pay is known from what was agreed on and handed in, whatever the rows say.

python -m tests.faults.attack_sequences [--seconds 3600] [--seed 1]
"""

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, LargeBinary, Row, Table, delete, insert, select, update
from sqlalchemy.exc import IntegrityError
from tests.api.conftest import Deployment, code_of, new_tenant
from tests.contracts.trading import COPY, GOOD, LEAKED, WEAK, Hands, written

from meruit.app import build_engine
from meruit.config import Settings
from meruit.contracts.invariants import find_violations
from meruit.contracts.postings import Parties
from meruit.contracts.store.ledger import books
from meruit.contracts.transitions import ExpireContracts
from meruit.log.entries import (
    DisputeEntry,
    EvidenceEntry,
    ReleaseEntry,
    ResolutionEntry,
    ReversalEntry,
    SettlementEntry,
    read_entry,
)
from meruit.model.access import Role
from meruit.model.contract import ContractState, Escrow
from meruit.store import tables
from meruit.store.location import Location
from meruit.store.store import ClockAndEntropy

if TYPE_CHECKING:
    from collections.abc import Callable

KINDS = ("usual", "on_request", "brief", "plain", "plain_on_request")
TEXTS = {"good": GOOD, "weak": WEAK, "copy": COPY, "leaked": LEAKED}
HELD = ("copy", "leaked")
"""Texts that a person must release."""
AGENTS = ("a1", "a2")
RUNS = ("r1", "r2")
STEPS = 18
EACH_STORE = 100
"""Sequences that share a store."""
MONEY = (
    *(tables.contracts, tables.works, tables.criteria, tables.outcomes, tables.verdicts, tables.governance_checks),
    *(tables.settlements, tables.transfers, tables.postings, tables.contract_transitions),
    *(tables.blobs, tables.log_leaves),
)
"""What a writer changes; balances are sums, and are compared at the end."""
REASON = {"reason": "because"}
PATHS: dict[str, tuple[str, dict[str, Any] | None]] = {
    **{name: (name, None) for name in ("start", "settle")},
    **{name: (name, REASON) for name in ("release", "void", "reverse", "dispute", "rejudge")},
    **{f"resolve {one}": ("resolve", {**REASON, "decision": one}) for one in ("uphold", "reverse", "void")},
}
PAYING = {"complete", "settle", "release", "resolve adjust"}
OPERATORS_ONLY = {name for name in PATHS if name not in ("start", "dispute")} | {"resolve adjust"}


@dataclass
class Agreed:
    """One contract as its parties know it."""

    id: str
    kind: str
    agent: str
    hold: int = 0
    text: str | None = None
    """The name of what was handed in, and recorded."""
    run: str | None = None
    live: int = 0
    """The settlement that stands."""
    disputed: bool = False
    released: bool = False
    """Whether the escrow went back."""
    overdue: bool = False


@dataclass
class Move:
    """What is under way while the log is watched."""

    name: str
    contract: str | None = None
    may_write: bool = True
    text: str | None = None
    run: str | None = None
    amount: int | None = None


# Any: the values of columns have many types.
@dataclass
class Change:
    """A row that the writer changed; what to put back."""

    table: Table
    key: dict[str, Any]
    before: dict[str, Any] | None
    after: dict[str, Any] | None


@dataclass
class Attack:
    """One sequence on a tenant of its own."""

    deployment: Deployment
    hands: Hands
    chance: random.Random
    expected: dict[tuple[str, str], int]
    """What each text is paid under each kind of work."""
    found: list[str] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    history: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tenant = new_tenant()
        key = self.deployment.key
        self.operator = key(Role.OPERATOR, self.tenant)
        self.agents = {name: key(Role.AGENT, self.tenant, agent_id=name) for name in AGENTS}
        self.foreign = key(Role.OPERATOR, new_tenant())
        self.agreed: dict[str, Agreed] = {}
        self.changes: list[Change] = []
        self.snapshots: list[tuple[int, dict[Table, list[Row[Any]]]]] = []
        self.rolled_back = False
        self.seen = self._log_size()

    # Watching the log.

    def _log_size(self) -> int:
        with self.deployment.store.database.reading() as connection:
            return int(connection.execute(select(tables.log_state.c.size)).scalar_one())

    def watch(self, move: Move) -> None:
        """Compare what was appended with what the parties know."""
        leaves = tables.log_leaves
        with self.deployment.store.database.reading() as connection:
            rows = connection.execute(select(leaves).where(leaves.c.seq >= self.seen).order_by(leaves.c.seq)).all()
            for row in rows:
                self.seen = row.seq + 1
                entry = read_entry(bytes(row.body))
                if getattr(entry, "tenant", None) == self.tenant:
                    if not move.may_write:
                        self.flag(f"{move.name} appended {entry}")
                    self._follow(connection, row.seq, entry, move)

    # Any: entries of every kind.
    def _follow(self, connection: Connection, seq: int, entry: Any, move: Move) -> None:
        agreed = self.agreed.get(getattr(entry, "contract", ""))
        if agreed is None:
            # An award, of which nobody knows yet.
            return
        match entry:
            case EvidenceEntry():
                if move.name != "complete" or move.contract != agreed.id or agreed.text is not None:
                    self.flag(f"evidence of {agreed} by {move}")
                agreed.text, agreed.run = move.text, move.run
            case SettlementEntry():
                self._follow_payment(connection, seq, entry, agreed, move)
            case ReversalEntry():
                if not agreed.live or move.name not in ("reverse", "resolve reverse", "resolve void", "resolve adjust"):
                    self.flag(f"{agreed} reversed by {move}")
                agreed.live = 0
            case ReleaseEntry():
                self._follow_release(connection, seq, entry, agreed, move)
            case DisputeEntry():
                agreed.disputed = True
            case ResolutionEntry():
                agreed.disputed = False
            case _:
                pass

    def _follow_release(
        self, connection: Connection, seq: int, entry: ReleaseEntry, agreed: Agreed, move: Move
    ) -> None:
        due = move.name == "expire" and agreed.overdue and agreed.text is None
        if agreed.live or agreed.released or not (due or move.name in ("void", "resolve void")):
            self.flag(f"{agreed} released by {move}")
        if entry.hold_micros != agreed.hold:
            self.flag(f"{agreed} got {entry.hold_micros} back")
        self._compare_postings(connection, seq, agreed)
        agreed.released = True

    def _follow_payment(
        self, connection: Connection, seq: int, entry: SettlementEntry, agreed: Agreed, move: Move
    ) -> None:
        if agreed.live or agreed.released or agreed.text is None or move.name not in PAYING:
            self.flag(f"{agreed} paid by {move}")
            return
        decided = move.name in ("release", "resolve adjust")
        if agreed.disputed and move.name != "resolve adjust":
            self.flag(f"{agreed} paid while disputed")
        if agreed.text in HELD and not decided:
            self.flag(f"{agreed} paid without a release")
        owed = move.amount if move.name == "resolve adjust" else self.expected[agreed.kind, agreed.text]
        if entry.total_micros != owed:
            self.flag(f"{agreed} paid {entry.total_micros}, not {owed}")
        run = (agreed.agent, agreed.run)
        twice = [one.id for one in self.agreed.values() if one.live and (one.agent, one.run) == run]
        if agreed.run is not None and twice and not decided:
            self.flag(f"{agreed} paid for the run of {twice}")
        self._compare_postings(connection, seq, agreed)
        agreed.live = entry.number

    def _compare_postings(self, connection: Connection, seq: int, agreed: Agreed) -> None:
        postings = tables.postings
        accounts = {*connection.execute(select(postings.c.account).where(postings.c.leaf == seq)).scalars()}
        parties = Parties(contract_id=agreed.id, consumer_id="buyer", agent_id=agreed.agent)
        if accounts - {parties.consumer, parties.agent, parties.escrow, "platform"}:
            self.flag(f"{agreed}: {accounts}")

    def flag(self, what: str) -> None:
        """Note what must not be."""
        self.found.append(what)

    # Requests.

    def ask(self, key: str, method: str, path: str, body: Any, move: Move) -> Any:
        """One request; a refusal is an answer, a failure of the service is not."""
        reply = self.deployment.ask(method, path, key=key, **({} if body is None else {"json": body}))
        self.history.append(f"{move.name} {move.contract or ''} {reply.status_code}")
        code = "done" if reply.status_code < 400 else code_of(reply)
        self.done[f"{move.name}: {code}"] += 1
        if reply.status_code >= 500:
            self.flag(f"{move.name} answered {reply.status_code} {reply.text}")
        self.watch(move)
        return reply

    def award(self) -> None:
        """A contract on new work."""
        kind, agent = self.chance.choice(KINDS), self.chance.choices(AGENTS, (3, 1))[0]
        move = Move("award")
        work = self.ask(self.operator, "POST", "/v1/work", written(kind), move)
        if work.status_code != 201:
            return
        wish = {"work_id": work.json()["id"], "agent_id": agent}
        reply = self.ask(self.operator, "POST", "/v1/contracts", wish, move)
        if reply.status_code == 201:
            made = reply.json()
            self.agreed[made["id"]] = Agreed(made["id"], kind, agent, round(float(made["hold"]) * 1e6))

    def pick(self) -> Agreed:
        """One of the contracts."""
        return self.chance.choice([*self.agreed.values()])

    def complete(self) -> None:
        """Hand in a text, as the agent or for it."""
        agreed, text = self.pick(), self.chance.choice(("good", *TEXTS))
        if agreed.text is not None and self.chance.random() < 0.8:
            # Once more is refused, and seldom worth a try.
            agreed = next((one for one in self.agreed.values() if one.text is None), agreed)
        run = self.chance.choices((*RUNS, None), (6, 1, 2))[0]
        key = self.agents[agreed.agent] if self.chance.random() < 0.7 else self.operator
        body: dict[str, Any] = {"output": {"text": f"{TEXTS[text]} {self.chance.randrange(10**9)}"}}
        if run is not None:
            body["metadata"] = {"run_id": run}
        move = Move("complete", agreed.id, text=text, run=run)
        self.ask(key, "POST", f"/v1/contracts/{agreed.id}/complete", body, move)

    def move(self) -> None:
        """Any move by an operator."""
        agreed = self.pick()
        if self.chance.random() < 0.1:
            amount = self.chance.choice((0, 1, agreed.hold // 2, agreed.hold, agreed.hold + 1))
            body = {**REASON, "decision": "adjust", "amount": f"{amount / 1e6:.6f}"}
            move = Move("resolve adjust", agreed.id, amount=amount)
            self.ask(self.operator, "POST", f"/v1/contracts/{agreed.id}/resolve", body, move)
            return
        name = self.chance.choice([*PATHS])
        path, sent = PATHS[name]
        self.ask(self.operator, "POST", f"/v1/contracts/{agreed.id}/{path}", sent, Move(name, agreed.id))

    def trespass(self) -> None:
        """A move that the key does not allow: an operator's by an agent, another agent's, another tenant's."""
        agreed = self.pick()
        name = self.chance.choice([*PATHS])
        path, sent = PATHS[name]
        who = self.chance.choice(("agent", "other agent", "tenant"))
        if who == "agent" and name not in OPERATORS_ONLY:
            who = "other agent"
        other = next(one for one in AGENTS if one != agreed.agent)
        key = {"agent": self.agents[agreed.agent], "other agent": self.agents[other], "tenant": self.foreign}[who]
        move = Move(f"{who}: {name}", agreed.id, may_write=False)
        reply = self.ask(key, "POST", f"/v1/contracts/{agreed.id}/{path}", sent, move)
        if reply.status_code < 400:
            self.flag(f"{who} may {name} {agreed}")

    def expire(self) -> None:
        """Let hours pass, and the service expire what is due."""
        self.hands.pass_h(2)
        for agreed in self.agreed.values():
            agreed.overdue = agreed.overdue or agreed.kind == "brief"
        self.deployment.store.recorder.write(ExpireContracts("clock"))
        self.history.append("expire")
        self.watch(Move("expire"))

    # The writer of the database.

    def _mine(self, table: Table) -> Any:
        return select(table).where(table.c.tenant == self.tenant)

    def tamper(self) -> None:
        """Change, swap or delete rows."""
        table = self.chance.choice(MONEY)
        with self.deployment.store.database.writer.begin() as connection:
            rows = connection.execute(self._mine(table)).all()
            if not rows:
                return
            row, other = self.chance.choice(rows), self.chance.choice(rows)
            act = self.chance.random()
            if table is tables.log_leaves:
                self._change(connection, table, row, self._forge_leaf(row))
            elif act < 0.15:
                self._change(connection, table, row, None)
            elif act < 0.35 and other != row:
                self._swap(connection, table, row, other)
            else:
                self._change(connection, table, row, self._forge(table, row, other))

    def _forge_leaf(self, row: Row[Any]) -> dict[str, Any]:
        if self.chance.random() < 0.5:
            return {"contract_id": None, "contract_seq": None}
        body = bytes(row.body)
        return {"body": body.replace(b'"a1"', b'"a2"').replace(b'"buyer"', b'"thief"')}

    def _forge(self, table: Table, row: Row[Any], other: Row[Any]) -> dict[str, Any]:
        names = [column.name for column in table.columns if not column.primary_key]
        name = self.chance.choice(names)
        value, column = getattr(row, name), table.c[name]
        choices: list[Any] = [getattr(other, name)]
        if name == "state":
            choices += [one.value for one in ContractState]
        elif name == "escrow":
            choices += [one.value for one in Escrow]
        elif isinstance(value, int):
            choices += [0, 1, value + 1, value - 1, value * 10]
        elif isinstance(value, bytes):
            choices += [value[:-1], value + b" ", b""]
        elif isinstance(value, str):
            choices += ["thief", value[:-1], *self.agreed, *AGENTS]
        if column.nullable:
            choices.append(None)
        elif value is None:
            choices.append(b"" if isinstance(column.type, LargeBinary) else 1)
        return {name: self.chance.choice(choices)}

    def _swap(self, connection: Connection, table: Table, row: Row[Any], other: Row[Any]) -> None:
        """Each row gets what the other one has of some columns."""
        names = [column.name for column in table.columns if not column.primary_key]
        names = self.chance.sample(names, self.chance.randrange(1, len(names) + 1))
        if any(column.name in names for index in table.indexes if index.unique for column in index.columns):
            return
        self._change(connection, table, row, {name: getattr(other, name) for name in names})
        self._change(connection, table, other, {name: getattr(row, name) for name in names})

    def _change(self, connection: Connection, table: Table, row: Row[Any], after: dict[str, Any] | None) -> None:
        key = {column.name: getattr(row, column.name) for column in table.primary_key.columns}
        where = [table.c[name] == value for name, value in key.items()]
        self.history.append(f"tamper {table.name} {[*key.values()][-1]} {'deleted' if after is None else [*after]}")
        self.done[f"tamper {table.name}"] += 1
        if after is None:
            connection.execute(delete(table).where(*where))
            self.changes.append(Change(table, key, dict(row._mapping), None))
            return
        if any(after[name] is None and not table.c[name].nullable for name in after):
            return
        with suppress(IntegrityError), connection.begin_nested():
            connection.execute(update(table).where(*where).values(**after))
            self.changes.append(Change(table, key, {name: getattr(row, name) for name in after}, after))

    def restore(self, count: int | None = None) -> None:
        """Put back the newest changes, where nobody has written over them."""
        with self.deployment.store.database.writer.begin() as connection:
            for _ in range(len(self.changes) if count is None else min(count, len(self.changes))):
                change = self.changes.pop()
                table, before, after = change.table, change.before, change.after
                where = [table.c[name] == value for name, value in change.key.items()]
                there = connection.execute(select(table).where(*where)).first()
                if after is None and there is None and before is not None:
                    # Where the service has written another such row meanwhile, there is nothing to put back.
                    with suppress(IntegrityError), connection.begin_nested():
                        connection.execute(insert(table).values(**before))
                elif after is not None and there is not None and before is not None:
                    same = {name: value for name, value in before.items() if getattr(there, name) == after[name]}
                    if same:
                        with suppress(IntegrityError), connection.begin_nested():
                            connection.execute(update(table).where(*where).values(**same))
        self.history.append("restore")

    def take_snapshot(self) -> None:
        """Remember all rows, to come back to them later."""
        with self.deployment.store.database.reading() as connection:
            rows = {
                table: [*connection.execute(self._mine(table))] for table in MONEY if table is not tables.log_leaves
            }
        self.snapshots.append((self.seen, rows))

    def roll_back(self) -> None:
        """Take the rows of the tenant back to an earlier state, and hide from the service what the log says since."""
        if not self.snapshots:
            return
        # Rows that were moved to other tenants would stand in the way.
        self.restore()
        size, rows = self.chance.choice(self.snapshots)
        hides, leaves = self.chance.random() < 0.5, tables.log_leaves
        with self.deployment.store.database.writer.begin() as connection:
            for table, before in rows.items():
                connection.execute(delete(table).where(table.c.tenant == self.tenant))
                if before:
                    connection.execute(insert(table), [dict(row._mapping) for row in before])
            if hides:
                for row in connection.execute(self._mine(leaves).where(leaves.c.seq >= size)).all():
                    self._change(connection, leaves, row, {"contract_id": None, "contract_seq": None})
        self.rolled_back = True
        self.history.append(f"roll back to {size}, {'leaves hidden' if hides else 'leaves left'}")

    def run(self) -> None:
        """All steps, then what was changed is restored and the books are checked."""
        for _ in range(self.chance.randrange(1, 4)):
            self.award()
        acts: list[tuple[int, Callable[[], None]]] = [
            *((1, self.award), (5, self.complete), (7, self.move), (2, self.trespass), (1, self.expire)),
            *((6, self.tamper), (2, lambda: self.restore(1)), (2, self.restore)),
            *((1, self.take_snapshot), (1, self.roll_back)),
        ]
        for _ in range(STEPS):
            if self.agreed:
                _, act = self.chance.choices(acts, [weight for weight, _ in acts])[0]
                act()
        self.restore()
        if not self.rolled_back:
            with self.deployment.store.database.reading() as connection:
                self.found += find_violations(books(connection, self.tenant))


def price(deployment: Deployment, hands: Hands) -> dict[tuple[str, str], int]:
    """What each text is paid under each kind of work while nobody interferes."""
    attack = Attack(deployment, hands, random.Random(0), {})
    expected = {}
    for kind in KINDS:
        for name, text in TEXTS.items():
            work = attack.deployment.ask("POST", "/v1/work", key=attack.operator, json=written(kind)).json()
            wish = {"work_id": work["id"], "agent_id": f"{kind}-{name}"}
            made = deployment.ask("POST", "/v1/contracts", key=attack.operator, json=wish).json()["id"]
            path = f"/v1/contracts/{made}"
            deployment.ask("POST", f"{path}/complete", key=attack.operator, json={"output": {"text": text}})
            for move in ("settle", "release"):
                body: dict[str, Any] = {} if move == "settle" else {"json": REASON}
                deployment.ask("POST", f"{path}/{move}", key=attack.operator, **body)
            paid = deployment.ask("GET", path, key=attack.operator).json()["settlement"]
            expected[kind, name] = -1 if paid is None else round(float(paid["total"]) * 1e6)
    return expected


def attack_for(seconds: float, seed: int, most: int | None = None) -> tuple[int, Counter[str], list[str]]:
    """Sequences until the time is over: their number, what was done, what must not have been."""
    engine, chance = build_engine(Settings()), random.Random(seed)
    began, made = time.monotonic(), 0
    done, found = Counter[str](), list[str]()
    while time.monotonic() - began < seconds and made != most:
        hands = Hands()
        with tempfile.TemporaryDirectory() as folder:
            deployment = Deployment(Location(Path(folder)), engine, None, ClockAndEntropy(hands), living=False)
            try:
                expected = price(deployment, hands)
                for _ in range(EACH_STORE):
                    number = chance.randrange(2**32)
                    attack = Attack(deployment, hands, random.Random(number), expected)
                    attack.run()
                    made, done = made + 1, done + attack.done
                    if attack.found:
                        found += [f"{number}: {one}" for one in attack.found] + ["  " + one for one in attack.history]
                        print("\n".join([f"FOUND {number}", *attack.found, *attack.history]), flush=True)
                    if time.monotonic() - began > seconds or made == most:
                        break
                print(f"{time.monotonic() - began:.0f} s, {made} sequences, {len(found)} lines found", flush=True)
            finally:
                deployment.close()
    return made, done, found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3_600)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    made, done, found = attack_for(options.seconds, options.seed)
    print(made, "sequences")
    for name, count in sorted(done.items()):
        print(f"{count:8} {name}")
    print("\n".join(found))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
