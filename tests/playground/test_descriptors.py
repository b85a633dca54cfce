"""A host takes no more playgrounds than its limit of open files allows, and keeps some for everything else."""

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meruit.playground.descriptors import (
    DESCRIPTORS_WANTED,
    FILES_PER_STATE,
    MAX_OPEN,
    MAX_PLAYGROUNDS,
    RESERVED_DESCRIPTORS,
    plan_descriptors,
)

SCRIPT = """
import asyncio, json, pathlib, resource, sys, tempfile
soft, hard = map(int, sys.argv[1:])
import httpx
from meruit.errors import TooManyPlaygrounds
from meruit.playground.host import Host

async def run(folder):
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    async with Host(folder) as host:
        url = await host.serve_http()
        found = {"limit": resource.getrlimit(resource.RLIMIT_NOFILE)[0]}
        if hard < 1000:
            made = []
            try:
                while True:
                    made.append(await host.create())
            except TooManyPlaygrounds as refusal:
                found |= {"made": len(made), "code": refusal.code, "status": refusal.status}
            clients = [await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2])) for _ in range(20)]
            async with httpx.AsyncClient(headers={"Authorization": f"Bearer {made[0].secret}"}) as client:
                found["answer"] = (await client.get(made[0].endpoints.events)).status_code
            for _, writer in clients:
                writer.close()
            await host.remove(made[0].id)
            found["again"] = (await host.create()).id != made[0].id
    if hard < 1000:
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
        try:
            async with Host(folder):
                pass
        except TooManyPlaygrounds as refusal:
            found["later"] = refusal.code
    return found

with tempfile.TemporaryDirectory() as folder:
    print(json.dumps(asyncio.run(run(pathlib.Path(folder)))))
"""


def run_with_limits(soft: int, hard: int) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(soft), str(hard)], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


@given(st.integers(8, 2_000_000))
def test_the_plan_leaves_descriptors_for_everything_else(limit: int) -> None:
    plan = plan_descriptors(limit)
    used = plan.playgrounds + plan.open_states * FILES_PER_STATE
    assert limit - used >= min(RESERVED_DESCRIPTORS, limit // 2)
    assert plan.playgrounds <= MAX_PLAYGROUNDS
    assert 1 <= plan.open_states <= MAX_OPEN


def test_with_the_wanted_limit_every_playground_fits() -> None:
    plan = plan_descriptors(DESCRIPTORS_WANTED)
    assert (plan.playgrounds, plan.open_states) == (MAX_PLAYGROUNDS, MAX_OPEN)


def test_creation_is_refused_before_descriptors_run_out() -> None:
    found = run_with_limits(200, 200)
    assert found == {
        "limit": 200,
        "made": plan_descriptors(200).playgrounds,
        "code": "cannot_be_made",
        "status": 503,
        "answer": 200,
        "again": True,
        "later": "cannot_be_made",
    }


@pytest.mark.parametrize(("hard", "expected"), [(2000, 2000), (DESCRIPTORS_WANTED + 100, DESCRIPTORS_WANTED)])
def test_the_limit_is_raised_as_far_as_it_helps(hard: int, expected: int) -> None:
    import resource

    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if most != resource.RLIM_INFINITY and most < hard:
        pytest.skip(f"the hard limit here is {most}")
    assert run_with_limits(500, hard) == {"limit": expected}
