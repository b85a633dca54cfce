"""Compare the contents of a bundle with the commitments of the log."""

from collections.abc import Mapping
from hashlib import sha256

from meruit.audit.bundle import (
    CONTRACT,
    Bundle,
    ContractFile,
    short,
)
from meruit.audit.verify.history import OutcomeHistory
from meruit.audit.verify.usage import check_usage
from meruit.documents.sanitize import describe
from meruit.errors import AuditStep, BundleFlaw
from meruit.log.commitment import matches, salt_of
from meruit.log.entries import (
    GOVERNANCE,
    RESULT,
    SettlementEntry,
    criteria_digest_of,
)
from meruit.model.contract import parse_stored_work


def check_blobs(bundle: Bundle, story: OutcomeHistory) -> str:
    """What holds, as a sentence."""
    wanted = {verdict.criteria for verdict in story.verdicts}
    if bundle.criteria.keys() != wanted:
        raise BundleFlaw(AuditStep.BLOBS, "criteria are missing, or there are some by which nothing was judged")
    for digest, body in bundle.criteria.items():
        if criteria_digest_of(body) != digest:
            raise BundleFlaw(AuditStep.BLOBS, f"criteria/{digest}.json is not what was committed to")
    evidence = story.evidence
    work = {"input": evidence.input, "output": evidence.output, "metadata": evidence.metadata}
    gone = _check_pieces("work", work, bundle.work, bundle.salts.of_work(), story.erased)
    results = {str(verdict.version): verdict.result for verdict in story.verdicts}
    stored = {str(version): content for version, content in bundle.results.items()}
    erased = frozenset(results) if RESULT in story.erased else frozenset()
    gone += _check_pieces("verdicts", results, stored, bundle.salts.results, erased)
    gone += _check_contract(bundle.contract, story)
    if bundle.contract is not None:
        _check_agreed_input(bundle.contract, bundle.work.get("input"))
    check_usage(bundle.usage, {} if story.contract is None else story.contract.usage)
    return "all are what was committed to" if not gone else f"erased, as the log says: {', '.join(gone)}"


def _check_contract(contract: ContractFile | None, story: OutcomeHistory) -> list[str]:
    """What of the contract is gone; the rest is what was committed to."""
    if (contract is None) != (story.contract is None):
        raise BundleFlaw(AuditStep.BLOBS, f"{CONTRACT} is missing, or there was no contract")
    if contract is None or story.contract is None:
        return []
    if sha256(contract.terms).hexdigest() != story.contract.award.terms:
        raise BundleFlaw(AuditStep.BLOBS, "the terms are not those that were committed to")
    if sha256(contract.work).hexdigest() != story.contract.award.work_digest:
        raise BundleFlaw(AuditStep.BLOBS, "the work is not the one that was committed to, or another was planted in it")
    bills = {str(entry.number): entry.bill for _, entry in story.contract.money if isinstance(entry, SettlementEntry)}
    if {number: sha256(bill).hexdigest() for number, bill in contract.bills.items()} != bills:
        raise BundleFlaw(AuditStep.BLOBS, "the bills are not those that were committed to")
    known = {str(entry.version): entry.dossier for entry in story.contract.governance}
    erased = frozenset(known) if GOVERNANCE in story.erased else frozenset()
    bodies = {version: record.body for version, record in contract.governance.items()}
    salts = {version: record.salt for version, record in contract.governance.items()}
    return _check_pieces(GOVERNANCE, known, bodies, salts, erased)


def _check_agreed_input(contract: ContractFile, given: bytes | None) -> None:
    """The input that was judged is the one that the award commits to; nothing is said of one that was erased."""
    if (given is None) != (contract.input_salt is None):
        raise BundleFlaw(AuditStep.BLOBS, f"the input and its salt in {CONTRACT} are not both there")
    if given is None or contract.input_salt is None:
        return
    try:
        agreed = parse_stored_work(contract.work).input_commitment
    except (ValueError, RecursionError) as problem:
        raise BundleFlaw(AuditStep.BLOBS, f"the work cannot be read: {describe(problem)}") from None
    if not matches(agreed, salt_of(contract.input_salt), given):
        raise BundleFlaw(AuditStep.BLOBS, "work/input.json is not the input that the contract was awarded for")


def _check_pieces(
    folder: str,
    commitments: Mapping[str, str],
    contents: Mapping[str, bytes],
    salts: Mapping[str, str],
    erased: frozenset[str],
) -> list[str]:
    """The names of those that are gone, by right and for good; each of the others must match its commitment."""
    if strange := sorted((contents.keys() | salts.keys()) - commitments.keys()):
        raise BundleFlaw(AuditStep.BLOBS, f"the log has no {folder}/{short(strange[0])}")
    for name in contents.keys() | salts.keys():
        if name in erased:
            raise BundleFlaw(AuditStep.BLOBS, f"{folder}/{name}.json is there, though the log says that it was erased")
        if name not in contents or name not in salts:
            raise BundleFlaw(AuditStep.BLOBS, f"{folder}/{name}.json and its salt are not both there")
        if not matches(commitments[name], salt_of(salts[name]), contents[name]):
            raise BundleFlaw(AuditStep.BLOBS, f"{folder}/{name}.json is not what was committed to")
    gone = [name for name in commitments if name not in contents]
    for name in gone:
        if name not in erased:
            raise BundleFlaw(
                AuditStep.BLOBS, f"{folder}/{name}.json is missing, and the log does not say that it was erased"
            )
    return [f"{folder}/{name}.json" for name in gone]
