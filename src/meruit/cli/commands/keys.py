"""`meruit keys`: the API keys of the service."""

from datetime import timedelta

import click

from meruit.cli.terminal import (
    ExitCode,
    json_option,
    note,
    print_json,
    print_table,
    say,
    store_options,
    tenant_option,
)

ROLES = ("agent", "operator", "auditor", "admin")


@click.group()
def keys() -> None:
    """Create, list and revoke API keys.

    Until the first key exists, `meruit serve` accepts requests of this machine without a key.
    """


@keys.command()
@click.argument("name")
@click.option("--role", type=click.Choice(ROLES), required=True, help="Role of the key.")
@click.option("--agent-id", metavar="ID", help="Agent that the key acts as; required for the role agent.")
@click.option("--days", type=click.IntRange(1, 3650), metavar="N", help="Days until the key expires (default: never).")
@tenant_option
@store_options
@json_option
def create(  # noqa: PLR0913 - one an option
    *,
    name: str,
    role: str,
    agent_id: str | None,
    days: int | None,
    tenant: str,
    data: str | None,
    database_url: str | None,
    as_json: bool,
) -> int:
    """Create a key; its secret is printed only once."""
    from meruit.app import open_store
    from meruit.config import location_of
    from meruit.model.access import Role
    from meruit.model.outcome import MAX_LABEL
    from meruit.store.access.keys import NewKey, check_new_key
    from meruit.store.store import ClockAndEntropy

    for what, given in (("NAME", name), ("--agent-id", agent_id)):
        if given is not None and not (given.isprintable() and 0 < len(given) <= MAX_LABEL):
            raise click.UsageError(f"{what} must be 1 to {MAX_LABEL} printable characters")
    if (role == Role.AGENT) != (agent_id is not None):
        raise click.UsageError("--agent-id is required for the role agent, and not allowed for other roles")
    surroundings = ClockAndEntropy()
    expires = None if days is None else surroundings.clock() + timedelta(days=days)
    wish = NewKey(
        tenant=tenant, role=Role(role), name=name, agent_id=agent_id, expires_at=expires, entropy=surroundings.entropy
    )
    # Validated before the first write.
    check_new_key(wish)
    store = open_store(location_of(data, database_url), make=True)
    try:
        made = store.recorder.write(wish)
    finally:
        store.close()
    if as_json:
        print_json(made.to_json())
    else:
        note("a running service accepts the key within two seconds")
        note(f"the secret is shown only once; send it as `Authorization: Bearer …` ({role} of the tenant {tenant})")
        say(made.secret)
    return ExitCode.PASSED


@keys.command(name="list")
@click.option("--tenant", metavar="NAME", help="Filter by tenant (default: every tenant).")
@store_options
@json_option
def list_keys(*, tenant: str | None, data: str | None, database_url: str | None, as_json: bool) -> int:
    """List keys, without their secrets."""
    import msgspec

    from meruit.app import open_store
    from meruit.config import location_of
    from meruit.store.access import keys as stored

    store = open_store(location_of(data, database_url))
    try:
        found = []
        after: str | None = None
        with store.database.reading() as connection:
            while page := stored.page(connection, tenant=tenant, after=after):
                found += page
                after = page[-1].id
        now = store.surroundings.clock()
    finally:
        store.close()
    if as_json:
        print_json(msgspec.json.encode({"keys": found}))
        return ExitCode.PASSED
    rows = [
        (
            key.id,
            key.tenant,
            key.role,
            key.agent_id or "–",
            "revoked" if key.revoked_at else "expired" if key.expires_at and key.expires_at <= now else "in force",
            key.expires_at.date().isoformat() if key.expires_at else "–",
            key.name,
        )
        for key in found
    ]
    print_table(("key", "tenant", "role", "agent", "state", "expires", "name"), rows)
    return ExitCode.PASSED


@keys.command()
@click.option("--tenant", metavar="NAME", help="Filter by tenant (default: every tenant).")
@store_options
@json_option
def usage(*, tenant: str | None, data: str | None, database_url: str | None, as_json: bool) -> int:
    """Show what each key has stored.

    Counts requests that write and were accepted, and the bytes of their bodies. `service.tenant_stored_mb` and
    `service.agent_key_stored_mb` limit them.
    """
    import msgspec

    from meruit.cli.shared.open_store import open_records
    from meruit.store.access.key_use import read_key_use

    with open_records(data, database_url) as store, store.database.reading() as connection:
        found = read_key_use(connection, tenant)
    if as_json:
        print_json(msgspec.json.encode({"keys": found}))
    else:
        rows = [(one.key_id, one.tenant, f"{one.requests:,}", f"{one.bytes:,}") for one in found]
        print_table(("key", "tenant", "requests", "bytes"), rows)
    return ExitCode.PASSED


@keys.command()
@click.argument("key_id", metavar="KEY")
@store_options
@json_option
def revoke(*, key_id: str, data: str | None, database_url: str | None, as_json: bool) -> int:
    """Revoke a key by its id (mk_…); it stays in the list."""
    from meruit.app import open_store
    from meruit.config import location_of
    from meruit.store.access.keys import Revoke

    store = open_store(location_of(data, database_url))
    try:
        # The whole key is accepted too; its first half is the id.
        revoked = store.recorder.write(Revoke(key_id.partition(".")[0], None))
    finally:
        store.close()
    if as_json:
        print_json(revoked.to_json())
    else:
        say(f"{revoked.id} is revoked; a running service rejects it within two seconds")
    return ExitCode.PASSED
