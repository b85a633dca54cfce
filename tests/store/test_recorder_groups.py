"""How callers of an event loop come together in one transaction."""

import asyncio
import threading
from typing import Any

from meruit.store import recorder
from meruit.store.log import write_nothing
from meruit.store.store import Store


def heard(store: Store) -> list[recorder.CommitNotice]:
    found: list[recorder.CommitNotice] = []
    store.recorder.listen(found.append)
    return found


def test_callers_of_one_turn_share_a_transaction(store: Store) -> None:
    found = heard(store)

    async def many() -> None:
        await asyncio.gather(*(store.recorder.record(write_nothing) for _ in range(50)))

    asyncio.run(many())
    assert [one.callers for one in found] == [50]


def test_callers_of_the_next_turns_share_it_too(store: Store) -> None:
    found = heard(store)

    async def later(turns: int) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
        await store.recorder.record(write_nothing)

    async def many() -> None:
        await asyncio.gather(*(later(turns) for turns in range(10)))

    asyncio.run(many())
    assert [one.callers for one in found] == [10]


def test_a_group_has_a_largest_size(store: Store) -> None:
    found = heard(store)

    async def many() -> None:
        await asyncio.gather(*(store.recorder.record(write_nothing) for _ in range(recorder.MAX_GROUP + 1)))

    asyncio.run(many())
    assert [one.callers for one in found] == [recorder.MAX_GROUP, 1]


def test_what_a_stopped_loop_left_is_written(store: Store) -> None:
    found, committed = heard(store), threading.Event()
    store.recorder.listen(lambda _done: committed.set())
    loop = asyncio.new_event_loop()

    async def ask() -> None:
        # Any: nobody waits for the answer.
        left: Any = asyncio.ensure_future(store.recorder.record(write_nothing))
        await asyncio.sleep(0)
        left.cancel()

    task = loop.create_task(ask())
    task.add_done_callback(lambda _task: loop.stop())
    loop.run_forever()
    assert committed.wait(30)
    assert [one.callers for one in found] == [1]
    # The next loop does not rely on the one that stopped.
    asyncio.run(store.recorder.record(write_nothing))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    assert [one.callers for one in found] == [1, 1]


def test_loops_of_several_threads_are_all_answered(store: Store) -> None:
    found = heard(store)

    async def some() -> None:
        for _ in range(5):
            await store.recorder.record(write_nothing)

    threads = [threading.Thread(target=asyncio.run, args=(some(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    store.recorder.write(write_nothing)
    for thread in threads:
        thread.join()
    assert sum(one.callers for one in found) == 21
