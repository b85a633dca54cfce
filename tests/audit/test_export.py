"""What a store hands out for others to check, and what checking it again does and does not redo."""

import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import delete, select, update
from tests.faults import tampering
from tests.faults.tampering import (
    ASSERTION,
    EXPRESSION,
    LATENCY,
    ROUGE,
    TENANT,
    Forgery,
    Ticking,
    World,
    _with_result,
    criteria_of,
    make_world,
    no_sleep,
    open_store,
    put,
    rescore,
)

from meruit import CustomCode, MetricExtractor, SuccessCriteria, VerificationEngine
from meruit.audit import export as exporting
from meruit.audit.bundle import Receipt, read, unpack
from meruit.audit.export import export, receipt
from meruit.audit.findings import AuditStepState, Findings
from meruit.audit.verify import outcome as recheck
from meruit.audit.verify.outcome import verify_bundle
from meruit.errors import AuditStep, KeyNotAdmitted, NotFound, StoreError, StoreUnavailable
from meruit.judge.verdict import rejudge
from meruit.log.entries import ErasureEntry, VerdictEntry, read_entry
from meruit.log.key_chain import ROOT
from meruit.log.merkle import is_included, leaf_hash
from meruit.log.note import SigningKey, VerifierKey, open_checkpoint
from meruit.model.access import Scope
from meruit.model.canonical import from_canonical
from meruit.model.evidence import Provenance
from meruit.model.verdict import VerificationResult
from meruit.outcomes.store.erase import erase
from meruit.store import log as audit
from meruit.store import tables
from meruit.store.location import KEY_FILE, Location
from meruit.store.store import ClockAndEntropy, Store

SCOPE = Scope(TENANT)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(tmp_path / "records")
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("records"))


def exported(store: Store, outcome_id: str) -> bytes:
    return export(store, SCOPE, outcome_id, sleep=no_sleep)


def notes(found: Findings) -> list[str]:
    """What was not measured again, and why."""
    assert found.failed is None, found
    return [remark.removeprefix("not rerun: version ") for remark in found.notes if remark.startswith("not rerun")]


def state(found: Findings, step: AuditStep) -> AuditStepState:
    (one,) = (finding.state for finding in found.steps if finding.step is step)
    return one


# Export.


def test_the_same_state_gives_the_same_bytes(store: Store) -> None:
    outcome_id = put(store)
    assert exported(store, outcome_id) == exported(store, outcome_id)


def test_what_is_exported_passes_with_any_number_of_entries_around_it(store: Store) -> None:
    outcome_id = put(store)
    for count in range(12):
        found = verify_bundle(exported(store, outcome_id), key=store.signer.verifier)
        assert found.failed is None, (count, found)
        put(store, contract="others")


def test_nothing_is_exported_that_is_not_the_callers(store: Store) -> None:
    outcome_id = put(store)
    for scope in (Scope("other"), Scope(TENANT, "a", only_own=True), Scope(TENANT, None, only_own=True)):
        with pytest.raises(NotFound):
            export(store, scope, outcome_id)
    with pytest.raises(NotFound):
        export(store, SCOPE, "out_none")


def test_every_entry_of_the_contract_since_the_evidence_is_there(store: Store) -> None:
    first, second = put(store, contract="c-1"), put(store, contract="c-1")
    rescore(store, first, 1, criteria_of(LATENCY))
    counts = {}
    for outcome_id in (first, second):
        whole = read(unpack(exported(store, outcome_id)))
        counts[outcome_id] = sum(b'"contract":"c-1"' in entry.body for entry in whole.entries)
    assert counts == {first: 5, second: 3}


def test_at_most_one_checkpoint_is_signed_a_second(tmp_path: Path) -> None:
    """What is recorded within a second of the last checkpoint waits for the rest of it."""
    clock = Ticking(0)
    store = Store.open(Location(tmp_path), ClockAndEntropy(clock, random.Random(1).randbytes))
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock.now += clock.step.__class__(seconds=seconds)

    try:
        clock.now += clock.step.__class__(seconds=0.25)
        outcome_id = put(store)
        data = export(store, SCOPE, outcome_id, sleep=sleep)
        assert verify_bundle(data).failed is None
        assert slept == [0.75]
        assert export(store, SCOPE, outcome_id, sleep=sleep) == data
        assert slept == [0.75]
        with store.database.reading() as connection:
            moments = [*connection.execute(select(tables.checkpoints.c.at).order_by(tables.checkpoints.c.at)).scalars()]
        assert all(later - earlier >= 1_000_000 for earlier, later in pairwise(moments))
    finally:
        store.close()


def test_a_contract_that_never_rests_is_given_up(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome_id = put(store, contract="busy")
    monkeypatch.setattr(exporting, "checkpoint", lambda *_arguments: None)
    monkeypatch.setattr(audit, "best_witnessed", lambda *_arguments: None)
    with pytest.raises(StoreUnavailable, match="pause"):
        exported(store, outcome_id)


def test_a_contract_with_too_many_entries_says_what_to_do(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome_id = put(store, contract="c-1")
    put(store, contract="c-1")
    monkeypatch.setattr(audit, "MAX_WINDOW", 3)
    with pytest.raises(StoreError, match="contracts"):
        exported(store, outcome_id)


def test_a_new_key_signs_for_the_old_log(tmp_path: Path) -> None:
    """As after a lost key, and as on another machine that shares the database."""
    folder = tmp_path / "records"
    store = open_store(folder)
    outcome_id = put(store)
    before = exported(store, outcome_id)
    old = store.signer.verifier
    root = SigningKey.generate("meruit-root", bytes(32))
    store.admit_key(store.signer, root.vkey, "", role=ROOT)
    store.close()
    (folder / KEY_FILE).unlink()
    store = open_store(folder, seed=2, new_key=True)
    try:
        assert store.signer.verifier != old
        with pytest.raises(KeyNotAdmitted):
            exported(store, outcome_id)
        store.admit_key(root, store.signer.vkey, "")
        data = exported(store, outcome_id)
        assert verify_bundle(data, key=store.signer.verifier).failed is None
        assert verify_bundle(data, key=old).failed is AuditStep.SIGNATURE
        assert verify_bundle(before, key=old).failed is None
        # The first checkpoint was another key's; what it says is what it said.
        first, signed_anew = (read(unpack(one)).first_checkpoint for one in (before, data))
        assert first.split("\n")[:3] == signed_anew.split("\n")[:3]
    finally:
        store.close()


def test_a_checkpoint_that_does_not_fit_the_log_is_not_signed_again(store: Store) -> None:
    outcome_id = put(store)
    with store.database.writer.begin() as connection:
        note = connection.execute(select(tables.checkpoints.c.note)).scalars().first()
        assert note is not None
        text, _, signature = note.rpartition("\n\n")
        lines = text.split("\n")
        forged = "\n".join([lines[0], lines[1], "A" * 43 + "="]) + "\n\n" + signature
        connection.execute(update(tables.checkpoints).values(note=forged))
    with pytest.raises(StoreError, match="outside"):
        exported(store, outcome_id)


def test_checkpoints_that_are_gone_are_missed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome_id = put(store)
    monkeypatch.setattr(audit, "checkpoint_covering", lambda *_arguments: None)
    with pytest.raises(StoreError, match="are gone"):
        exported(store, outcome_id)


def test_a_log_that_was_changed_is_noticed_by_whoever_checks(store: Store) -> None:
    outcome_id = put(store)
    with store.database.writer.begin() as connection:
        leaf = connection.execute(select(tables.outcomes.c.evidence_leaf)).scalar_one()
        connection.execute(delete(tables.log_leaves).where(tables.log_leaves.c.seq == leaf + 1))
    with pytest.raises((StoreError, ValueError, IndexError)):
        exported(store, outcome_id)


def test_erased_work_is_not_in_the_bundle(store: Store) -> None:
    outcome_id = put(store, output={"text": "a name"})
    assert b"a name" in b"".join(unpack(exported(store, outcome_id)).values())
    erase(store, TENANT, outcome_id, "asked for")
    files = unpack(exported(store, outcome_id))
    assert not [name for name in files if name.startswith(("work/", "verdicts/"))]
    found = verify_bundle(exported(store, outcome_id), key=store.signer.verifier)
    assert found.failed is None
    assert [state(found, step) for step in (AuditStep.METRICS, AuditStep.JUDGE, AuditStep.STATEMENT)] == [
        *(AuditStepState.SKIPPED, AuditStepState.SKIPPED, AuditStepState.OK),
    ]


def test_a_part_of_the_work_that_is_gone_leaves_the_judge(store: Store, world: World) -> None:
    """No command erases a part alone; the log could say so."""
    whole = world.read("single")
    honest = Forgery.of(whole)
    gone = ErasureEntry("2026", TENANT, honest.outcome, honest.outcome, 3, ("input",), "asked for")
    forged = honest._replace(
        entries=[*honest.entries, gone], work={part: honest.work[part] for part in ("output", "metadata")}
    )
    template = msgspec.structs.replace(whole, salts=msgspec.structs.replace(whole.salts, input=None))
    found = verify_bundle(forged.packed(world.signer, template))
    assert found.failed is None, found
    assert [state(found, step) for step in (AuditStep.METRICS, AuditStep.JUDGE)] == [
        AuditStepState.SKIPPED,
        AuditStepState.OK,
    ]


# Receipts.


def test_a_receipt_proves_that_the_verdict_is_in_the_log(store: Store) -> None:
    outcome_id = put(store)
    rescore(store, outcome_id, 1, criteria_of(LATENCY))
    for version, expected in ((None, 2), (1, 1), (2, 2)):
        found = receipt(store, SCOPE, outcome_id, version, sleep=no_sleep)
        assert isinstance(found, Receipt)
        key = VerifierKey.parse(found.vkey)
        signed = open_checkpoint(found.checkpoint, key)
        assert is_included(leaf_hash(found.entry), found.index, signed.size, found.proof, signed.root)
        entry = read_entry(found.entry)
        assert isinstance(entry, VerdictEntry)
        assert (entry.outcome, entry.version, found.version) == (outcome_id, expected, expected)
    with pytest.raises(NotFound):
        receipt(store, SCOPE, outcome_id, 3)
    with pytest.raises(NotFound):
        receipt(store, Scope("other"), outcome_id)


# Doing it again.


def recorded_by(store: Store, engine: VerificationEngine, criteria: SuccessCriteria) -> bytes:
    """A bundle of work that a certain engine judged."""
    usual = tampering.ENGINE
    tampering.ENGINE = engine
    try:
        return exported(store, put(store, criteria))
    finally:
        tampering.ENGINE = usual


CODE = {
    "metrics": ["words"],
    "code": "def metric(input, output, metadata):\n    return {'words': len(output['text'].split())}\n",
}
WORDS = {"metric": "words", "metric_type": "numeric", "comparison": "gte", "threshold": 1}


def test_own_code_runs_only_when_allowed(store: Store) -> None:
    asked = SuccessCriteria.model_validate({"criteria": [WORDS, EXPRESSION, ROUGE], "custom_metrics": [CODE]})
    data = exported(store, put(store, asked))
    kept_out = verify_bundle(data)
    why = "the criteria's own code, which --run-code runs"
    assert notes(kept_out) == [f"1, words: {why}", f"1, double(size(output.text)): {why}"]
    assert state(kept_out, AuditStep.METRICS) is AuditStepState.OK
    assert notes(verify_bundle(data, run_code=True)) == []


def test_own_code_in_a_tier_that_is_not_allowed_here_is_listed(store: Store) -> None:
    asked = SuccessCriteria.model_validate({"criteria": [WORDS], "custom_metrics": [{**CODE, "tier": "python-full"}]})
    data = exported(store, put(store, asked))
    found = verify_bundle(data, run_code=True)
    # It was not allowed where it was recorded either, so both say the same.
    assert notes(found) == []


def test_own_code_that_ran_under_other_limits_is_listed(store: Store) -> None:
    asked = SuccessCriteria.model_validate({"criteria": [WORDS], "custom_metrics": [CODE]})
    data = recorded_by(store, VerificationEngine(custom=CustomCode(timeout_ms=4_000)), asked)
    found = verify_bundle(data, run_code=True)
    (note,) = notes(found)
    assert note.startswith("1, words: ")
    assert state(found, AuditStep.METRICS) is AuditStepState.SKIPPED


def test_own_code_that_was_not_run_there_is_listed(store: Store) -> None:
    asked = SuccessCriteria.model_validate({"criteria": [WORDS], "custom_metrics": [CODE]})
    data = recorded_by(store, VerificationEngine(custom=None), asked)
    (note,) = notes(verify_bundle(data, run_code=True))
    assert note.startswith("1, words: ")


def test_own_code_may_take_too_long_on_one_machine(store: Store, world: World) -> None:
    whole = world.read("expression")
    forged = Forgery.of(whole)
    result = VerificationResult.from_json(forged.results[1])
    (expression, latency) = result.criterion_results
    late = msgspec.structs.replace(expression, cause="timeout", error="took too long", value=None)
    judged = SuccessCriteria.model_validate(_criteria(forged))
    again = rejudge(judged, msgspec.structs.replace(result, criterion_results=[late, latency]))
    data = _with_result(forged, 1, again).packed(world.signer, whole)
    (note,) = notes(verify_bundle(data, run_code=True))
    assert "timeout" in note


def _criteria(forged: Forgery) -> Any:
    (body,) = forged.criteria.values()
    return from_canonical(body)


class Opinion(MetricExtractor):
    """A stranger's extractor."""

    version = "3"
    provenance = Provenance.CLAIMED

    def __init__(self, *names: str) -> None:
        self.names = [*names]

    def supported_metrics(self) -> list[str]:
        return self.names

    async def extract(self, task_input: Any, task_output: Any, metadata: Any) -> dict[str, float]:
        return dict.fromkeys(self.names, 0.9)


TASTE = {"metric": "taste", "metric_type": "numeric", "comparison": "gte", "threshold": 0.5}


def test_a_metric_that_is_not_installed_here_is_listed(store: Store) -> None:
    data = recorded_by(store, VerificationEngine({"taste": Opinion("taste")}), criteria_of(TASTE))
    found = verify_bundle(data)
    (note,) = notes(found)
    assert note.startswith("1, taste: ")
    assert state(found, AuditStep.METRICS) is AuditStepState.SKIPPED
    assert state(found, AuditStep.JUDGE) is AuditStepState.OK


def test_a_metric_of_another_version_is_listed(store: Store) -> None:
    data = recorded_by(store, VerificationEngine({"rouge": Opinion("rougeL")}), criteria_of(ROUGE))
    (note,) = notes(verify_bundle(data))
    assert (note.startswith("1, rougeL: "), "version 3" in note, "version 1" in note) == (True, True, True)


def test_an_extractor_that_took_the_name_of_a_metric_is_listed(store: Store) -> None:
    class Same(Opinion):
        version = "1"

    data = recorded_by(store, VerificationEngine({"rouge": Same("rougeL")}), criteria_of(ROUGE))
    (note,) = notes(verify_bundle(data))
    assert note.startswith("1, rougeL: ")


def test_an_unknown_metric_is_unknown_on_both_sides(store: Store) -> None:
    data = exported(store, put(store, criteria_of(TASTE, ROUGE)))
    assert notes(verify_bundle(data)) == []


def test_a_check_that_is_not_installed_here_is_listed(world: World) -> None:
    whole = world.read("assertion")
    forged = Forgery.of(whole)
    result = VerificationResult.from_json(forged.results[1])
    label = result.criterion_results[0].criterion_id
    versions = {**result.versions, label: "2"}
    data = _with_result(forged, 1, msgspec.structs.replace(result, versions=versions)).packed(world.signer, whole)
    (note,) = notes(verify_bundle(data))
    assert "version 2" in note


def test_another_engine_is_told_by_its_version(world: World) -> None:
    whole = world.read("single")
    forged = Forgery.of(whole)
    result = VerificationResult.from_json(forged.results[1])
    old = msgspec.structs.replace(result, versions={**result.versions, "engine": "0"})
    found = verify_bundle(_with_result(forged, 1, old).packed(world.signer, whole))
    assert len(notes(found)) == 2
    assert all("version 0" in note for note in notes(found))


def test_a_skipped_criterion_is_compared_as_such(world: World) -> None:
    """A result that leaves out what could be measured lies."""
    whole = world.read("single")
    forged = Forgery.of(whole)
    result = VerificationResult.from_json(forged.results[1])
    rouge, latency = result.criterion_results
    skipped = msgspec.structs.replace(rouge, value=None, error="does not apply", status="excluded")
    lied = msgspec.structs.replace(result, criterion_results=[skipped, latency])
    found = verify_bundle(_with_result(forged, 1, lied).packed(world.signer, whole))
    assert found.failed is AuditStep.METRICS
    assert "recorded is skipped, measured again value 0.8" in found.steps[7].message


def test_a_result_of_other_criteria_is_told(world: World) -> None:
    whole = world.read("single")
    forged = Forgery.of(whole)
    result = VerificationResult.from_json(forged.results[1])
    short = msgspec.structs.replace(result, criterion_results=result.criterion_results[:1])
    found = verify_bundle(_with_result(forged, 1, short).packed(world.signer, whole))
    assert found.failed is AuditStep.METRICS


def test_whatever_breaks_the_judge_fails_its_step(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_arguments: object) -> VerificationResult:
        raise ZeroDivisionError("by nothing")

    monkeypatch.setattr(recheck, "rejudge", broken)
    found = verify_bundle(world.bundles["single"])
    assert found.failed is AuditStep.JUDGE


def test_assertions_are_asked_again(store: Store) -> None:
    data = exported(store, put(store, criteria_of(ASSERTION, ROUGE)))
    assert notes(verify_bundle(data)) == []
