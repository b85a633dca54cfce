"""`meruit db`: the database of a data folder."""

from typing import TYPE_CHECKING

import click

from meruit.cli.terminal import ExitCode, json_option, note, print_json, say, store_options

if TYPE_CHECKING:
    from meruit.store.migrate import DatabaseStatus
    from meruit.store.store import Store


@click.group()
def db() -> None:
    """Show the state of the database and upgrade it.

    Commands that write to the database upgrade it by themselves.
    """


@db.command()
@store_options
@json_option
def status(*, data: str | None, database_url: str | None, as_json: bool) -> int:
    """Show version and size of the database; changes nothing.

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
    """Create or upgrade tables; backs up a SQLite file first."""
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


@db.command(name="accept-restored")
@store_options
@json_option
def accept_restored(*, data: str | None, database_url: str | None, as_json: bool) -> int:
    """Go on with a database restored from an older copy.

    The data folder knows how long the audit log was, and refuses to write to a shorter one. This command makes it begin
    again with the newest signed checkpoint of the database. What it knew is kept in a file, as evidence. Readers who
    follow the log and witnesses report that it was rolled back: tell them why.
    """
    import msgspec

    from meruit.app import open_store
    from meruit.config import location_of
    from meruit.errors import KeyNotAdmitted, LogRewritten, MeruitError
    from meruit.store.checkpoint_file import CheckpointFile

    location = location_of(data, database_url)
    file = CheckpointFile(location)
    kept, aside = file.read(), None
    try:
        entries = _read_known_size(open_store(location))
    except LogRewritten:
        if kept is None:
            raise
        aside = file.set_aside()
        try:
            entries = _read_known_size(open_store(location))
        except KeyNotAdmitted as problem:
            # The copy is older than the admission of this folder's key.
            entries = None
            note(str(problem))
        except MeruitError:
            # What the signatures of the copy itself contradict is not accepted.
            aside.replace(file.path)
            raise
    known = 0 if kept is None else kept.size
    if as_json:
        found = {"known": known, "entries": entries, "set_aside": None if aside is None else str(aside)}
        print_json(msgspec.json.encode(found))
    elif aside is None:
        say(f"nothing to accept: the log extends the {known:,} entries that this data folder knows")
    else:
        say("accepted" if entries is None else f"accepted: the log goes on after {entries:,} entries")
        note(f"what this data folder knew, {known:,} entries, is kept in {aside}")
    return ExitCode.PASSED


def _read_known_size(store: "Store") -> int:
    """Check the log of a store, and close it; how many entries it has. Raises LogRewritten."""
    from meruit.store.log import log_size

    try:
        store.require_known_log()
        with store.database.reading() as connection:
            return log_size(connection)
    finally:
        store.close()
