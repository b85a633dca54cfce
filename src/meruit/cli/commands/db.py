"""`meruit db`: the database of a data folder."""

from typing import TYPE_CHECKING

import click

from meruit.cli.terminal import ExitCode, json_option, note, print_json, say, store_options

if TYPE_CHECKING:
    from meruit.store.migrate import DatabaseStatus


@click.group()
def db() -> None:
    """Show the state of the database and upgrade it.

    Commands that write to the database upgrade it by themselves.
    """


@db.command()
@store_options
@json_option
def status(*, data: str | None, database_url: str | None, as_json: bool) -> int:
    """Show the version and size of the database; changes nothing.

    Exit codes: 0 the database is current, 1 it is older, newer or missing.
    """
    import msgspec

    from meruit.config import location_of
    from meruit.store import migrate as opening

    found = opening.status(location_of(data, database_url))
    if as_json:
        print_json(msgspec.json.encode(msgspec.to_builtins(found) | {"current": found.is_current}))
    elif not found.exists:
        say(f"{found.location}: does not exist yet; `meruit db upgrade` or `meruit serve` creates it")
    else:
        need = "current" if found.is_current else f"this version needs {found.head}; {_next(found)}"
        say(f"{found.location}: {f'tables at {found.revision}' if found.revision else 'no tables yet'} ({need})")
        # The tables of another version may differ.
        if found.revision is not None and found.is_known:
            say(f"{found.outcomes:,} outcomes, {found.log_size:,} log entries, {found.events:,} events")
    return ExitCode.PASSED if found.is_current else ExitCode.NOT_PASSED


def _next(found: "DatabaseStatus") -> str:
    return "run `meruit db upgrade`" if found.is_known else "use the version of Meruit that created it"


@db.command()
@store_options
@json_option
def upgrade(*, data: str | None, database_url: str | None, as_json: bool) -> int:
    """Create or upgrade the tables; backs up a SQLite file first."""
    import msgspec

    from meruit.config import location_of
    from meruit.store import migrate as opening

    location = location_of(data, database_url)
    done = opening.upgrade(location)
    if as_json:
        change = {"before": done.before, "after": done.after, "backup": str(done.backup) if done.backup else None}
        print_json(msgspec.json.encode({"location": location.display_name} | change))
    elif done.before == done.after:
        say(f"{location.display_name}: tables at {done.after}, nothing to do")
    else:
        before = "new" if done.before is None else f"before: {done.before}"
        say(f"{location.display_name}: tables at {done.after} ({before})")
        if done.backup is not None:
            say(f"backup: {done.backup}")
    return ExitCode.PASSED


@db.command(name="replace-key")
@click.option("--root", metavar="ROOT.pem", required=True, help="Root key that admits the new one.")
@store_options
@json_option
def replace_key(*, root: str, data: str | None, database_url: str | None, as_json: bool) -> int:
    """Create a new signing key after the old one was lost.

    The root key admits it (`meruit audit root`). Publish the new key to all readers who check your signatures.
    """
    import msgspec

    from meruit.cli.auditing.keys import load_root
    from meruit.config import location_of
    from meruit.errors import MeruitError, StoreError
    from meruit.store.location import KEY_FILE
    from meruit.store.store import Store

    location = location_of(data, database_url)
    if (location.folder / KEY_FILE).exists():
        raise StoreError(f"{location.folder / KEY_FILE} exists; only a lost key can be replaced")
    admitting = load_root(root)
    store = Store.open(location, new_key=True)
    try:
        store.admit_key(admitting, store.signer.vkey, "")
    except MeruitError:
        (location.folder / KEY_FILE).unlink()
        raise
    finally:
        store.close()
    if as_json:
        print_json(msgspec.json.encode({"vkey": store.signer.vkey}))
    else:
        note("earlier signatures keep the old key; the new key signs from now on")
        say(store.signer.vkey)
    return ExitCode.PASSED
