"""`meruit db`: the tables of a data directory."""

from typing import TYPE_CHECKING

import click

from meruit.cli.terminal import ExitCode, json_option, note, print_json, say, store_options

if TYPE_CHECKING:
    from meruit.store.migrate import DatabaseStatus


@click.group()
def db() -> None:
    """See and upgrade the database. Commands that use it upgrade it by themselves."""


@db.command()
@store_options
@json_option
def status(*, data: str | None, database_url: str | None, as_json: bool) -> int:
    """Say what stands in the database; nothing is made or changed.

    Exit code 0 when it can be used as it is, 1 when it is older, newer or not there.
    """
    import msgspec

    from meruit.config import location_of
    from meruit.store import migrate as opening

    found = opening.status(location_of(data, database_url))
    if as_json:
        print_json(msgspec.json.encode(msgspec.to_builtins(found) | {"current": found.is_current}))
    elif not found.exists:
        say(f"{found.location}: not there yet; `meruit db upgrade` or `meruit serve` makes it")
    else:
        need = "current" if found.is_current else f"this version needs {found.head}; {_next(found)}"
        say(f"{found.location}: {f'tables at {found.revision}' if found.revision else 'no tables yet'} ({need})")
        # Another version may count differently.
        if found.revision is not None and found.is_known:
            say(f"{found.outcomes:,} outcomes, {found.log_size:,} log entries, {found.events:,} events")
    return ExitCode.PASSED if found.is_current else ExitCode.NOT_PASSED


def _next(found: "DatabaseStatus") -> str:
    return "run `meruit db upgrade`" if found.is_known else "use the version of Meruit that made it"


@db.command()
@store_options
@json_option
def upgrade(*, data: str | None, database_url: str | None, as_json: bool) -> int:
    """Bring the tables to this version; made when there are none. SQLite's file is copied first."""
    import msgspec

    from meruit.config import location_of
    from meruit.store import migrate as opening

    location = location_of(data, database_url)
    done = opening.upgrade(location)
    if as_json:
        told = {"before": done.before, "after": done.after, "backup": str(done.backup) if done.backup else None}
        print_json(msgspec.json.encode({"location": location.display_name} | told))
    elif done.before == done.after:
        say(f"{location.display_name}: tables at {done.after}, nothing to do")
    else:
        say(
            f"{location.display_name}: tables at {done.after} ({'new' if done.before is None else f'before: {done.before}'})"
        )
        if done.backup is not None:
            say(f"as it was before: {done.backup}")
    return ExitCode.PASSED


@db.command(name="replace-key")
@store_options
@json_option
def replace_key(*, data: str | None, database_url: str | None, as_json: bool) -> int:
    """Make another signing key where the old one is lost; tell everybody who checks what you sign."""
    import msgspec

    from meruit.config import location_of
    from meruit.errors import StoreError
    from meruit.store.location import KEY_FILE
    from meruit.store.store import Store

    location = location_of(data, database_url)
    if (location.folder / KEY_FILE).exists():
        raise StoreError(f"{location.folder / KEY_FILE} is there; only a key that is lost is replaced")
    store = Store.open(location, new_key=True)
    store.close()
    if as_json:
        print_json(msgspec.json.encode({"vkey": store.signer.vkey}))
    else:
        note("everything signed before keeps its old key; from here on this one signs")
        say(store.signer.vkey)
    return ExitCode.PASSED
