"""Audit: the log, its checkpoints, and a check of bundles and receipts."""

import asyncio
from itertools import pairwise
from typing import Any

from litestar import Response
from litestar.datastructures import UploadFile
from sqlalchemy import Connection

from meruit.audit.bundle import MAX_BUNDLE_BYTES
from meruit.audit.verify.outcome import verify_bundle
from meruit.console.live import Live
from meruit.console.page import READERS, NavEntry, PageRequest, action, page
from meruit.console.query import Query
from meruit.errors import ApiProblem, NoteError
from meruit.log.merkle import is_consistent
from meruit.log.note import Checkpoint, open_checkpoint
from meruit.store import log

PAGE_SIZE = 50
CHECKPOINTS = 10
TONES = {"ok": "pass", "failed": "fail", "skipped": "open", "not reached": "error"}


@page("/audit", nav=NavEntry("Proof", "Audit", keys="l", order=10))
async def show_audit(request: PageRequest) -> Response[Any]:
    """Show the log, check its newest checkpoints, and offer to check a bundle."""
    query, store, tenant = Query.of(request), request.service.store, request.caller.tenant
    before = query.number("before")

    def ask(connection: Connection) -> dict[str, Any]:
        signed = log.newest_checkpoints(connection, CHECKPOINTS)
        return {
            "size": log.log_size(connection),
            "checkpoints": signed,
            "problem": _find_problem(connection, signed, request),
            "entries": log.page(connection, tenant, before=before, limit=PAGE_SIZE),
        }

    values = await request.service.read(ask)
    entries = values["entries"]
    return request.show(
        "audit.html",
        live=Live(),
        vkey=store.signer.vkey,
        origin=store.signer.name,
        shown=[(one.position, one.fields()) for one in entries],
        next=query.turn("before", entries[-1].position) if len(entries) == PAGE_SIZE else None,
        findings=None,
        **values,
    )


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
    signer = request.service.store.signer.verifier
    found = await asyncio.to_thread(verify_bundle, content, key=signer)
    return request.show("audit-findings.html", findings=found, tones=TONES, name=uploaded.filename)


def _find_problem(connection: Connection, signed: list[log.SignedCheckpoint], request: PageRequest) -> str:
    """What is wrong with the newest checkpoints: signatures, and that each log continues the one before."""
    key = request.service.store.signer.verifier
    opened: list[Checkpoint] = []
    for one in signed:
        try:
            opened.append(open_checkpoint(one.note, key))
        except NoteError as problem:
            return f"the checkpoint of {one.size:,} entries is not signed by this log's key: {problem}"
    for newer, older in pairwise(opened):
        proof = log.proof_of_consistency(connection, older.size, newer.size)
        if not is_consistent(older.size, newer.size, proof, older.root, newer.root):
            return f"the log of {newer.size:,} entries does not continue that of {older.size:,}"
    return ""
