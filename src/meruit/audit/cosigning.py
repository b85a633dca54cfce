"""Ask witnesses to cosign the checkpoints of a store, and keep what they sign."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from typing import TypeAlias

import msgspec
from sqlalchemy import select, update

from meruit.audit.known_witness import KnownWitness
from meruit.errors import HttpError, NoteError, WitnessRefusal
from meruit.log.cosignature import Cosignature, add_cosignatures, cosignatures, find_cosignatures
from meruit.log.note import read_signature, split_note
from meruit.log.witness_request import AddCheckpoint
from meruit.sources.http import HttpClient, HttpResponse
from meruit.sources.http_replies import HttpReply
from meruit.sources.retry import BackoffSchedule, ReadLimits, ReadPolicy
from meruit.store import log as audit
from meruit.store import tables
from meruit.store.checkpoint import checkpoint
from meruit.store.log import SignedCheckpoint
from meruit.store.store import Store
from meruit.store.transaction import WriteTransaction

MAX_REPLY_BYTES = 16 * 1024
TIMEOUT_S = 20.0
MAX_ROUNDS = 3
"""Requests for one cosignature: the witness may name another old size, and again while others ask it."""
_SIZE = re.compile(rb"(0|[1-9][0-9]{0,18})\n?")

Prove: TypeAlias = Callable[[int, int], Awaitable[Sequence[bytes]]]
"""`prove(old, new)`: the consistency proof between two sizes of the log."""


class WitnessClient:
    """Asks witnesses over HTTP; remembers which size each cosigned last."""

    def __init__(self, http: HttpClient | None = None) -> None:
        once = ReadPolicy(
            retry=BackoffSchedule(tries=1), limits=ReadLimits(reply_bytes=MAX_REPLY_BYTES, timeout_s=TIMEOUT_S)
        )
        self._http = http or HttpClient(policy=once)
        self._sizes: dict[bytes, int] = {}

    async def ask(self, witness: KnownWitness, signed: SignedCheckpoint, prove: Prove) -> Cosignature:
        """The witness's cosignature of the checkpoint; raises WitnessRefusal."""
        old = min(self._sizes.get(witness.key.public, 0), signed.size)
        for _ in range(MAX_ROUNDS):
            request = AddCheckpoint(old=old, proof=await prove(old, signed.size), note=signed.note)
            reply = await self._post(witness, request)
            if reply.status == HTTPStatus.OK:
                found = _read_cosignature(witness, signed, reply)
                self._sizes[witness.key.public] = signed.size
                return found
            if reply.status != HTTPStatus.CONFLICT:
                raise _refusal(witness, signed, reply)
            old = self._sizes[witness.key.public] = _size_in(witness, reply)
            if old > signed.size:
                raise WitnessRefusal(
                    "witness_ahead",
                    f"the witness {witness.name} has cosigned {old:,} entries of this log, and it has {signed.size:,}: "
                    "the log was rolled back; restore the database from a newer copy",
                )
        raise WitnessRefusal(
            "witness_busy", f"the witness {witness.name} named another size {MAX_ROUNDS} times; try again"
        )

    async def _post(self, witness: KnownWitness, request: AddCheckpoint) -> HttpReply:
        async def take(response: HttpResponse) -> HttpReply:
            return await response.read_start(MAX_REPLY_BYTES)

        try:
            return await self._http.request(
                "POST", f"{witness.url.rstrip('/')}/add-checkpoint", take, content=request.to_bytes()
            )
        except HttpError as problem:
            raise WitnessRefusal("witness_unreachable", f"the witness {witness.name}: {problem}") from None


def _read_cosignature(witness: KnownWitness, signed: SignedCheckpoint, reply: HttpReply) -> Cosignature:
    text, _ = split_note(signed.note)
    lines = []
    for line in reply.content.decode(errors="replace").splitlines():
        try:
            lines.append(read_signature(line))
        except NoteError:
            # Other kinds of cosignature may stand beside the one that we know.
            continue
    found = find_cosignatures(text, lines, [witness.key])
    if not found:
        raise WitnessRefusal(
            "witness_unsigned",
            f"the witness {witness.name} answered without a cosignature by {witness.key.name}+{witness.key.key_id}; "
            "compare the key in the settings with the one that it publishes",
        )
    return found[0]


def _size_in(witness: KnownWitness, reply: HttpReply) -> int:
    size = _SIZE.fullmatch(reply.content)
    if size is None:
        raise WitnessRefusal(
            "witness_unreadable", f"the witness {witness.name} answered 409 without the size that it knows"
        )
    return int(size[1])


def _refusal(witness: KnownWitness, signed: SignedCheckpoint, reply: HttpReply) -> WitnessRefusal:
    match reply.status:
        case HTTPStatus.NOT_FOUND:
            return WitnessRefusal(
                "witness_unknown_log",
                f"the witness {witness.name} does not know this log; send its operator the key that "
                "`meruit audit key` prints",
            )
        case HTTPStatus.FORBIDDEN:
            return WitnessRefusal(
                "witness_unknown_key",
                f"the witness {witness.name} does not trust the key that signs this log; send its operator the key "
                "that `meruit audit key` prints",
            )
        case HTTPStatus.UNPROCESSABLE_ENTITY:
            return WitnessRefusal(
                "witness_saw_fork",
                f"the witness {witness.name} has cosigned another history of this log than the one with "
                f"{signed.size:,} entries: the log was rewritten; restore the database from a copy",
            )
        case status:
            return WitnessRefusal("witness_unreadable", f"the witness {witness.name} answered {status}")


async def request_cosignatures(
    store: Store, client: WitnessClient, witnesses: Sequence[KnownWitness]
) -> tuple[SignedCheckpoint, dict[str, Cosignature | WitnessRefusal]]:
    """Ask all that have not cosigned the newest checkpoint, at once; what they sign is kept with it."""
    signed = await asyncio.to_thread(checkpoint, store)
    have = {one.witness.public: one for one in cosignatures(signed.note, [one.key for one in witnesses])}

    async def ask(witness: KnownWitness) -> Cosignature | WitnessRefusal:
        if (known := have.get(witness.key.public)) is not None:
            return known
        try:
            return await client.ask(witness, signed, lambda old, new: asyncio.to_thread(_prove, store, old, new))
        except WitnessRefusal as refusal:
            return refusal

    answers = dict(
        zip([one.name for one in witnesses], await asyncio.gather(*(ask(one) for one in witnesses)), strict=True)
    )
    new = [one for one in answers.values() if isinstance(one, Cosignature) and one.witness.public not in have]
    if new:
        await store.recorder.record(lambda writing: _keep(writing, signed, new))
    return msgspec.structs.replace(signed, note=add_cosignatures(signed.note, new)), answers


def _prove(store: Store, old: int, new: int) -> list[bytes]:
    with store.database.reading() as connection:
        return audit.proof_of_consistency(connection, old, new)


def _keep(writing: WriteTransaction, signed: SignedCheckpoint, new: Sequence[Cosignature]) -> None:
    """Add cosignatures to the checkpoint as it is kept; another process may have added others."""
    table = tables.checkpoints
    for (note,) in writing.read(select(table.c.note).where(table.c.size == signed.size)):
        writing.change(update(table).where(table.c.size == signed.size).values(note=add_cosignatures(note, new)))
