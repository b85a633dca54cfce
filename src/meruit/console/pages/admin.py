"""Admin: keys, webhooks with their dead letters, settings as in force, the sandbox, health."""

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from sqlalchemy import Connection

from meruit import __version__
from meruit.api.file_stream import stream_table
from meruit.api.quotas import MB
from meruit.api.routes.keys import MAX_DAYS
from meruit.console.live import Live
from meruit.console.page import ADMINS, OPERATORS, NavEntry, PageRequest, action, page, read_field
from meruit.console.query import Query
from meruit.console.settings_shown import list_settings
from meruit.console.table import Column, Table, read_once
from meruit.errors import ApiProblem, MeruitError, StoreError
from meruit.events import records as events
from meruit.events.records import AddWebhook, DeliveryState, Redeliver, RemoveWebhook, SendAgain, Webhook
from meruit.gate import records as agent_runs
from meruit.model.access import Role
from meruit.model.events import EventType
from meruit.model.kinds import Tier
from meruit.model.outcome import MAX_LABEL
from meruit.model.time import to_micros
from meruit.sandbox.selftest import describe_machine, examine
from meruit.sources.http_guard import check_url
from meruit.store import log, tenants
from meruit.store.access import keys
from meruit.store.access.key_use import read_key_use
from meruit.store.access.keys import KeyRecord, NewKey, Revoke
from meruit.store.tenants import TenantSummary
from meruit.web.parameters import FromPath
from meruit.web.responses import Response

PAGE_SIZE = 100
RECENT = 25
"""Deliveries that the page of a webhook lists at once."""
TENANT_COLUMNS = (
    Column("name", "Tenant"),
    Column("keys", "Valid keys", numeric=True),
    Column("requests", "Requests", numeric=True, minor=True, hint="Accepted requests that write, of all keys"),
    Column("stored", "Stored", numeric=True, hint="Bytes of their bodies, and the limit where there is one"),
    Column("last", "Last outcome", numeric=True),
)
WEBHOOK_COLUMNS = (
    Column("url", "URL"),
    Column("events", "Events"),
    Column("retried", "Retried", numeric=True),
    Column("dead", "Dead letters", numeric=True),
    Column("created", "Created", numeric=True, minor=True),
    Column("id", "Webhook", usual=False),
)
KEY_COLUMNS = (
    Column("name", "Name", sortable=True),
    Column("role", "Role", sortable=True),
    Column("id", "Id"),
    Column("agent", "Agent", minor=True),
    Column("created", "Created", numeric=True, minor=True, sortable=True),
    Column("requests", "Requests", numeric=True, minor=True, hint="Accepted requests that write"),
    Column("stored", "Stored", numeric=True, hint="Bytes of their bodies, and the limit where there is one"),
    Column("state", "State"),
    Column("act", "Act"),
)
MAX_URL = 2_000


@page("/keys", roles=ADMINS, nav=NavEntry("Service", "Keys", keys="y", order=10))
async def list_keys(request: PageRequest) -> Response[Any]:
    """List the keys of the tenant, without secrets."""
    tenant, query = request.caller.tenant, Query.of(request)
    table = Table.of(query, "Keys by id", KEY_COLUMNS)

    def read(connection: Connection, at: Table) -> tuple[list[KeyRecord], Query | None]:
        limit = at.limit(PAGE_SIZE)
        if at.order is not None:
            ordered = keys.page_sorted(connection, at.order, tenant=tenant, limit=limit)
            return ordered.entries, at.following(ordered)
        first = keys.page(connection, tenant=tenant, after=at.query.get("after") or None, limit=limit)
        return first, at.query.turn("after", first[-1].id) if len(first) == limit else None

    uses = await request.service.read(lambda connection: read_key_use(connection, tenant))
    use = {one.key_id: one for one in uses}
    if table.file is not None:
        headings = ("name", "role", "id", "agent_id", "created_at", "expires_at", "revoked_at", "requests", "bytes")
        rows = (
            (
                *(one.name, str(one.role), one.id, one.agent_id, one.created_at, one.expires_at, one.revoked_at),
                *((use[one.id].requests, use[one.id].bytes) if one.id in use else (0, 0)),
            )
            for one in table.read_all(partial(read_once, request.service.store, read))
        )
        return await stream_table(request, table.file, headings, lambda: rows)
    found, following = await request.service.read(lambda connection: read(connection, table))
    return request.show(
        "keys.html",
        table=table,
        keys=found,
        use=use,
        stored=sum(one.bytes for one in use.values()),
        limits=_limits(request),
        live=Live(types=(EventType.KEY_CREATED, EventType.KEY_REVOKED)),
        valid=[one for one in found if one.revoked_at is None],
        next=following,
    )


@dataclass(frozen=True, slots=True)
class StoredLimits:
    """Bytes that a tenant and the key of an agent may store; None where that is not limited."""

    tenant: int | None
    agent_key: int | None


def _limits(request: PageRequest) -> StoredLimits:
    settings = request.service.settings
    tenant, agent_key = (
        None if limit is None else limit * MB for limit in (settings.tenant_stored_mb, settings.agent_key_stored_mb)
    )
    return StoredLimits(tenant, agent_key)


@page("/keys/new", roles=ADMINS)
async def ask_new_key(request: PageRequest) -> Response[Any]:
    """Ask what the new key may do."""
    return request.show("key-new.html", title="Create a key", post_to="/keys/new", back="/keys", roles=[*Role])


@action("/keys/new", roles=ADMINS)
async def create_key(request: PageRequest) -> Response[Any]:
    """Create a key, and show its secret this once."""
    name = await read_field(request, "name", longest=MAX_LABEL)
    agent_id = await read_field(request, "agent_id", longest=MAX_LABEL)
    role_name, days = await read_field(request, "role", longest=20), await read_field(request, "days", longest=5)
    if not name or not name.isprintable() or not agent_id.isprintable():
        raise ApiProblem(400, "invalid", "name: write a name for the key, one line")
    if role_name not in [*Role]:
        raise ApiProblem(400, "invalid", f"role: choose one of {', '.join(Role)}")
    role = Role(role_name)
    if (role is Role.AGENT) != bool(agent_id):
        raise ApiProblem(400, "bad_key", "agent: name the agent for the role agent, and for no other role")
    if days and not (days.isdecimal() and days.isascii() and 1 <= int(days) <= MAX_DAYS):
        raise ApiProblem(400, "invalid", f"days: write a number from 1 to {MAX_DAYS:,}, or nothing")
    service, surroundings = request.service, request.service.store.surroundings
    expires = surroundings.clock() + timedelta(days=int(days)) if days else None
    wish = NewKey(
        tenant=request.caller.tenant,
        role=role,
        name=name,
        agent_id=agent_id or None,
        expires_at=expires,
        entropy=surroundings.entropy,
    )
    made = await service.store.recorder.record(wish)
    service.authenticator.clear_cache()
    shown = request.show("key-made.html", made=made)
    shown.headers["Cache-Control"] = "no-store"
    return shown


@page("/keys/{key_id:str}/revoke", roles=ADMINS)
async def ask_revoke(request: PageRequest, key_id: FromPath[str]) -> Response[Any]:
    """Ask before a key is revoked."""
    return request.show(
        "key-revoke.html",
        title="Revoke this key?",
        post_to=f"/keys/{key_id}/revoke",
        back="/keys",
        key_id=key_id,
        is_own=key_id == request.caller.key_id,
    )


@action("/keys/{key_id:str}/revoke", roles=ADMINS)
async def revoke_key(request: PageRequest, key_id: FromPath[str]) -> Response[Any]:
    """Revoke a key; sessions that began with it end."""
    revoked = await request.service.store.recorder.record(Revoke(key_id, request.caller.tenant))
    request.service.authenticator.clear_cache()
    return request.go_to("/keys", f"The key {revoked.name} is revoked.")


@page("/tenants", roles=ADMINS, nav=NavEntry("Service", "Tenants", order=15), deployment=True)
async def list_tenants(request: PageRequest) -> Response[Any]:
    """List the tenants of the deployment, with nothing of their work."""
    query, now = Query.of(request), to_micros(request.now)
    table = Table.of(query, "Tenants by name", TENANT_COLUMNS)

    def read(connection: Connection, at: Table) -> tuple[list[TenantSummary], Query | None]:
        limit = at.limit(PAGE_SIZE)
        first = tenants.list_tenants(connection, now, after=at.query.get("after"), limit=limit)
        return first, at.query.turn("after", first[-1].name) if len(first) == limit else None

    use: dict[str, tuple[int, int]] = {}
    for one in await request.service.read(read_key_use):
        requests, size = use.get(one.tenant, (0, 0))
        use[one.tenant] = (requests + one.requests, size + one.bytes)
    if table.file is not None:
        headings = ("tenant", "valid_keys", "requests", "bytes", "last_outcome_at")
        every = table.read_all(partial(read_once, request.service.store, read))
        rows = ((one.name, one.keys, *use.get(one.name, (0, 0)), one.last_outcome_at) for one in every)
        return await stream_table(request, table.file, headings, lambda: rows)
    found, following = await request.service.read(lambda connection: read(connection, table))
    return request.show(
        "tenants.html",
        table=table,
        tenants=found,
        use=use,
        query=query,
        limits=request.service.settings,
        quotas=_limits(request),
        next=following,
    )


@page("/webhooks", nav=NavEntry("Service", "Webhooks", order=20))
async def list_webhooks(request: PageRequest) -> Response[Any]:
    """List webhooks, with the number of events that could not be delivered."""
    tenant = request.caller.tenant

    def read(connection: Connection, at: Table) -> tuple[list[tuple[Webhook, int, int]], Query | None]:
        limit = at.limit(PAGE_SIZE)
        found = events.list_webhooks(connection, tenant, after=at.query.get("after") or None, limit=limit)
        counted = [
            (
                one,
                len(events.list_dead_letters(connection, tenant, one.id, after=0, limit=limit)),
                len(events.list_pending_deliveries(connection, tenant, one.id, limit=limit)),
            )
            for one in found
        ]
        return counted, at.query.turn("after", found[-1].id) if len(found) == limit else None

    query = Query.of(request)
    table = Table.of(query, "Webhooks by id", WEBHOOK_COLUMNS)
    if table.file is not None:
        headings = ("url", "id", "events", "retried", "dead_letters", "created_at")
        rows = (
            (one.url, one.id, " ".join(sorted(one.types)), late, dead, one.created_at)
            for one, dead, late in table.read_all(partial(read_once, request.service.store, read))
        )
        return await stream_table(request, table.file, headings, lambda: rows)
    found, following = await request.service.read(lambda connection: read(connection, table))
    return request.show(
        "webhooks.html",
        table=table,
        query=query,
        webhooks=found,
        dead=sum(number for _, number, _ in found),
        most=PAGE_SIZE,
        next=following,
    )


@page("/webhooks/new", roles=OPERATORS)
async def ask_new_webhook(request: PageRequest) -> Response[Any]:
    """Ask where events are sent."""
    return request.show("webhook-new.html", title="Create a webhook", post_to="/webhooks/new", back="/webhooks")


@action("/webhooks/new")
async def create_webhook(request: PageRequest) -> Response[Any]:
    """Create a webhook, and show its secret this once."""
    service, url = request.service, await read_field(request, "url", longest=MAX_URL)
    types = {text for text in (await read_field(request, "types")).replace(",", " ").split() if text}
    if unknown := types - {*EventType}:
        raise ApiProblem(400, "unknown_event_type", f"types: {', '.join(sorted(unknown))[:200]} is not an event type")
    try:
        check_url(url, service.settings.webhook_networks)
        wish = AddWebhook(request.caller.tenant, url, frozenset(types), service.store.surroundings.entropy)
        made = await service.store.recorder.record(wish)
    except StoreError:
        raise
    except MeruitError as refused:
        raise ApiProblem(400, "bad_webhook", str(refused)) from None
    shown = request.show("webhook-made.html", made=made)
    shown.headers["Cache-Control"] = "no-store"
    return shown


@page("/webhooks/{webhook_id:str}")
async def show_webhook(request: PageRequest, webhook_id: FromPath[str]) -> Response[Any]:
    """Show a webhook: deliveries that are tried again, and dead letters."""
    tenant, query = request.caller.tenant, Query.of(request)
    after = query.number("after") or 0

    def ask(connection: Connection) -> dict[str, Any]:
        return {
            "dead": events.list_dead_letters(connection, tenant, webhook_id, after=after, limit=PAGE_SIZE),
            "pending": events.list_pending_deliveries(connection, tenant, webhook_id, limit=PAGE_SIZE),
            "webhook": events.find_webhook(connection, tenant, webhook_id),
            "recent": events.list_recent_deliveries(
                connection, tenant, webhook_id, before=query.number("before"), limit=RECENT
            ),
        }

    values = await request.service.read(ask)
    dead, recent = values["dead"], values["recent"]
    return request.show(
        "webhook.html",
        live=Live(),
        query=query,
        next=query.turn("after", dead[-1].seq) if len(dead) == PAGE_SIZE else None,
        older=query.turn("before", recent[-1].seq) if len(recent) == RECENT else None,
        tones={DeliveryState.DELIVERED: "pass", DeliveryState.RETRIED: "partial", DeliveryState.DEAD: "error"},
        **values,
    )


@page("/webhooks/{webhook_id:str}/delete", roles=OPERATORS)
async def ask_delete_webhook(request: PageRequest, webhook_id: FromPath[str]) -> Response[Any]:
    """Ask before a webhook is deleted."""
    tenant = request.caller.tenant
    webhook = await request.service.read(lambda connection: events.find_webhook(connection, tenant, webhook_id))
    return request.show(
        "webhook-delete.html",
        title="Delete this webhook?",
        webhook=webhook,
        post_to=f"/webhooks/{webhook_id}/delete",
        back=f"/webhooks/{webhook_id}",
    )


@action("/webhooks/{webhook_id:str}/delete")
async def delete_webhook(request: PageRequest, webhook_id: FromPath[str]) -> Response[Any]:
    """Delete a webhook; what waits for delivery is dropped."""
    await request.service.store.recorder.record(RemoveWebhook(request.caller.tenant, webhook_id))
    return request.go_to("/webhooks", "The webhook is deleted.")


@action("/webhooks/{webhook_id:str}/dead/{seq:int}/replay")
async def replay(request: PageRequest, webhook_id: FromPath[str], seq: FromPath[int]) -> Response[Any]:
    """Deliver a dead letter again."""
    await request.service.store.recorder.record(Redeliver(request.caller.tenant, webhook_id, seq))
    return request.go_to(f"/webhooks/{webhook_id}", f"Event {seq} is sent again now.")


@action("/webhooks/{webhook_id:str}/events/{seq:int}/replay")
async def send_again(request: PageRequest, webhook_id: FromPath[str], seq: FromPath[int]) -> Response[Any]:
    """Send an event again that was delivered."""
    await request.service.store.recorder.record(SendAgain(request.caller.tenant, webhook_id, seq))
    return request.go_to(f"/webhooks/{webhook_id}", f"Event {seq} is sent again now.")


@page("/settings", roles=ADMINS, nav=NavEntry("Service", "Settings", order=30))
async def show_settings(request: PageRequest) -> Response[Any]:
    """Show the settings as in force; secrets are hidden."""
    return request.show("settings.html", sections=list_settings(request.service.configuration))


@page("/service", nav=NavEntry("Service", "Health", order=40))
async def show_health(request: PageRequest) -> Response[Any]:
    """Show whether the service is well: database, queue, log, workers, sandbox."""
    service = request.service

    def ask(connection: Connection) -> dict[str, Any]:
        now = to_micros(request.now)
        return {
            "log_size": log.log_size(connection),
            "checkpoint_age": timedelta(microseconds=log.checkpoint_age_micros(connection, now)),
            "workers": agent_runs.live_workers(connection, now),
            "newest_event": events.newest_event(connection),
        }

    values = await service.read(ask)
    return request.show(
        "health.html",
        version=__version__,
        database=service.store.database.location.kind,
        queue=service.store.recorder.queue_length,
        streams=service.open_streams.total,
        integrity=service.integrity,
        witnessing=service.witnessing,
        **values,
    )


@action("/service/doctor")
async def run_doctor(request: PageRequest) -> Response[Any]:
    """Test the sandbox on this machine with hostile code; takes some seconds."""
    examined = [await asyncio.to_thread(examine, tier) for tier in Tier]
    return request.show("doctor.html", examined=examined, machine=describe_machine())
