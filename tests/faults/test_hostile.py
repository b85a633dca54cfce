"""Hostile code reaches nothing, outlasts nothing and leaves nothing behind: in every tier, as root and as anyone."""

import json
import os
import sys

import pytest
from tests.faults.expressions import EXPRESSIONS
from tests.faults.hostile import EXHAUSTING, EXPR, SKIPPED, chosen, half_of
from tests.faults.snippet import FULL, SMALL, Kind
from tests.faults.snippets import SNIPPETS
from tests.faults.started import run
from tests.sampling import IN_FULL, seed

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the walls are Linux's")
PATIENCE_S = 600
PARTS = {"root": {SMALL: 1, FULL: 1, EXPR: 1}, "ordinary": {SMALL: 1, FULL: 1, EXPR: 1}}
"""Few: each starts workers of its own."""
AT_LEAST = 60


def as_user(user: str) -> str:
    """The harness's option for this user; skips where there is no way to be one."""
    if user == "root" and os.geteuid() != 0:
        pytest.skip("these tests run as an ordinary user")
    return "nobody" if user == "ordinary" and os.geteuid() == 0 else "self"


@pytest.mark.parametrize(
    ("tier", "part", "user"),
    [
        (tier, f"{part}/{parts}", user)
        for user, tiers in PARTS.items()
        for tier, parts in tiers.items()
        for part in range(1, parts + 1)
    ],
)
def test_the_walls_hold(tier: str, part: str, user: str) -> None:
    some = not IN_FULL
    sample = ["--some", "--seed", str(seed())] if some else []
    options = ("--tier", tier, "--user", as_user(user), "--part", part, *sample)
    said = run("hostile", *options, patience_s=PATIENCE_S)
    if said.code == SKIPPED:
        pytest.skip(said.error.strip())
    lines = [json.loads(line) for line in said.out.splitlines()]
    broken = [f"{line['name']}: {'; '.join(line['why'])}" for line in lines if not line["ok"]]
    told = {line["name"] for line in lines}
    tried = chosen(tier, part, some=some, seed=seed(), half=half_of(as_user(user)))
    silent = [snippet.name for snippet in tried if snippet.name not in told]
    if silent:
        broken.append(f"the host did not survive {silent[0]} (exit code {said.code}): {said.error[-2000:]}")
    assert not broken, "\n".join(broken)
    assert said.code == 0


def test_every_kind_of_harm_is_tried() -> None:
    assert {snippet.kind for snippet in SNIPPETS} == set(Kind)
    assert len(SNIPPETS) >= AT_LEAST
    names = [snippet.name for snippet in (*SNIPPETS, *EXPRESSIONS)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("tier", [SMALL, FULL, EXPR])
def test_a_sample_tries_every_kind_as_each_user_and_the_rest_as_one(tier: str) -> None:
    every = chosen(tier, "1/1")
    for number in range(4):
        root, ordinary = ({*chosen(tier, "1/1", some=True, seed=number, half=half)} for half in range(2))
        assert {one.kind for one in root} == {one.kind for one in ordinary} == {one.kind for one in every}
        assert {one for one in every if one.kind not in EXHAUSTING} <= root | ordinary


def test_no_two_snippets_try_the_same() -> None:
    # The one exception is the same code twice in a row, which asks whether the second call remembers the first.
    codes = [snippet.code for snippet in SNIPPETS if snippet.kind is not Kind.CONTEXT]
    assert len(codes) == len(set(codes))
