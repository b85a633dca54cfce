"""The built-in rules on work that has no contract."""

import asyncio
import base64
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meruit import SuccessCriteria, VerificationEngine
from meruit.app import build_engine
from meruit.audit.export import export
from meruit.audit.findings import AuditStepState, StepFinding
from meruit.audit.verify.outcome import verify_bundle
from meruit.audit.verify.plausibility import check_plausibility
from meruit.config import Settings
from meruit.errors import AuditStep, BundleFlaw, ConfigError
from meruit.governance.evaluate import apply_rules
from meruit.governance.rule_governance import RuleGovernance, flag_resemblance, is_unremarkable, verification_dossier
from meruit.model.access import Scope
from meruit.model.governance import Action, Disposition, Dossier, Flag, GovernanceResult, LocalGovernance, Policy
from meruit.model.outcome import Labels
from meruit.model.verdict import GovernanceStatus, ReasonCode, VerificationResult
from meruit.model.work import Work
from meruit.outcomes.service import Registrar, Submission
from meruit.outcomes.store import read as outcomes
from meruit.registry import flags
from meruit.store.location import Location
from meruit.store.store import Store

WORDS = {"metric": "word_count", "metric_type": "count", "comparison": "gte", "threshold": 1}
CRITERIA = SuccessCriteria.model_validate({"criteria": [WORDS]})
BACKWARDS = {"started_at": 100, "ended_at": 99}
LONG = "This answer is long enough to be recognised when it is given once more, for another task."
CLEAR, REVIEW, INVALID = GovernanceStatus.CLEAR, GovernanceStatus.REVIEW, GovernanceStatus.INVALID


def verified(
    metadata: Any = None, *, text: str = "two words", work_input: Any = None, settings: str = "{}", **more: Any
) -> VerificationResult:
    engine = build_engine(Settings.parse(settings, "settings"), **more)
    return engine.verify_sync("c", work_input or {}, {"text": text}, CRITERIA, metadata or {})


def test_work_that_ended_before_it_started_does_not_succeed() -> None:
    result = verified(BACKWARDS)
    assert (result.governance, result.success, result.governance_flags) == (INVALID, False, ["clock_order"])
    assert [reason.code for reason in result.reasons] == [ReasonCode.GOVERNANCE_INVALID]
    assert "99" in result.reasons[0].message


def test_both_ways_to_verify_ask_the_rules() -> None:
    engine = build_engine(Settings())
    result = asyncio.run(engine.verify("c", {}, {"text": "two words"}, CRITERIA, BACKWARDS))
    assert result.governance is INVALID
    assert msgspec.structs.replace(result, verified_at=verified(BACKWARDS).verified_at).governance_flags == [
        "clock_order"
    ]


def test_ordinary_work_is_clear() -> None:
    result = verified({"duration_ms": 12})
    assert (result.governance, result.success, result.governance_flags) == (CLEAR, True, [])


def test_not_checked_means_switched_off() -> None:
    off = "verification: {governance_check: false}"
    assert verified(BACKWARDS, settings=off).governance is GovernanceStatus.NOT_CHECKED
    assert verified(BACKWARDS, governed=False).governance is GovernanceStatus.NOT_CHECKED


def test_a_rule_that_is_off_finds_nothing() -> None:
    assert verified(BACKWARDS, settings="governance: {off: [clock_order]}").governance is CLEAR


def test_a_limit_of_the_settings_holds() -> None:
    assert verified(BACKWARDS, settings="governance: {limits: {clock_order: {start_skew_s: 5}}}").governance is CLEAR


def test_an_unknown_rule_in_the_settings_is_refused() -> None:
    with pytest.raises(ConfigError, match="clock_odor"):
        build_engine(Settings.parse("governance: {off: [clock_odor]}", "settings"))


def test_a_perfect_answer_is_flagged_and_succeeds() -> None:
    result = verified(text=LONG, work_input={"reference": LONG})
    assert (result.governance, result.success, result.governance_flags) == (CLEAR, True, ["reference_copy"])


def test_a_claim_that_contradicts_the_measurement_is_for_a_person() -> None:
    result = verified({"claimed_metrics": {"word_count": 200}})
    assert (result.governance, result.success, result.governance_flags) == (REVIEW, False, ["claimed_vs_measured"])
    assert result.reasons[-1].code is ReasonCode.GOVERNANCE_HOLD


def test_work_that_contains_itself_is_judged() -> None:
    endless: dict[str, Any] = {"text": "two words"}
    endless["self"] = endless
    result = build_engine(Settings()).verify_sync("c", {}, endless, CRITERIA, {"started_at": 1, "ended_at": 2})
    assert (result.governance, result.success) == (CLEAR, True)
    nameless: dict[str, Any] = {}
    nameless["self"] = nameless
    assert build_engine(Settings()).verify_sync("c", {}, nameless, CRITERIA, BACKWARDS).governance is INVALID


class Broken(LocalGovernance):
    """Fails at every work."""

    version = "1"

    def check(self, work: Work, result: VerificationResult) -> GovernanceResult:
        raise RuntimeError("out of order")

    async def validate_outcome(self, **_: Any) -> GovernanceResult:
        raise RuntimeError("out of order")


def test_rules_that_fail_are_neither_a_pass_nor_a_crash() -> None:
    result = VerificationEngine(governance=Broken()).verify_sync("c", {}, {"text": "two words"}, CRITERIA)
    assert (result.governance, result.success, result.governance_flags) == (REVIEW, False, ["governance_unavailable"])
    assert result.reasons[-1].code is ReasonCode.GOVERNANCE_UNAVAILABLE
    assert "out of order" in result.reasons[-1].message


def test_rules_that_cannot_say_so_at_once_are_not_clear() -> None:
    work, result = Work(), VerificationEngine().verify_sync("c", {}, {"text": "two words"}, CRITERIA)
    assert not Broken().is_clear(work, result)


class Remote:
    """Answers as it was told to."""

    def __init__(self, answer: GovernanceResult | Exception) -> None:
        self.answer = answer

    async def validate_outcome(self, **_: Any) -> GovernanceResult:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


FINE, WRONG = GovernanceResult(valid=True), GovernanceResult(valid=False, flags=["elsewhere"])


@pytest.mark.parametrize(
    ("answer", "metadata", "status", "named"),
    [
        (FINE, {}, CLEAR, []),
        (FINE, BACKWARDS, INVALID, ["clock_order"]),
        (WRONG, {}, INVALID, ["elsewhere"]),
        (WRONG, BACKWARDS, INVALID, ["clock_order", "elsewhere"]),
        (OSError("down"), {}, REVIEW, ["governance_unavailable"]),
        (OSError("down"), BACKWARDS, INVALID, ["clock_order", "governance_unavailable"]),
    ],
)
def test_of_rules_and_a_remote_service_the_worse_counts(
    answer: Any, metadata: Any, status: GovernanceStatus, named: list[str]
) -> None:
    engine = VerificationEngine(governance=RuleGovernance(remote=Remote(answer)))
    result = engine.verify_sync("c", {}, {"text": "two words"}, CRITERIA, metadata)
    assert (result.governance, result.governance_flags, result.success) == (status, named, status is CLEAR)
    assert sum(reason.code.startswith("governance") for reason in result.reasons) == (status is not CLEAR)


def test_a_client_of_your_own_replaces_the_rules() -> None:
    result = verified(BACKWARDS, governance=Remote(FINE))
    assert (result.governance, result.success) == (CLEAR, True)


def test_the_rules_answer_as_any_client() -> None:
    ask = RuleGovernance().validate_outcome(contract_id="c", claimed_metrics={}, execution_context=BACKWARDS)
    assert asyncio.run(ask).names == ["clock_order"]


def test_what_equals_another_text_is_only_flagged() -> None:
    copy, skew = Flag("reference_copy", "1", Action.HOLD), Flag("clock_order", "1", Action.INVALIDATE)
    softened = flag_resemblance(GovernanceResult(True, [copy, "said"], Disposition.HOLD))
    assert (softened.conclusion, softened.names) == (Disposition.CLEAR, ["reference_copy", "said"])
    kept = flag_resemblance(GovernanceResult(False, [copy, skew], Disposition.INVALID))
    assert (kept.conclusion, kept.valid) == (Disposition.INVALID, False)


NUMBERS = st.one_of(
    st.sampled_from([0, 1, 0.5, 2, 100, 101, -1, 10**400, math.inf, math.nan, True, "text", None]),
    st.floats(),
    st.integers(),
)
METADATA = st.dictionaries(
    st.sampled_from(
        [
            *("duration_ms", "ttfb_ms", "run_id", "model", "started_at", "ended_at", "output_tokens", "total_tokens"),
            *("observed_ms", "received_at", "claimed", "reported_by"),
        ]
    ),
    NUMBERS,
    max_size=3,
)
KINDS = ["accuracy", "latency", "count", "boolean", "contains", "numeric", None]


@given(metadata=METADATA, value=NUMBERS, kind=st.sampled_from(KINDS))
def test_the_quick_way_finds_what_the_rules_find(metadata: Any, value: Any, kind: Any) -> None:
    plain = VerificationEngine().verify_sync("c", {}, {"text": "two words"}, CRITERIA)
    judged = msgspec.structs.replace(
        plain.criterion_results[0],
        value=value,
        natural=kind and msgspec.convert(kind, type(plain.criterion_results[0].natural)),
    )
    result = msgspec.structs.replace(plain, criterion_results=[judged])
    work = Work(output={"text": "two words"}, metadata=metadata)
    if is_unremarkable(work, result):
        rules = RuleGovernance()
        assert apply_rules(rules._rules, verification_dossier(work, result)).flags == []


LISTED = st.sampled_from(
    [
        *("Refund", "refund", "within", "thirty", "days", "nevertheless,", "41", "1.5", "-15", "é", "a\u0301", "Ω"),
        *("&amp;", "%41", "\\u0041", "QUJD" * 4),
    ]
)
TEXTS = st.lists(LISTED, max_size=40).map(" ".join)


@given(
    output=st.dictionaries(st.sampled_from(["text", "a", "b"]), TEXTS | st.integers() | st.none(), max_size=3),
    reference=TEXTS | st.integers() | st.none(),
    how=st.sampled_from(["alone", "copied", "encoded", "reversed", "cut"]),
)
def test_a_reference_is_compared_quickly_to_the_same_flags(output: Any, reference: Any, how: str) -> None:
    if isinstance(reference, str) and how != "alone":
        text = base64.b64encode(reference.encode()).decode() if how == "encoded" else reference
        output = {**output, "text": text[::-1] if how == "reversed" else text[3:] if how == "cut" else text}
    work = Work(output=output, input={"reference": reference})
    result = VerificationEngine().verify_sync("c", work.input, output, CRITERIA)
    rules = RuleGovernance()
    found = flag_resemblance(apply_rules(rules._rules, verification_dossier(work, result)))
    assert rules.is_clear(work, result) is (found.flags == [])
    assert rules.check(work, result).flags == found.flags


def test_a_copy_is_nothing_where_its_rule_is_off() -> None:
    text = "A long reference that is repeated to the letter, as nobody would write it again by chance."
    work = Work(output={"text": text}, input={"reference": text})
    result = VerificationEngine().verify_sync("c", work.input, work.output, CRITERIA)
    assert not RuleGovernance().is_clear(work, result)
    assert RuleGovernance(Policy(off=["reference_copy"])).is_clear(work, result)


def test_a_rule_of_another_package_sees_all_work(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Dossier] = []
    flags.names()
    found = dict(flags._found)
    monkeypatch.setattr(flags, "_found", found)

    @flags.add("watchful", action=Action.FLAG, examples=[])
    def watchful(dossier: Dossier, _limits: Any) -> list[Any]:
        """See everything."""
        seen.append(dossier)
        return []

    engine = VerificationEngine(governance=RuleGovernance())
    engine.verify_sync("c", {}, {"text": "two words"}, CRITERIA)
    assert len(seen) == 1


def test_only_rules_and_limits_change_the_version() -> None:
    usual = RuleGovernance().version
    assert RuleGovernance(remote=Remote(FINE)).version == usual
    assert RuleGovernance(Policy(off=["clock_order"])).version != usual
    assert RuleGovernance(Policy(limits={"clock_order": {"start_skew_s": 9.0}})).version != usual
    # Rules that need history cannot be applied again by a reader, so they do not count.
    assert RuleGovernance(Policy(off=["anomaly"])).version == usual


# Where records are kept.


@pytest.fixture
def registrar(tmp_path: Path) -> Iterator[Registrar]:
    store = Store.open(Location(tmp_path / "data"))
    yield Registrar(build_engine(Settings()), store)
    store.close()


def record(
    registrar: Registrar, agent: str | None = "a", *, question: Any = 1, text: str = LONG, metadata: Any = None
) -> str:
    ready = registrar.compile(CRITERIA)
    work = Submission({"question": question}, {"text": text}, metadata or {}, Labels(agent_id=agent))
    return registrar.record_sync("default", registrar.judge_sync(ready, work)).outcome_id


def recorded_flags(registrar: Registrar, outcome_id: str) -> tuple[GovernanceStatus, list[str]]:
    with registrar.store.database.reading() as connection:
        found = outcomes.version(connection, Scope("default"), outcome_id, 1).result
    assert found is not None
    return found.governance, found.governance_flags


def test_an_output_for_another_task_is_recognised(registrar: Registrar) -> None:
    first, same = record(registrar), record(registrar)
    replayed, copied = record(registrar, question=2), record(registrar, "b", question=3)
    nameless = record(registrar, None, question=4)
    assert recorded_flags(registrar, first) == recorded_flags(registrar, same) == (CLEAR, [])
    assert recorded_flags(registrar, replayed) == (CLEAR, ["replayed_output"])
    assert recorded_flags(registrar, copied) == (CLEAR, ["sybil_output"])
    assert recorded_flags(registrar, nameless) == (CLEAR, [])


def test_short_outputs_and_other_tenants_are_not_compared(registrar: Registrar) -> None:
    record(registrar, text="yes")
    assert recorded_flags(registrar, record(registrar, question=2, text="yes")) == (CLEAR, [])


def test_an_unusual_value_is_flagged_once_there_is_a_history(registrar: Registrar) -> None:
    for number in range(11):
        record(registrar, question=number, text="word " * (20 + number % 3))
    unusual = record(registrar, question=99, text="word " * 200)
    assert "anomaly:word_count:3sigma" in recorded_flags(registrar, unusual)[1]


def test_invalid_work_shapes_no_history(registrar: Registrar) -> None:
    record(registrar, "thief", metadata=BACKWARDS)
    assert recorded_flags(registrar, record(registrar, "owner", question=2)) == (CLEAR, [])


def test_the_flags_of_history_are_in_the_result_that_is_returned(registrar: Registrar) -> None:
    record(registrar)
    ready = registrar.compile(CRITERIA)
    judged = registrar.judge_sync(ready, Submission({"question": 2}, {"text": LONG}, {}, Labels(agent_id="a")))
    assert judged.result.governance_flags == []
    final = judged.as_recorded(registrar.record_sync("default", judged))
    assert final.result.governance_flags == ["replayed_output"]
    assert VerificationResult.from_json(final.result_json) == final.result


# What a reader of a bundle finds.


def governance_step(registrar: Registrar, outcome_id: str) -> tuple[StepFinding, tuple[str, ...]]:
    bundle = export(registrar.store, Scope("default"), outcome_id)
    found = verify_bundle(bundle)
    step = next(one for one in found.steps if one.step is AuditStep.GOVERNANCE)
    return step, tuple(found.notes)


def test_a_reader_applies_the_rules_again(registrar: Registrar) -> None:
    step, _ = governance_step(registrar, record(registrar, metadata=BACKWARDS))
    assert step.state is AuditStepState.OK


def test_a_reader_is_told_which_flags_rest_on_history(registrar: Registrar) -> None:
    record(registrar)
    step, notes = governance_step(registrar, record(registrar, question=2))
    assert step.state is AuditStepState.OK
    assert any("replayed_output" in note for note in notes)


def test_other_limits_cannot_be_applied_again(registrar: Registrar) -> None:
    registrar.engine.governance = RuleGovernance(Policy(limits={"clock_order": {"start_skew_s": 9.0}}))
    step, notes = governance_step(registrar, record(registrar))
    assert step.state is AuditStepState.SKIPPED
    assert any(note.startswith("not rerun: governance") for note in notes)


class _Bundle:
    """As much of a bundle as the check reads."""

    def __init__(self, metadata: bytes = b"{}") -> None:
        self.work = {"input": b"{}", "output": b'{"text":"two words"}', "metadata": metadata}


@pytest.mark.parametrize(
    ("governance", "named"), [(CLEAR, []), (INVALID, []), (CLEAR, ["clock_order"]), (REVIEW, ["clock_order"])]
)
def test_an_answer_that_the_rules_do_not_give_is_a_flaw(governance: GovernanceStatus, named: list[str]) -> None:
    result = msgspec.structs.replace(verified(BACKWARDS), governance=governance, governance_flags=named)
    bundle: Any = _Bundle(b'{"started_at":100,"ended_at":99}')
    with pytest.raises(BundleFlaw):
        check_plausibility(bundle, {1: result}, [])


def test_an_objection_that_nothing_explains_is_a_flaw() -> None:
    result = msgspec.structs.replace(verified(), governance=INVALID)
    bundle: Any = _Bundle()
    with pytest.raises(BundleFlaw):
        check_plausibility(bundle, {1: result}, [])


def test_what_was_erased_or_not_asked_is_skipped() -> None:
    bundle: Any = _Bundle()
    assert check_plausibility(bundle, {}, []).state is AuditStepState.SKIPPED
    off = verified(settings="verification: {governance_check: false}")
    assert check_plausibility(bundle, {1: off}, []).state is AuditStepState.SKIPPED
    del bundle.work["input"]
    assert check_plausibility(bundle, {1: verified()}, []).state is AuditStepState.SKIPPED
