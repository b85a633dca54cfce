"""Money moved by chance: the books add up, and no run is paid twice without a person's word."""

from collections import Counter
from pathlib import Path

import pytest
from sqlalchemy import update
from tests.contracts.trading import GOOD, Trading
from tests.faults.money_machine import TENANT, MoneyMachine, find_broken, paid_twice, run_two
from tests.sampling import IN_FULL, seed

from meruit.store import tables
from meruit.store.location import Location
from meruit.store.store import Store

STEPS = 10_000
SAMPLE = 250
"""Steps of `make test`, by two stores in turn."""


def test_a_sample_of_steps_by_two_stores_keeps_the_books(tmp_path: Path) -> None:
    stores = [Store.open(Location(tmp_path)) for _ in range(2)]
    machines = [MoneyMachine(store, seed() + number) for number, store in enumerate(stores)]
    for number in range(SAMPLE):
        machines[number % 2].step()
    assert find_broken(stores[0]) == []
    done = machines[0].done + machines[1].done
    assert sum(done.values()) == SAMPLE
    assert {"award", "complete", "move", "observe"} <= done.keys(), Counter(done)
    for store in stores:
        store.close()


def test_a_run_that_is_paid_twice_is_found(tmp_path: Path) -> None:
    store = Store.open(Location(tmp_path))
    trading = Trading(store, TENANT)
    for number in range(2):
        trading.complete(trading.given(agent=f"a{number}").id, f"{GOOD} {number}", {"run_id": f"run-{number}"})
    assert find_broken(store, whole=False) == []
    with store.database.writer.begin() as connection:
        connection.execute(update(tables.contracts).values(evidence="one"))
    with store.database.reading() as connection:
        assert len(paid_twice(connection, TENANT)) == 1
    store.close()


if IN_FULL:

    @pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
    def test_ten_thousand_steps_of_two_processes_with_deaths(
        kind: str, tmp_path: Path, request: pytest.FixtureRequest
    ) -> None:
        url = request.getfixturevalue("postgres_url") if kind == "postgresql" else None
        made, deaths, broken = run_two(Location(tmp_path, url), seed(), STEPS)
        assert broken == []
        assert made >= STEPS
        assert deaths > 10
