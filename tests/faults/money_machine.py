"""Random steps of money by two processes over one store: disputes, adjustments, shared runs, token terms, deaths.

Each process picks contracts of one tenant and moves them as chance says, until it is killed at any moment; then others
go on. Refusals are expected; books that do not add up, a log that does not agree with its rows, and a run that
is paid twice without a person's word are not.
"""

import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, select
from tests.contracts.trading import COPY, GOOD, LEAKED, WEAK, Trading
from tests.usage.metering import BEGUN, ENDED, POLICY, metered

from meruit.audit.check import check_store
from meruit.contracts.bill import is_adjusted
from meruit.errors import MeruitError
from meruit.model.metering import AttributionKey, AttributionKind, CallState, MeteredCall, MeteredStep
from meruit.model.money import Bill
from meruit.model.usage import Assurance, Observation, Tokens
from meruit.store import tables
from meruit.store.location import Location
from meruit.store.store import Store
from meruit.usage.followers import UsageWrite
from meruit.usage.store import read as usage_reading
from meruit.usage.store.record_observations import RecordObservations, RunObservation
from meruit.usage.store.record_runs import RecordRun

if TYPE_CHECKING:
    from collections.abc import Callable

TENANT = "machine"
RUNS = 6
"""Runs that completions name; few, so that several contracts claim the same one."""
OPEN = 24
"""Contracts that are moved; older ones are left alone."""
KINDS = ("usual", "on_request", "plain", "plain_on_request")
TOKENS = {"token_rates": {"input_per_million": 3, "output_per_million": 15}, "max_token_cost": 2}
COUNTS = (Tokens(100_000, 10_000), Tokens(200_000, 10_000))
MOVES = ("start", "settle", "release", "void", "reverse", "dispute", "uphold", "take back", "undo")
DEATH_S = (0.05, 2.0)
"""How long a process lives after its first step, of its own time or of the clock's."""


class MoneyMachine:
    """One process that moves money by chance."""

    def __init__(self, store: Store, seed: int, tenant: str = TENANT) -> None:
        self.store, self.tenant = store, tenant
        self.trading = Trading(store, tenant, by=f"process {seed}")
        self.chance = random.Random(seed)
        self.done: Counter[str] = Counter()

    def step(self) -> None:
        """Try one move; a refusal is an answer."""
        moves: list[tuple[int, str, Callable[[], object]]] = [
            (4, "award", self._award),
            (6, "complete", self._complete),
            (10, "move", self._move),
            (3, "adjust", self._adjust),
            (2, "rescore", self._rescore),
            (3, "record run", self._record_run),
            (6, "observe", self._observe),
        ]
        weights = [weight for weight, _, _ in moves]
        _, name, act = self.chance.choices(moves, weights)[0]
        try:
            act()
        except MeruitError as refusal:
            name = f"{name}: {refusal.code}"
        self.done[name] += 1

    def _contracts(self) -> list[Any]:
        table = tables.contracts
        query = select(table.c.id, table.c.hold_micros, table.c.terms).where(table.c.tenant == self.tenant)
        with self.store.database.reading() as connection:
            return [*connection.execute(query.order_by(table.c.seq.desc()).limit(OPEN))]

    def _any(self) -> Any:
        found = self._contracts()
        return self.chance.choice(found) if found else self._award()

    def _award(self) -> Any:
        terms = {**TOKENS} if self.chance.random() < 0.4 else {}
        if self.chance.random() < 0.3:
            terms["settle"] = "on_request"
        kind = self.chance.choice(KINDS)
        if kind.endswith("on_request"):
            terms.pop("settle", None)
        more = {"terms": terms} if terms else {}
        return self.trading.given(kind, agent=f"a{self.chance.randrange(4)}", **more)

    def _complete(self) -> None:
        text = f"{self.chance.choice((GOOD, GOOD, WEAK, COPY, LEAKED))} {self.chance.randrange(10**9)}"
        run = {"run_id": f"run-{self.chance.randrange(RUNS)}"} if self.chance.random() < 0.8 else {}
        self.trading.complete(self._any().id, text, run)

    def _move(self) -> None:
        self.trading.do(self.chance.choice(MOVES), self._any().id, self.chance.choice(("because", "again", "why not")))

    def _adjust(self) -> None:
        contract = self._any()
        with suppress(MeruitError):
            self.trading.do("dispute", contract.id)
        amount = self.chance.choice((0, 1, contract.hold_micros // 2, contract.hold_micros, contract.hold_micros + 1))
        self.trading.done(self.trading.adjust(contract.id, amount))

    def _rescore(self) -> None:
        with suppress(AssertionError):
            # A contract without an output has nothing to judge again.
            self.store.recorder.write(self.trading.rescored(self._any().id))

    def _follow(self, write: Any) -> Any:
        return self.store.recorder.write(UsageWrite(self.tenant, "reconciler", write))

    def _record_run(self) -> None:
        contract_id = self._any().id
        run_id = f"u-{contract_id}-{self.chance.randrange(2)}"
        call = MeteredCall(BEGUN, "m", None, CallState.ABORTED)
        run = metered(
            run_id,
            (MeteredStep("s0", calls=(call,)),),
            contract_id=contract_id,
            attribution_key=AttributionKey(AttributionKind.KEY, run_id),
        )
        self._follow(RecordRun(self.tenant, "machine", run))

    def _observe(self) -> None:
        run_id = f"u-{self._any().id}-{self.chance.randrange(2)}"
        with self.store.database.reading() as connection:
            attempts = usage_reading.find(connection, self.tenant, run_id).attempts
        counts = self.chance.choices(COUNTS, (9, 1))[0]
        at = ENDED + timedelta(minutes=60 * (attempts + 1))
        seen = Observation(f"{run_id}{at}", at, counts, {"s0": counts}, assurance=Assurance.ATTRIBUTION_KEY, digest="d")
        self._follow(RecordObservations(self.tenant, [RunObservation(run_id, seen)], POLICY))


def find_broken(store: Store, tenant: str = TENANT, *, whole: bool = True) -> list[str]:
    """What is wrong with the money of a store."""
    broken = Trading(store, tenant).broken()
    with store.database.reading() as connection:
        broken += paid_twice(connection, tenant)
    if whole:
        broken += [f"{one.code} {one.where}: {one.message}" for one in check_store(store).problems]
    return broken


def paid_twice(connection: Connection, tenant: str) -> list[str]:
    """Runs that a live settlement pays although an earlier one does, without a person's word."""
    contracts, paid, moves = tables.contracts, tables.settlements, tables.contract_transitions
    live = connection.execute(
        select(contracts.c.id, contracts.c.evidence, paid.c.leaf, paid.c.bill)
        .join(
            paid,
            (paid.c.tenant == contracts.c.tenant)
            & (paid.c.contract_id == contracts.c.id)
            & (paid.c.number == contracts.c.settlement),
        )
        .where(contracts.c.tenant == tenant, contracts.c.evidence.is_not(None))
        .order_by(paid.c.leaf)
    ).all()
    said = connection.execute(
        select(moves.c.contract_id).where(moves.c.tenant == tenant, moves.c.operation == "release")
    ).scalars()
    released, first, found = {*said}, dict[str, str](), []
    for row in live:
        earlier = first.setdefault(row.evidence, row.id)
        if earlier != row.id and row.id not in released and not is_adjusted(Bill.from_json(row.bill)):
            found.append(f"{row.id} is paid for the run of {earlier}, and nobody released it")
    return found


def run_two(location: Location, seed: int, steps: int) -> tuple[int, int, list[str]]:
    """Let two processes make so many steps together, killing them now and then: steps, deaths, what is broken."""
    Store.open(location).close()
    chance, made, deaths = random.Random(seed), 0, 0
    folder, url = str(location.folder), location.url or ""
    while made < steps:
        children = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.faults.money_machine", folder, url, str(chance.randrange(2**32))],
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(2)
        ]
        for child in children:
            out, _ = child.communicate()
            made += out.count("\n")
            deaths += 1
        store = Store.open(location)
        broken = find_broken(store, whole=made >= steps)
        store.close()
        if broken:
            return made, deaths, broken
    return made, deaths, []


def main() -> None:
    """One process: moves money until it kills itself, at any point of a step, and says so of each step."""
    folder, url, seed = sys.argv[1:]
    machine = MoneyMachine(Store.open(Location(Path(folder), url or None)), int(seed))
    _step(machine)
    _die_soon(machine.chance)
    while True:
        _step(machine)


def _step(machine: MoneyMachine) -> None:
    machine.step()
    sys.stdout.write(".\n")
    sys.stdout.flush()


def _die_soon(chance: random.Random) -> None:
    """Die at any point: while the process computes, or while it waits for the database."""
    seconds = chance.uniform(*DEATH_S)
    if chance.random() < 0.5:
        # Nobody handles SIGPROF, so the kernel ends the process; a busy machine gives it as many steps as a quiet one.
        signal.setitimer(signal.ITIMER_PROF, seconds)
    else:
        threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()


if __name__ == "__main__":
    main()
