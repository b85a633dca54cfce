"""Kills processes that reconcile, one after the other, wherever each of them is; the next one goes on.

A process of its own, with one thread: each life is a fork of it that records some runs, and then asks their provider
in a loop, until it is ended with SIGKILL. The last one may end by itself.

python -m tests.faults.usage_doomed FOLDER URL BEGUN_AT DEATHS SEED
"""

import asyncio
import json
import os
import signal
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path
from random import Random

from tests.faults.usage_world import ACCOUNT, MODEL, TENANT, at_once, key

from meruit.model.metering import MeteredCall, MeteredRun, MeteredStep, UsageAccount
from meruit.model.usage import Tokens, UsagePolicy
from meruit.playground.billing.server import ADMIN_KEY
from meruit.store.location import Location
from meruit.store.store import Store, utc_now
from meruit.usage.providers.support.source_factory import open_source
from meruit.usage.reconcile import reconciler as reconcile
from meruit.usage.reconcile.reconciler import Account, Reconciler
from meruit.usage.schedule import Schedule
from meruit.usage.store.record_runs import RecordRuns

RUNS_A_LIFE = 20
LASTS_S = 300
POLICY = UsagePolicy(interval_min=0.001)
SCHEDULE = Schedule(first_min=0.001, shortest_min=0.001)
"""A week in a second."""
LEASE = timedelta(milliseconds=20)
LONGEST_S = 0.25
MAX_ROUNDS, IDLE_ROUNDS, PAUSE_S = 1_000, 10, 0.01
"""How often somebody asks at most, and how often in a row nothing is due until all is done."""


def run_of(number: int, begun_at: datetime) -> MeteredRun:
    """One of many, each with a key of its own, that were over long ago."""
    call = MeteredCall(begun_at + timedelta(seconds=number % LASTS_S), MODEL, Tokens(100 + number, 10, 1, 0, 0))
    ended_at = begun_at + timedelta(seconds=LASTS_S)
    step = MeteredStep("s", begun_at, ended_at, True, None, (call,))
    return MeteredRun(f"run-{number}", "f", ACCOUNT, key(f"key_{number}"), begun_at, ended_at, (step,))


async def live(folder: Path, url: str, runs: list[MeteredRun], pipe: int) -> None:
    """What a process does until it dies."""
    reconcile.LEASE = LEASE
    store = Store.open(Location(folder))
    await store.recorder.record(RecordRuns(TENANT, "me", runs))
    settings = UsageAccount(provider="openai", base_url=url, key_variable="THE_KEY", options={"kinds": "completions"})
    environment = {"THE_KEY": ADMIN_KEY}
    source = open_source(settings, client=None, environment=environment, clock=utc_now, sleep=at_once)
    account = Account(ACCOUNT, "openai", source)
    os.write(pipe, b"\n")
    idle = 0
    for _ in range(MAX_ROUNDS):
        passed = await Reconciler(store, {ACCOUNT: account}, policy=POLICY, schedule=SCHEDULE).run_once()
        idle = 0 if passed.accounts else idle + 1
        if idle == IDLE_ROUNDS:
            break
        await asyncio.sleep(PAUSE_S)
    store.close()


def fork(folder: Path, url: str, runs: list[MeteredRun], lives_s: float | None) -> bool:
    """One life; whether it was killed."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(ours)
            asyncio.run(live(folder, url, runs, theirs))
            code = 0
        finally:
            os._exit(code)
    os.close(theirs)
    os.read(ours, 1)
    os.close(ours)
    if lives_s is not None:
        time.sleep(lives_s)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL), f"a life ended with {status}"
    return status == signal.SIGKILL


def main(folder: str, url: str, begun_at: str, deaths: str, seed: str) -> None:
    chance = Random(seed)
    died = 0
    for life in range(int(deaths) + 1):
        first = life * RUNS_A_LIFE
        runs = [run_of(first + number, datetime.fromisoformat(begun_at)) for number in range(RUNS_A_LIFE)]
        died += fork(Path(folder), url, runs, chance.random() * LONGEST_S if life < int(deaths) else None)
    print(json.dumps({"deaths": died}))


if __name__ == "__main__":
    main(*sys.argv[1:])
