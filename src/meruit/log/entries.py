"""What the audit log holds: small entries of text and whole numbers, each with one byte form."""

import re
from hashlib import sha256
from typing import TypeAlias

import msgspec

from meruit.model.decoding import json_decoder
from meruit.model.record import Record

PARTS = ("input", "output", "metadata")
"""Of the work, as files and as an erasure name them."""
RESULT = "result"
"""What an erasure calls the results of all versions."""
GOVERNANCE = "governance"
"""What an erasure calls all that governance went by."""

OUR_CONTRACT = re.compile(r"con_[0-9a-f]{34}")
"""The id of a contract that was awarded here; clients must not choose one like it."""
# Sorted keys, ASCII names, no floats: these bytes are RFC 8785's canonical form.
_WRITER = msgspec.json.Encoder(order="sorted")


class _LogEntry(Record, frozen=True, tag_field="kind", forbid_unknown_fields=True):
    at: str
    """When, in UTC."""


# What is empty is left out, so that entries of the first key are to the byte what they always were.
class KeyEntry(_LogEntry, frozen=True, tag="key", omit_defaults=True):
    """A key may sign checkpoints from here on."""

    vkey: str
    by: str = ""
    """The key that admits it; empty for the first key of a log."""
    signature: str = ""
    """By that key, in base64; `key_chain` says over what."""
    role: str = ""
    """`root` for an operator's offline key, which admits keys and signs no checkpoint."""
    retires: str = ""
    """A key that may not sign from here on."""


class ApiKeyEntry(_LogEntry, frozen=True, tag="api_key"):
    """An API key may be used from here on."""

    tenant: str
    key: str
    """Its public half."""
    number: int
    """Of the entries on this key."""
    role: str
    agent: str
    """Empty where the role is not that of an agent."""
    digest: str
    """Of the whole record of the key, with the hash of its secret."""
    signature: str
    """By the key that signs the log, in base64: who writes to the database alone cannot make an API key."""

    @property
    def sequence(self) -> str:
        """The name under which the log numbers the entries on this key."""
        return api_key_sequence(self.key)

    def signed_content(self, origin: str) -> bytes:
        """What the signature is about."""
        facts = ["api key", origin, self.tenant, self.key, self.number, self.role, self.agent, self.digest]
        return msgspec.json.encode(facts)


class ApiKeyRevocationEntry(_LogEntry, frozen=True, tag="api_key_revocation"):
    """An API key may not be used any more."""

    tenant: str
    key: str
    number: int
    """Of the entries on this key."""

    @property
    def sequence(self) -> str:
        """The name under which the log numbers the entries on this key."""
        return api_key_sequence(self.key)


class CriteriaEntry(_LogEntry, frozen=True, tag="criteria"):
    """Criteria, committed before any work is judged by them."""

    tenant: str
    digest: str


class _ContractEntry(_LogEntry, frozen=True):
    tenant: str
    outcome: str
    contract: str
    contract_seq: int
    """Without a gap in one contract, so that nothing can be left out."""


# Work without a contract claims no run, and its entries stay as short as they were.
class EvidenceEntry(_ContractEntry, frozen=True, tag="evidence", omit_defaults=True):
    """What was handed in, as salted hashes."""

    input: str
    output: str
    metadata: str
    run: str = ""
    """The fingerprint of the run that a contract is to be paid for, under the salt of the metadata; empty for none."""


class VerdictEntry(_ContractEntry, frozen=True, tag="verdict"):
    """What was decided on it, as a version that is never changed."""

    version: int
    criteria: str
    criteria_index: int
    """Where the log holds the criteria; before the evidence, or after it where a version says why."""
    evidence_index: int
    result: str
    """The whole result, as a salted hash."""
    verdict: str
    success: bool
    score: str
    """As a fraction."""
    bonus_micros: int
    penalty_micros: int
    reason: str
    """Why there is a version after the first."""


class ErasureEntry(_ContractEntry, frozen=True, tag="erasure"):
    """What of the evidence was erased; its hashes stay, and say nothing without their salt."""

    parts: tuple[str, ...]
    reason: str


class AwardEntry(_ContractEntry, frozen=True, tag="award"):
    """A contract is made, and its money put aside; the first entry of the contract, before there is an outcome."""

    work: str
    work_digest: str
    """Of the work as it is kept: its terms, and what is planted in it."""
    agent: str
    consumer: str
    criteria: str
    """Their digest; empty for work that is paid by completion alone."""
    terms: str
    """Their digest."""
    currency: str
    hold_micros: int
    by: str


class InputReadEntry(_ContractEntry, frozen=True, tag="input_read"):
    """The agent is given the input of the work for the first time, or had it already when it got the contract."""

    by: str


class StartEntry(_ContractEntry, frozen=True, tag="start"):
    """The agent reports that it starts."""

    by: str


class GovernanceEntry(_ContractEntry, frozen=True, tag="governance"):
    """Whether a verdict was believed."""

    version: int
    disposition: str
    flags: tuple[str, ...]
    dossier: str
    """All that it rests on, as a salted hash."""


class SettlementEntry(_ContractEntry, frozen=True, tag="settlement"):
    """What was paid for a version of the verdict."""

    number: int
    version: int
    currency: str
    base_micros: int
    bonus_micros: int
    penalty_micros: int
    total_micros: int
    fee_micros: int
    payout_micros: int
    released_micros: int
    bill: str
    """The digest of its lines."""
    by: str
    reason: str
    """Why it was paid although something held it; empty when nothing did."""


class RunPaymentEntry(_LogEntry, frozen=True, tag="run_payment"):
    """A contract is paid for a run of its agent; whether it still is, its own entries say."""

    tenant: str
    run: str
    """The fingerprint of the run."""
    number: int
    """Without a gap in one run, so that no payment can be left out."""
    contract: str

    @property
    def sequence(self) -> str:
        """The name under which the log numbers the payments of this run."""
        return run_sequence(self.run)


class ReversalEntry(_ContractEntry, frozen=True, tag="reversal"):
    """A settlement is taken back, all of it."""

    number: int
    currency: str
    total_micros: int
    by: str
    reason: str


class ReleaseEntry(_ContractEntry, frozen=True, tag="release"):
    """The escrow goes back to the consumer, and no agent is paid."""

    currency: str
    hold_micros: int
    why: str
    """void or expire."""
    by: str
    reason: str


class DisputeEntry(_ContractEntry, frozen=True, tag="dispute"):
    """The agent or an operator disputes the contract."""

    by: str
    reason: str


class ResolutionEntry(_ContractEntry, frozen=True, tag="resolution"):
    """How a dispute ended."""

    decision: str
    by: str
    reason: str
    currency: str = ""
    amount_micros: int | None = None
    """What it was settled on, where the decision is `adjust`; the next settlement pays just this."""


class GateEntry(_LogEntry, frozen=True, tag="gate"):
    """What a verifier made of one submission of an agent's run."""

    tenant: str
    run: str
    number: int
    """Without a gap in one run, so that no rejection can be left out."""
    outcome: str
    counted: bool
    attempts_used: int
    submission: str
    """The candidate and all that was said of it, as a salted hash."""


class UsageEntry(_LogEntry, frozen=True, tag="usage"):
    """What may be claimed of a run's tokens from here on."""

    tenant: str
    run: str
    number: int
    """Without a gap in one run, so that no withdrawal can be left out."""
    status: str
    code: str
    attempts: int
    """The looks that it rests on: the run's first so many."""
    evidence: str
    """The run and those looks, as a salted hash."""
    by: str = ""
    """Who accepted a count that fell; empty where the observations alone decided."""
    reason: str = ""


class SegmentEntry(_LogEntry, frozen=True, tag="segment"):
    """Cases of an evaluation that were recorded together."""

    tenant: str
    evaluation: str
    number: int
    """Without a gap in one evaluation, so that no segment can be left out."""
    criteria: str
    criteria_index: int
    """Where the log holds the criteria, which is before this entry."""
    cases: int
    root: str
    """Of the tree over the cases, in hex."""


class VersionSegmentEntry(_LogEntry, frozen=True, tag="version_segment"):
    """Versions of verdicts that were recorded together, each of another outcome."""

    tenant: str
    criteria: str
    criteria_index: int
    """Where the log holds the criteria, which is before this entry."""
    evidence: bool
    """Whether these are first versions, each with its evidence; else the evidence is elsewhere in the log."""
    versions: int
    root: str
    """Of the tree over the versions, in hex."""
    reason: str
    """Why there are versions after the first."""


class ReviewEntry(_LogEntry, frozen=True, tag="review"):
    """The cases that people are to label, drawn before any of them is labelled."""

    tenant: str
    review: str
    evaluation: str
    cases: int
    draw: str
    """The digest of what is asked and of the cases in their order, with the probability of each."""
    by: str


class LabelEntry(_LogEntry, frozen=True, tag="label"):
    """A person's label of one case."""

    tenant: str
    review: str
    number: int
    """Without a gap in one review, so that no label can be left out."""
    draw: int
    """The place of the case in the review."""
    labeller: str
    version: int
    """Above 1, it supersedes this person's earlier label of the case."""
    label: str
    """Case, choice and note, as a salted hash."""
    by: str


class NoteErasureEntry(_LogEntry, frozen=True, tag="note_erasure"):
    """Notes beside the labels of one case were erased; the labels stay."""

    tenant: str
    review: str
    draw: int
    """The place of the case in the review."""
    notes: int
    reason: str
    by: str


class CalibrationEntry(_LogEntry, frozen=True, tag="calibration"):
    """What people's labels say of one version of a judge; payments may rest on it."""

    tenant: str
    judge: str
    version: str
    labels: int
    """Random labels."""
    kappa: str
    """Between the judge and people, as a decimal; empty where it is not known."""
    by: str


class VoteEntry(_LogEntry, frozen=True, tag="vote"):
    """What a model judge answered; later questions that are equal are answered by it."""

    tenant: str
    key: str
    """The digest of what it was asked."""
    vote: str
    """The whole vote, as a salted hash."""


Entry: TypeAlias = (
    KeyEntry
    | VoteEntry
    | CalibrationEntry
    | SegmentEntry
    | VersionSegmentEntry
    | ReviewEntry
    | LabelEntry
    | NoteErasureEntry
    | GateEntry
    | UsageEntry
    | RunPaymentEntry
    | ApiKeyEntry
    | ApiKeyRevocationEntry
    | CriteriaEntry
    | EvidenceEntry
    | VerdictEntry
    | ErasureEntry
    | AwardEntry
    | InputReadEntry
    | StartEntry
    | GovernanceEntry
    | SettlementEntry
    | ReversalEntry
    | ReleaseEntry
    | DisputeEntry
    | ResolutionEntry
)
ContractEntry: TypeAlias = (
    EvidenceEntry
    | VerdictEntry
    | ErasureEntry
    | AwardEntry
    | InputReadEntry
    | StartEntry
    | GovernanceEntry
    | SettlementEntry
    | ReversalEntry
    | ReleaseEntry
    | DisputeEntry
    | ResolutionEntry
)
MoneyEntry: TypeAlias = AwardEntry | SettlementEntry | ReversalEntry | ReleaseEntry
"""Those that move money."""

_READER = json_decoder(Entry)


def entry_bytes(entry: Entry) -> bytes:
    """The bytes that are hashed into the log."""
    return _WRITER.encode(entry)


# By position, and assembled by hand: it is called for every outcome of a rescore, and an entry takes as long to make.
def write_verdict(  # noqa: PLR0913 - the fields of an entry
    at: str,
    tenant: str,
    outcome: str,
    contract: str,
    contract_seq: int,
    version: int,
    criteria: str,
    criteria_index: int,
    evidence_index: int,
    result: str,
    verdict: str,
    success: bool,  # noqa: FBT001 - a field
    score: str,
    bonus_micros: int,
    penalty_micros: int,
    reason: str,
) -> bytes:
    """The bytes of a VerdictEntry from its fields; ids and names that clients choose are escaped."""
    tenant, contract, reason = (_quote(text) for text in (tenant, contract, reason))
    return (
        f'{{"at":"{at}","bonus_micros":{bonus_micros},"contract":{contract},"contract_seq":{contract_seq},'
        f'"criteria":"{criteria}","criteria_index":{criteria_index},"evidence_index":{evidence_index},'
        f'"kind":"verdict","outcome":"{outcome}","penalty_micros":{penalty_micros},"reason":{reason},'
        f'"result":"{result}","score":"{score}","success":{"true" if success else "false"},"tenant":{tenant},'
        f'"verdict":"{verdict}","version":{version}}}'
    ).encode()


def _quote(text: str) -> str:
    # Most are plain, and then the encoder has nothing to do.
    return f'"{text}"' if text.isascii() and _PLAIN.fullmatch(text) else _WRITER.encode(text).decode()


_PLAIN = re.compile(r"[\w .:-]*", re.ASCII)


def read_entry(data: bytes) -> Entry:
    """Read back what `entry_bytes` wrote; raises `msgspec.DecodeError` on anything else."""
    found: Entry = _READER.decode(data)
    return found


# No id that a client may choose contains a tab.
def run_sequence(run: str) -> str:
    """The name under which the log numbers the payments of a run."""
    return f"run\t{run}"


def api_key_sequence(key: str) -> str:
    """The name under which the log numbers the entries on an API key."""
    return f"api_key\t{key}"


def criteria_digest_of(body: bytes) -> str:
    """The digest of criteria from their canonical bytes."""
    return sha256(body).hexdigest()


NO_CRITERIA = criteria_digest_of(b'{"criteria":[]}')
"""What work is judged by that is paid by completion alone."""
