"""Audit: the log, its checkpoints, and a check of bundles and receipts."""

import asyncio
import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any
from urllib.parse import quote

import msgspec
from sqlalchemy import Connection
from starlette.datastructures import UploadFile

from meruit.api.file_stream import stream_table
from meruit.audit.bundle import MAX_BUNDLE_BYTES
from meruit.audit.verify.outcome import verify_bundle
from meruit.console.contract_words import table_format
from meruit.console.live import Live
from meruit.console.page import READERS, NavEntry, PageRequest, action, page
from meruit.console.query import Query
from meruit.console.shape import plural
from meruit.documents.csv_table import Cell
from meruit.errors import ApiProblem, NoteError
from meruit.log.merkle import is_consistent
from meruit.log.note import Checkpoint, open_checkpoint
from meruit.model.canonical import IN_SLICES
from meruit.store import log
from meruit.store.lru import LruCache
from meruit.store.paging import ListPage, iterate_pages
from meruit.web.responses import Response

PAGE_SIZE = 25
CHECKPOINTS = 6
RECHECK = timedelta(minutes=1)
"""Older checkpoints that were found sound are checked again after this time; the newest two at every request."""
MAX_KEPT = 1_000
SIGNATURE = "\u2014 "
HEADINGS = ("entry", "at", "kind", "about", "content")
TONES = {"ok": "pass", "failed": "fail", "skipped": "open", "not reached": "error"}


@page("/audit", nav=NavEntry("Proof", "Audit", keys="l", order=10))
async def show_audit(request: PageRequest) -> Response[Any]:
    """Show the log, check its newest checkpoints, and offer to check a bundle."""
    query, store, tenant = Query.of(request), request.service.store, request.caller.tenant
    before = query.number("before")

    def read(first: int | None, limit: int) -> ListPage[log.LogLeaf]:
        with store.database.reading() as connection:
            return log.page(connection, tenant, before=first, limit=limit)

    kind = table_format(query)
    if kind is not None:
        return await stream_table(request, kind, HEADINGS, lambda: _rows(iterate_pages(read, before)))

    def ask(connection: Connection) -> dict[str, Any]:
        signed = log.newest_checkpoints(connection, CHECKPOINTS)
        return {
            "size": log.log_size(connection),
            "checkpoints": signed,
            "problem": _find_problem(connection, signed, request),
            "entries": log.page(connection, tenant, before=before, limit=PAGE_SIZE),
        }

    values = await request.service.read(ask)
    entries: ListPage[log.LogLeaf] = values["entries"]
    shown = [describe_entry(one) for one in entries.entries]
    return request.show(
        "audit.html",
        live=Live(),
        query=query,
        vkey=store.signer.vkey,
        origin=store.signer.name,
        shown=shown,
        next=None if entries.next is None else query.turn("before", entries.next),
        findings=None,
        cosigners=[find_cosigners(one.note, store.signer.name) for one in values["checkpoints"]],
        witnessing=request.service.witnessing,
        integrity=request.service.integrity,
        # They name records of all tenants.
        problems=request.service.integrity.problems if tenant == request.service.settings.operator_tenant else [],
        **values,
    )


def _rows(pages: Iterable[Sequence[log.LogLeaf]]) -> Iterator[tuple[Cell, ...]]:
    for one in (describe_entry(entry) for entries in pages for entry in entries):
        yield one.position, one.at, one.kind, "; ".join(text for _, text in one.about), one.content


@action("/audit/check", roles=READERS)
async def check_bundle(request: PageRequest) -> Response[Any]:
    """Check a bundle with the service's own code, verdict and bill included; nothing is kept."""
    uploaded = (await request.form()).get("bundle")
    if not isinstance(uploaded, UploadFile):
        raise ApiProblem(400, "invalid", "bundle: choose a file")
    content = await uploaded.read()
    if not content:
        raise ApiProblem(400, "invalid", "bundle: the file is empty; choose another one")
    if len(content) > MAX_BUNDLE_BYTES:
        raise ApiProblem(413, "too_large", f"a bundle has at most {MAX_BUNDLE_BYTES:,} bytes")
    # In the context of this request only: the work in the bundle may be large.
    IN_SLICES.set(True)
    signer = request.service.store.signer.verifier
    found = await asyncio.to_thread(verify_bundle, content, key=signer)
    return request.show("audit-findings.html", findings=found, tones=TONES, name=uploaded.filename)


def find_cosigners(note: str, log_name: str) -> list[str]:
    """Who signed a checkpoint beside the log itself, by the names in its signature lines."""
    lines = note.rpartition("\n\n")[2].splitlines()
    names = [line.split(" ")[1] for line in lines if line.startswith(SIGNATURE) and line.count(" ") == 2]
    return [name for name in names if name != log_name]


class EntryView(msgspec.Struct, frozen=True):
    """One entry of the log as the page lists it."""

    position: int
    kind: str
    at: datetime | None
    about: list[tuple[str, str]]
    """Address and id of each record that it is about."""
    summary: str
    content: str
    """The entry itself, as JSON."""


def describe_entry(leaf: log.LogLeaf) -> EntryView:
    """What an entry is about, and what it says in a few words."""
    fields = leaf.fields()
    about = [
        (place.format(quote(str(value), safe="")), str(value))
        for name, place in _PLACES.items()
        if isinstance(value := fields.get(name), str) and value.startswith(_STARTS[name])
    ]
    if isinstance(run := fields.get("run"), str):
        about.append((f"/{'usage' if fields.get('kind') == 'usage' else 'agent-runs'}/{quote(run, safe='')}", run))
    if isinstance(digest := fields.get("digest"), str):
        about.append(("", digest))
    parts = [str(fields[name]).replace("_", " ") for name in _SAID if fields.get(name) not in (None, "")]
    if isinstance(cases := fields.get("cases"), int):
        parts.append(plural(cases, "case"))
    if fields.get("kind") == "label":
        parts.append(f"case {fields.get('draw')} by {fields.get('labeller')}")
    if fields.get("kind") == "gate":
        parts.insert(0, str(fields.get("outcome", "")))
    written = fields.get("at")
    return EntryView(
        position=leaf.position,
        kind=str(fields.get("kind") or "entry"),
        at=datetime.fromisoformat(written) if isinstance(written, str) else None,
        about=about,
        summary=", ".join(parts),
        content=json.dumps(fields, ensure_ascii=False, indent=2),
    )


_PLACES = {
    "outcome": "/outcomes/{}",
    "contract": "/contracts/{}",
    "review": "/reviews/{}",
    "evaluation": "/evaluations/{}",
}
_SAID = ("verdict", "disposition", "status", "code", "reason")


_STARTS = {"outcome": "out_", "contract": "con_", "review": "rev_", "evaluation": "ev_"}
"""An outcome without a contract is logged under its own id, and a submission's `outcome` is a word."""


def _find_problem(connection: Connection, signed: list[log.SignedCheckpoint], request: PageRequest) -> str:
    """What is wrong with the newest checkpoints: signatures, and that each log continues the one before."""
    store, now = request.service.store, request.now
    key = store.signer.verifier
    opened: list[Checkpoint] = []
    for one in signed:
        try:
            opened.append(open_checkpoint(one.note, key))
        except NoteError as problem:
            return f"the checkpoint of {one.size:,} entries is not signed by this log's key: {problem}"
    for place, (newer, older) in enumerate(pairwise(opened)):
        pair = (store.signer.vkey, older.root, newer.root)
        checked = _checked.get(pair)
        if place and checked is not None and now - checked < RECHECK:
            continue
        proof = log.proof_of_consistency(connection, older.size, newer.size)
        if not is_consistent(older.size, newer.size, proof, older.root, newer.root):
            return f"the log of {newer.size:,} entries does not continue that of {older.size:,}"
        _checked.put(pair, now)
    return ""


_checked = LruCache[tuple[str, bytes, bytes], datetime](MAX_KEPT)
"""When the log between two checkpoints was found sound; only in this process."""
