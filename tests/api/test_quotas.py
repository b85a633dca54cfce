"""Quotas of stored bytes: per tenant and per agent's key, counted over restarts and processes."""

import asyncio
from typing import Any

import pytest
from tests.api.conftest import CRITERIA, WORK, Deploy, code_of, new_tenant

from meruit.api.quotas import MB, Quotas, record_use_in_background
from meruit.errors import ApiProblem, StoreUnavailable
from meruit.model.access import Caller, Role
from meruit.store.access.key_use import read_key_use
from meruit.store.store import Store

AGENT = Caller("acme", Role.AGENT, "mk_agent", "a1")
OPERATOR = Caller("acme", Role.OPERATOR, "mk_operator")


def used(store: Store, tenant: str) -> list[tuple[str, int, int]]:
    with store.database.reading() as connection:
        return [(one.key_id, one.requests, one.bytes) for one in read_key_use(connection, tenant)]


def refused(quotas: Quotas, caller: Caller, size: int) -> bool:
    try:
        quotas.admit(caller, size)
    except ApiProblem as problem:
        return (problem.status, problem.code) == (413, "quota_exceeded")
    return False


def test_what_does_not_fit_is_refused(shared: Store, tenant: str) -> None:
    agent, operator = (Caller(tenant, one.role, one.key_id, one.agent_id) for one in (AGENT, OPERATOR))
    quotas = Quotas(shared, tenant_mb=3, agent_key_mb=1)
    assert not refused(quotas, agent, MB)
    quotas.count(agent, "POST", 200, MB)
    assert refused(quotas, agent, 1)
    assert not refused(quotas, operator, 2 * MB)
    # It is recorded, and stays counted; another process reads it.
    asyncio.run(quotas.refresh())
    other = Quotas(shared, tenant_mb=3, agent_key_mb=1)
    asyncio.run(other.refresh())
    for one in (quotas, other):
        assert refused(one, agent, 1)
        assert not refused(one, operator, 2 * MB)
        assert refused(one, operator, 2 * MB + 1)
    other.count(operator, "PUT", 201, 5)
    other.count(operator, "POST", 200, 6)
    asyncio.run(other.refresh())
    assert used(shared, tenant) == [("mk_agent", 1, MB), ("mk_operator", 2, 11)]
    # Another tenant has a quota of its own.
    assert not refused(other, Caller(f"{tenant}2", Role.OPERATOR, "k"), 3 * MB)


@pytest.mark.parametrize(
    ("caller", "method", "status"),
    [
        (None, "POST", 200),
        (AGENT, "GET", 200),
        (AGENT, "POST", 400),
        (AGENT, "POST", 499),
        (Caller("t", Role.ADMIN, ""), "POST", 200),
    ],
)
def test_only_accepted_writes_of_keys_count(shared: Store, caller: Caller | None, method: str, status: int) -> None:
    quotas = Quotas(shared, tenant_mb=1, agent_key_mb=1)
    quotas.count(caller, method, status, 5 * MB)
    assert not refused(quotas, AGENT, 1)


def test_without_limits_nothing_is_refused(shared: Store) -> None:
    quotas = Quotas(shared, tenant_mb=None, agent_key_mb=None)
    quotas.count(AGENT, "POST", 200, 10**15)
    assert not refused(quotas, AGENT, 10**15)


def test_what_could_not_be_recorded_is_recorded_later(
    shared: Store, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    quotas, caller = Quotas(shared, tenant_mb=1, agent_key_mb=None), Caller(tenant, Role.OPERATOR, "k")
    quotas.count(caller, "POST", 200, 7)

    async def fail(_write: Any) -> None:
        quotas.count(caller, "POST", 200, 1)
        raise StoreUnavailable("busy")

    with monkeypatch.context() as patch:
        patch.setattr(shared.recorder, "record", fail)
        asyncio.run(quotas.refresh())
    assert used(shared, tenant) == []

    async def finish() -> None:
        ended = asyncio.Event()
        ended.set()
        await record_use_in_background(quotas, ended)

    asyncio.run(finish())
    assert used(shared, tenant) == [("k", 2, 8)]


def test_a_service_counts_and_refuses_over_http(deploy: Deploy) -> None:
    made, tenant = deploy(), new_tenant()
    operator, admin = made.key(Role.OPERATOR, tenant), made.key(Role.ADMIN, tenant)
    body = {**WORK, "criteria": CRITERIA}
    assert made.ask("POST", "/v1/verify", key=operator, json=body).status_code == 200
    assert made.ask("POST", "/v1/verify", key=operator, json={}).status_code == 400
    asyncio.run(made.service.quotas.refresh())
    found = made.ask("GET", "/v1/quotas", key=admin).json()
    (one,) = found["keys"]
    assert (one["key_id"], one["requests"]) == (operator.partition(".")[0], 1)
    assert found["tenant_bytes"] == one["bytes"] > 10
    assert (found["tenant_limit_bytes"], found["agent_key_limit_bytes"]) == (None, 10_240 * MB)
    assert made.ask("GET", "/v1/quotas", key=operator).status_code == 403
    made.service.quotas.tenant_mb = 1
    made.service.quotas.count(Caller(tenant, Role.OPERATOR, "k"), "POST", 200, MB)
    for path in ("/v1/verify", "/v1/criteria"):
        reply = made.ask("POST", path, key=operator, json=body)
        assert (reply.status_code, code_of(reply)) == (413, "quota_exceeded")
    other = made.key(Role.OPERATOR, new_tenant())
    assert made.ask("POST", "/v1/verify", key=other, json=body).status_code == 200
    made.service.quotas.tenant_mb = None
