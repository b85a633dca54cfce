"""How the log of a store stands: its key, its root, and what its witnesses cosigned last."""

from collections.abc import Sequence

from meruit.audit.known_witness import KnownWitness
from meruit.log.cosignature import cosignatures
from meruit.model.record import Record
from meruit.store import log as audit
from meruit.store.store import Store

MAX_LOOKED = 500
"""Checkpoints among which the last cosignature of each witness is looked for."""


class WitnessStanding(Record, frozen=True):
    """What a configured witness cosigned last."""

    name: str
    entries: int | None
    """The size of that checkpoint; None where it cosigned none of the newest ones."""
    time_s: int | None
    """When, by the clock of the witness, in seconds since 1970."""


class LogStanding(Record, frozen=True):
    """What an operator should know of the audit log."""

    entries: int
    key: str
    signing: str
    """`ok`, `key_not_admitted`, `log_rewritten`, `log_rolled_back` or `kept_checkpoint_damaged`."""
    root: str
    """`none`, `founding` or `late`."""
    witnesses: list[WitnessStanding]


def describe_log(store: Store, witnesses: Sequence[KnownWitness]) -> LogStanding:
    """Read how the log stands."""
    with store.database.reading() as connection:
        signing = store.read_signing(connection)
        entries = audit.log_size(connection)
        notes = audit.newest_checkpoints(connection, MAX_LOOKED) if witnesses else []
    last: dict[str, WitnessStanding] = {}
    for note in notes:
        waiting = [one for one in witnesses if one.name not in last]
        for one in waiting:
            for found in cosignatures(note.note, [one.key]):
                last[one.name] = WitnessStanding(one.name, note.size, found.time_s)
        if len(last) == len(witnesses):
            break
    return LogStanding(
        entries=entries,
        key=store.signer.vkey,
        signing=signing.code,
        root=signing.root,
        witnesses=[last.get(one.name, WitnessStanding(one.name, None, None)) for one in witnesses],
    )
