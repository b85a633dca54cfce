"""The worlds of task runs: what a task's criteria look at must be there for its agent."""

from pathlib import Path

import httpx
import pytest
from tests.playground.test_host import looped

from meruit.errors import MeruitError, Unreachable
from meruit.playground import sftp
from meruit.playground.environment import PlaygroundProvider
from meruit.playground.host import Host
from meruit.playground.load import load_benchmark
from meruit.playground.portal import app as portal

FRONT_DESK = Path(__file__).parents[2] / "examples" / "front-desk" / "front-desk.yaml"


@looped
async def test_a_task_whose_systems_are_missing_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def serve(*_: object) -> None:
        raise MeruitError(sftp.NEEDS)

    def app(_find: object) -> None:
        raise MeruitError("no jinja2")

    monkeypatch.setattr(sftp, "serve", serve)
    monkeypatch.setattr(portal, "app", app)
    benchmark = load_benchmark(FRONT_DESK)
    begun, refused = list[str](), dict[str, str]()
    async with httpx.AsyncClient() as client, Host(tmp_path) as host:
        worlds = PlaygroundProvider(host, client=client, environment={})
        for task in benchmark.tasks:
            try:
                begun.append((await worlds.prepare(benchmark, task)).id or "")
            except Unreachable as problem:
                refused[task.id] = str(problem)
        assert len(begun) == len(host.listing()) == len(benchmark.tasks) - len(refused)
    assert {"roster", "imaging-authorization"} <= refused.keys()
    assert begun
    assert all("no jinja2" in one and sftp.NEEDS in one for one in refused.values())
