"""Logs whose versions in segments contradict the rest: nobody wrote them, and a key could sign them all the same."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from meruit.audit.bundle import (
    Annotations,
    Bundle,
    BundleManifest,
    CaseFile,
    ConsistencyProof,
    LoggedEntry,
    Salts,
    VersionsFile,
)
from meruit.audit.verify.history import OutcomeHistory
from meruit.audit.verify.outcome_history import read_outcome_history
from meruit.audit.verify.signatures import VerifiedSignatures
from meruit.errors import AuditStep, BundleFlaw
from meruit.log.entries import (
    CriteriaEntry,
    DisputeEntry,
    Entry,
    ErasureEntry,
    EvidenceEntry,
    KeyEntry,
    VersionSegmentEntry,
    entry_bytes,
)
from meruit.log.note import Checkpoint, VerifierKey
from meruit.log.segment import VersionEntry, segment_root, version_bytes

AT = "2026-01-01T00:00:00Z"
KEY = VerifierKey("log.example", bytes(32))
DIGEST = "c" * 64
NEIGHBOUR, FIRST, SECOND = 2, 3, 4
"""Where the log has another outcome of the contract, and the two segments."""
OF_CONTRACT: dict[str, Any] = {"tenant": "t", "contract": "shared", "contract_seq": 1}
ABOUT = Annotations(outcome="mine", version=2, contract="shared", contract_seq=1, log_size=9, first_log_size=9)
NEIGHBOURS = EvidenceEntry(AT, **OF_CONTRACT, outcome="other", input="", output="", metadata="")
VERSIONS = {
    FIRST: VersionEntry(
        outcome="mine",
        contract="shared",
        version=1,
        result="",
        verdict="pass",
        success=True,
        score="1",
        bonus_micros=0,
        penalty_micros=0,
    ),
    SECOND: VersionEntry(
        outcome="mine",
        contract="shared",
        version=2,
        result="",
        verdict="fail",
        success=False,
        score="0",
        bonus_micros=0,
        penalty_micros=0,
        evidence_index=FIRST,
    ),
}


def segment_of(version: VersionEntry, *, evidence: bool) -> VersionSegmentEntry:
    return VersionSegmentEntry(
        AT,
        tenant="t",
        criteria=DIGEST,
        criteria_index=1,
        evidence=evidence,
        versions=1,
        root=segment_root([version_bytes(version)]).hex(),
        reason="" if evidence else "stricter",
    )


def history_of(
    versions: Mapping[int, VersionEntry] = VERSIONS,
    others: Mapping[int, Entry] | None = None,
    about: Annotations = ABOUT,
    case: CaseFile | None = None,
) -> OutcomeHistory:
    """What is read of a log with these versions, each alone in its segment; `others` replaces entries."""
    entries: dict[int, Entry] = {
        0: KeyEntry(AT, KEY.vkey),
        1: CriteriaEntry(AT, tenant="t", digest=DIGEST),
        NEIGHBOUR: NEIGHBOURS,
        **{index: segment_of(version, evidence=index == FIRST) for index, version in versions.items()},
        **(others or {}),
    }
    checkpoint = Checkpoint(KEY.name, 9, bytes(32))
    return read_outcome_history(
        Bundle(
            manifest=BundleManifest(format="", outcome="mine", versions=[1, 2], files=[]),
            key=KEY.vkey,
            checkpoint="",
            first_checkpoint="",
            consistency=ConsistencyProof([]),
            entries=[LoggedEntry(index, entry_bytes(entry), []) for index, entry in sorted(entries.items())],
            salts=Salts(input=None, output=None, metadata=None, results={}),
            criteria={},
            work={},
            results={},
            statement=b"",
            case=case,
            versions=VersionsFile(
                {str(index): CaseFile(version_bytes(version), 0, []) for index, version in versions.items()}
            ),
        ),
        VerifiedSignatures(
            key=KEY,
            checkpoint=checkpoint,
            first=checkpoint,
            trusted=None,
            statement={"subject": [{"annotations": msgspec.to_builtins(about)}]},
        ),
    )


def with_version(index: int, **fields: Any) -> dict[int, VersionEntry]:
    return {**VERSIONS, index: msgspec.structs.replace(VERSIONS[index], **fields)}


def test_versions_in_two_segments_are_one_history() -> None:
    found = history_of()
    assert [(one.version, one.verdict, one.evidence_index) for one in found.verdicts] == [
        (1, "pass", FIRST),
        (2, "fail", FIRST),
    ]
    assert found.contract is None


@pytest.mark.parametrize(
    ("changed", "value"),
    [
        pytest.param(
            {"about": msgspec.structs.replace(ABOUT, contract="another")}, "another contract", id="other statement"
        ),
        pytest.param(
            {"about": msgspec.structs.replace(ABOUT, contract=f"con_{'0' * 34}")}, "entry of its own", id="awarded"
        ),
        pytest.param(
            {"others": {NEIGHBOUR: DisputeEntry(AT, **OF_CONTRACT, outcome="other", by="a", reason="no")}},
            "without a contract",
            id="dispute",
        ),
        pytest.param(
            {"others": {NEIGHBOUR: ErasureEntry(AT, **OF_CONTRACT, outcome="mine", parts=("input",), reason="no")}},
            f"entry {NEIGHBOUR} is about the outcome",
            id="erased before it was there",
        ),
        pytest.param(
            {"versions": with_version(SECOND, contract="another")},
            f"segment at {SECOND} is of another",
            id="other contract",
        ),
        pytest.param(
            {"versions": with_version(FIRST, version=2)},
            f"at {FIRST} does not hold versions",
            id="second version with evidence",
        ),
        pytest.param(
            {"versions": with_version(SECOND, version=1)},
            f"at {SECOND} does not hold versions",
            id="first version without",
        ),
        pytest.param(
            {"versions": with_version(SECOND, evidence_index=None)},
            f"at {SECOND} does not hold versions",
            id="evidence twice",
        ),
        pytest.param({"case": CaseFile(b"", 0, [])}, "one version", id="case"),
    ],
)
def test_versions_that_contradict_the_log_are_refused(changed: Mapping[str, Any], value: str) -> None:
    with pytest.raises(BundleFlaw) as found:
        history_of(**changed)
    assert (found.value.code, found.value.step) == ("bundle_flaw", AuditStep.SEQUENCE)
    assert value in str(found.value)
