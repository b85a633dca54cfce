"""`meruit audit admit`, `root` and `rotate`: which keys may sign the log."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from meruit.cli.shared.open_store import open_records
from meruit.cli.terminal import ExitCode, json_option, note, print_json, say, store_options

if TYPE_CHECKING:
    from meruit.log.note import SigningKey

ROOT_NAME = "meruit-root"


@click.command("admit")
@click.argument("vkey", required=False)
@click.option("--root", metavar="ROOT.pem", help="Root key that admits it (default: the signing key of this folder).")
@click.option("--retire", metavar="VKEY", default="", help="Key in force that may not sign from here on.")
@store_options
@json_option
def admit_command(
    *, vkey: str | None, root: str | None, retire: str, data: str | None, database_url: str | None, as_json: bool
) -> int:
    """Admit a signing key to the log.

    VKEY is what another machine prints with `meruit audit key`; with --root, it defaults to the key of this folder. The
    entry is signed by a key in force or by the root, so database access alone admits nothing.
    """
    import msgspec

    with open_records(data, database_url) as store:
        if vkey is None and root is None:
            raise click.UsageError("name the key to admit, or give --root to admit the key of this folder")
        wanted = store.signer.vkey if vkey is None else vkey
        store.admit_key(load_root(root) if root else store.signer, wanted, retire)
    if as_json:
        print_json(msgspec.json.encode({"admitted": wanted, "retired": retire or None}))
    else:
        say(f"admitted {wanted}")
        if retire:
            note("restart services that sign with the retired key")
    return ExitCode.PASSED


@click.command("root")
@click.argument("file", metavar="ROOT.pem")
@store_options
@json_option
def root_command(*, file: str, data: str | None, database_url: str | None, as_json: bool) -> int:
    """Create a root key and record it in the log.

    The root key admits signing keys when the last one is lost. Move the file to where this machine and its database
    administrators cannot read it. A file that exists is used as it is. A log has one root.
    """
    import os

    import msgspec

    from meruit.log.key_chain import ROOT
    from meruit.log.note import SigningKey

    path = Path(file)
    with open_records(data, database_url) as store:
        store.require_admitted()
        if not path.exists():
            made = SigningKey.generate(ROOT_NAME, os.urandom(32))
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
                opened.write(made.to_pem())
        root = load_root(file)
        store.admit_key(store.signer, root.vkey, "", role=ROOT)
    if as_json:
        print_json(msgspec.json.encode({"root": root.vkey}))
    else:
        note(f"keep {file} offline: with it, keys can be admitted to the log")
        say(root.vkey)
    return ExitCode.PASSED


@click.command("rotate")
@store_options
@json_option
def rotate_command(*, data: str | None, database_url: str | None, as_json: bool) -> int:
    """Replace the signing key; the old key admits the new one.

    Stop services that use the folder first. Publish the new key to all readers who check your signatures.
    """
    import os

    import msgspec

    from meruit.log.note import SigningKey
    from meruit.store.location import KEY_FILE

    with open_records(data, database_url) as store:
        store.require_admitted()
        file = store.database.location.folder / KEY_FILE
        made, old = SigningKey.generate(store.signer.name, os.urandom(32)), store.signer.vkey
        # On disk before the log retires the old key: after a crash in between, it only has to be renamed.
        following = file.with_name(f"{KEY_FILE}.next")
        with os.fdopen(os.open(following, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as opened:
            opened.write(made.to_pem())
            opened.flush()
            os.fsync(opened.fileno())
        store.admit_key(store.signer, made.vkey, old)
        following.replace(file)
    if as_json:
        print_json(msgspec.json.encode({"vkey": made.vkey, "retired": old}))
    else:
        note(f"{old} may not sign any more; earlier signatures stay valid")
        say(made.vkey)
    return ExitCode.PASSED


def load_root(file: str) -> "SigningKey":
    """Read a root key; raises NoteError or UnreadableFile."""
    from meruit.cli.auditing.inputs import read_content
    from meruit.log.note import MAX_NOTE_BYTES, SigningKey

    return SigningKey.from_pem(ROOT_NAME, read_content(file, MAX_NOTE_BYTES))
