"""Build the dossier of an outcome from work, result and metadata; it holds no content of the work."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from meruit.errors import BadRunId
from meruit.governance.fold import (
    GRAM,
    ROUNDING,
    canonical_form,
    canonical_text,
    decode_obvious,
    fold,
    may_share_shingles,
    rotate_13,
    shared_shingles,
    signature_of,
)
from meruit.governance.history import SubmissionFingerprints, normalise_text, sketch_and_words
from meruit.governance.metadata import OF_AGENTS
from meruit.metrics.support.rouge import rouge_l, words_alphanumeric
from meruit.model.canonical import digest, payload_bytes, payload_digest
from meruit.model.evidence import Provenance
from meruit.model.governance import Dossier, MetricFact
from meruit.model.kinds import ComparisonOperator
from meruit.model.limits import MIN_CANARY
from meruit.model.money import as_micros
from meruit.model.numbers import MAX_DIGITS
from meruit.model.verdict import CriterionResult, Status, VerificationResult
from meruit.model.work import CLAIMED, PRIVATE_INPUTS, Work
from meruit.registry import metrics

if TYPE_CHECKING:
    from meruit.model.contract import Contract

MIN_PHRASE = 24
"""A planted phrase without digits is looked for in disguise from this length; shorter ones may occur by chance."""
LONG_CHARS = 64
"""The length from which an output is recognised when it occurs again."""
MAX_COMPARED_WORDS = 20_000
MAX_COMPARED_CHARS = 1_000_000
"""Of a longer text, only the beginning is compared with the reference."""
MAX_REFERENCES = 64
"""References whose measures are remembered: those of many cases are often the same."""
_DROPPED = bytes(code for code in range(128) if not chr(code).isalnum())
ONE_SIDED = frozenset({ComparisonOperator.GTE, ComparisonOperator.GT, ComparisonOperator.LTE, ComparisonOperator.LT})

AGENT = "agent"
RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,127}")
_LARGEST = 10**MAX_DIGITS


class CheatTraps(msgspec.Struct, frozen=True):
    """What the consumer planted in the work to detect cheating."""

    canaries: tuple[str, ...] = ()
    impossible: bool = False


class HandedIn(msgspec.Struct, frozen=True):
    """A submission that completes a contract."""

    output: Mapping[str, Any]
    metadata: Mapping[str, Any]
    claims: Mapping[str, float] = {}
    """Metric values that the agent claims."""
    by_agent: bool = False
    """Whether the metadata comes from the agent itself."""
    size: int = 0


def metadata_to_judge(handed: HandedIn, seen: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """The metadata to judge and record: observations, and apart from them the agent's claims.

    `seen` is what the service itself measured of an agent's run: a claim never takes its place.
    """
    received = {"received_at": now.astimezone(UTC).isoformat(timespec="microseconds")}
    claims = {"claimed_metrics": dict(handed.claims)} if handed.claims else {}
    if not handed.by_agent:
        return {**handed.metadata, **claims, **received, "reported_by": "operator"}
    # Other metadata of an agent could be mistaken for an observation or for what only an operator knows.
    by_agent = {name: value for name, value in handed.metadata.items() if name in OF_AGENTS}
    return {**seen, **claims, **received, "reported_by": AGENT, **({CLAIMED: by_agent} if by_agent else {})}


class OutcomeIdentity(msgspec.Struct, frozen=True):
    """The parties of an outcome."""

    contract_id: str
    work_id: str | None
    agent_id: str | None
    consumer_id: str | None


def dossier_of(
    about: OutcomeIdentity, work: Work, result: VerificationResult, planted: CheatTraps, *, claimed_may_earn: bool
) -> Dossier:
    """The dossier of an outcome, without history, which is added when it is recorded.

    It uses recorded evidence only, so that an auditor can build it again.
    """
    metadata, texts = work.metadata, comparable_texts(work.output)
    by_agent = metadata.get(CLAIMED) if metadata.get("reported_by") == AGENT else None
    claims = by_agent if isinstance(by_agent, Mapping) else {} if metadata.get("reported_by") == AGENT else metadata
    evaluator, usage = _of_operator(metadata, "evaluator"), _of_operator(metadata, "usage")
    intact = evaluator.get("canary_intact")
    return Dossier(
        contract_id=about.contract_id,
        work_id=about.work_id,
        agent_id=about.agent_id,
        consumer_id=about.consumer_id,
        metrics=[_fact(judged) for judged in result.criterion_results],
        claims=numbers(metadata.get("claimed_metrics")),
        success=result.success,
        claimed_ms=number(claims.get("duration_ms")),
        observed_ms=number(metadata.get("observed_ms")),
        output_tokens=number(claims.get("output_tokens")),
        started_at=moment(claims.get("started_at")),
        ended_at=moment(claims.get("ended_at")),
        received_at=moment(metadata.get("received_at")),
        claimed_tokens=number(claims.get("total_tokens")),
        provider_tokens=number(usage.get("provider_tokens")),
        usage_reconciled=usage.get("reconciled") is True,
        evaluator_before=_hashes(evaluator.get("before")),
        evaluator_after=_hashes(evaluator.get("after")),
        canary_intact=intact if isinstance(intact, bool) else None,
        canaries=len(planted.canaries),
        leaked=find_leaked_canaries(planted.canaries, work.output),
        output_chars=max((len(normalise_text(one[:MAX_COMPARED_CHARS])) for one in texts), default=0),
        reference_similarity=most_similar(texts, work.input.get("reference")),
        impossible=planted.impossible,
        claimed_may_earn=claimed_may_earn,
    )


def dossier_from_context(contract_id: str, stated: Mapping[str, Any], context: Mapping[str, Any]) -> Dossier:
    """The dossier of an outcome of which only metrics and an execution context are known."""
    claims, measured = (context.get(name) for name in ("claimed_metrics", "measured_metrics"))
    if not isinstance(claims, Mapping) and not isinstance(measured, Mapping):
        claims = stated
    return Dossier(
        contract_id=contract_id,
        work_id=_text(context.get("work_id")),
        agent_id=_text(context.get("agent_id")),
        consumer_id=_text(context.get("consumer_id")),
        metrics=[
            MetricFact(
                metric=name,
                criterion_id=name,
                value=value,
                kind=found.kind if (found := metrics.find(name)) else None,
                provenance=Provenance.COMPUTED,
            )
            for name, value in numbers(measured).items()
        ],
        claims=numbers(claims),
        success=context.get("success") is True,
        claimed_ms=number(context.get("duration_ms")),
        observed_ms=number(context.get("observed_ms")),
        output_tokens=number(context.get("output_tokens")),
        started_at=moment(context.get("started_at")),
        ended_at=moment(context.get("ended_at")),
        received_at=moment(context.get("received_at")),
        claimed_tokens=number(context.get("total_tokens")),
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def public_input_fingerprint(work_input: Mapping[str, Any]) -> str:
    """A fingerprint of the part of an input that agents see."""
    return payload_digest({name: value for name, value in work_input.items() if name not in PRIVATE_INPUTS}) or ""


def check_run_id(metadata: Mapping[str, Any]) -> None:
    """Raise BadRunId for a `run_id` that is not text of the fixed form; a list or a look-alike would be another run."""
    run_id = metadata.get("run_id")
    if run_id is not None and not (isinstance(run_id, str) and RUN_ID.fullmatch(run_id)):
        raise BadRunId(
            "metadata.run_id must be text of 1 to 128 letters, digits and . _ : / @ + - that begins with a letter or "
            "digit; give the id of the run as text, or leave it out"
        )


def fingerprints_of(
    contract: "Contract",
    work_input: Mapping[str, Any],
    handed: HandedIn,
    task: Sequence[str | None] = (),
    *,
    by_run_id: bool = False,
) -> SubmissionFingerprints:
    """Fingerprints of an output, its input and its run.

    `task` is the title, description and domain of the work. With `by_run_id`, only a `run_id` identifies the run.
    """
    given = public_input_fingerprint(work_input)
    of_text, of_words = sketch_and_words(text_of(handed.output))
    return msgspec.structs.replace(
        _output_fingerprints(handed.output),
        input=given,
        evidence=_run_fingerprint(contract.agent_id, given, handed, by_run_id=by_run_id),
        sketch=of_text,
        words=of_words,
        task=(payload_digest(["task", *task, given]) if task else None) or given,
    )


def _output_fingerprints(output: Mapping[str, Any], kind: bytes = b"") -> SubmissionFingerprints:
    """Of all texts of an output, and of those of its parts that are long enough to be recognised."""
    whole, *parts = comparable_texts(output)
    folded = canonical_text(whole)
    if len(normalise_text(whole[:MAX_COMPARED_CHARS])) < LONG_CHARS:
        return SubmissionFingerprints("")
    # The whole is among its parts, so that it is recognised as a part of another output.
    of_parts = {folded, *(canonical_text(part) for part in parts if len(part) >= LONG_CHARS)}
    return SubmissionFingerprints(
        "",
        output=_text_hash(kind, folded),
        parts=tuple(sorted(_text_hash(kind + b"part\0", part) for part in of_parts if len(part) >= LONG_CHARS)),
        signature=signature_of(folded, "v" if kind else ""),
    )


def _text_hash(kind: bytes, folded: str) -> str:
    return sha256(kind + folded.encode("utf-8", "surrogatepass")).hexdigest()


def fingerprints_without_contract(work: Work, *, by_agent: bool) -> SubmissionFingerprints:
    """Fingerprints of work without a contract; those of contracts are never equal to them.

    The task behind such work is unknown, so that a comparison with the work of contracts would mistake one piece of
    work for two.
    """
    of_text, of_words = sketch_and_words(text_of(work.output)) if by_agent else ("", "")
    return msgspec.structs.replace(
        _output_fingerprints(work.output, b"verified\0"),
        input=public_input_fingerprint(work.input),
        sketch=of_text,
        words=of_words,
    )


def _run_fingerprint(agent_id: str, given: str, handed: HandedIn, *, by_run_id: bool) -> str | None:
    """A fingerprint of the run, by agent, because agents often number their runs from one."""
    run_id, start, end = (handed.metadata.get(name) for name in ("run_id", "started_at", "ended_at"))
    if isinstance(run_id, str) and RUN_ID.fullmatch(run_id):
        return digest(["run", agent_id, run_id.lower().encode().hex()])
    if by_run_id or start is None or end is None:
        return None
    times = [str(one if (at := moment(one)) is None else at) for one in (start, end)]
    return payload_digest(["time", agent_id, given, payload_digest(handed.output), *times])


def text_of(output: Mapping[str, Any]) -> str:
    """The text of an output: its `text`, else all texts in it, else all of it as JSON."""
    text = output.get("text")
    if isinstance(text, str) and text.strip():
        return text
    leaves = [leaf for leaf in _leaves(output) if isinstance(leaf, str)]
    return "\n".join(leaves) if leaves else (payload_bytes(output) or b"").decode()


def comparable_texts(output: Mapping[str, Any]) -> list[str]:
    """All texts of an output in one, then its `text` and the longest of the others, where they are only a part."""
    leaves = [leaf for leaf in _leaves(output) if isinstance(leaf, str) and leaf]
    whole = "\n".join(leaves) if leaves else (payload_bytes(output) or b"").decode()
    text = output.get("text")
    parts = [text] if isinstance(text, str) and text.strip() else []
    parts += sorted((leaf for leaf in leaves if leaf not in parts), key=len)[-1:]
    return [whole, *(part for part in parts if part != whole)]


class _SeenOutput(msgspec.Struct, frozen=True):
    """The texts of an output in the forms in which planted strings are looked for."""

    plain: str
    normalised: str
    folded: str
    """All of it decoded and folded, and the values in their order."""


def find_leaked_canaries(canaries: tuple[str, ...], output: Mapping[str, Any]) -> list[str]:
    """SHA-256 of the canaries that occur anywhere in the output, also disguised or in an encoding that anyone can undo.

    Case, spacing, dashes and invisible characters never matter. Letters that look alike, other separators, reversal,
    base64, hex and rot13 do not matter for canaries that no honest text holds by chance.
    """
    if not canaries:
        return []
    texts = [*_texts_in(output)]
    in_order = "".join(leaf for leaf in _leaves(output) if isinstance(leaf, str))
    plain = "\n".join(texts)
    seen = _SeenOutput(
        plain=plain,
        normalised="\n".join(map(normalise_text, texts)),
        folded=f"{fold(decode_obvious(plain))}\n{fold(in_order)}",
    )
    return [sha256(canary.encode()).hexdigest() for canary in canaries if _occurs(canary, seen)]


def _occurs(canary: str, seen: _SeenOutput) -> bool:
    normalised = normalise_text(canary)
    # A canary that is very short once normalised would occur everywhere.
    if canary in seen.plain or (len(normalised) >= MIN_CANARY and normalised in seen.normalised):
        return True
    folded = fold(canary)
    is_random = any(char.isdigit() for char in canary) and len(folded) >= MIN_CANARY
    if not is_random and len(folded) < MIN_PHRASE:
        return False
    forms = (folded, folded[::-1], fold(rotate_13(canary)))
    return any(form in seen.folded for form in forms)


def most_similar(texts: Sequence[str], reference: Any) -> float | None:
    """The highest similarity of one of the texts; None without a reference."""
    found = [one for one in (similarity(text, reference) for text in texts) if one is not None]
    return max(found, default=None)


def reaches_similarity(output: Mapping[str, Any], reference: Any, *, similarity_min: float, chars_min: float) -> bool:
    """Whether the dossier would say that an output is so long, and so similar to the reference."""
    if not isinstance(reference, str) or not reference:
        return False
    texts = comparable_texts(output)
    if all(len(normalise_text(text[:MAX_COMPARED_CHARS])) < chars_min for text in texts):
        return False
    found = most_similar([text for text in texts if _may_reach(text, reference, similarity_min)], reference)
    return found is not None and found >= similarity_min


def _may_reach(text: str, reference: str, least: float) -> bool:
    """False only where `similarity` is less; at a fraction of its cost, for most texts are not copies."""
    return least <= 0 or _may_share_words(text, reference, least) or _may_be_disguised(text, reference, least)


def _may_share_words(text: str, reference: str, least: float) -> bool:
    shown = normalise_text(text[:MAX_COMPARED_CHARS])
    words, wanted = words_alphanumeric(shown), _measure(reference).words
    if not words or not wanted:
        return shown == normalise_text(reference[:MAX_COMPARED_CHARS])
    # A little less, because shares are rounded.
    enough = (least - ROUNDING) * (wanted + len(words)) / 2
    return min(wanted, len(words)) >= enough and _count_shared(_words_of(reference), words) >= enough


def _may_be_disguised(text: str, reference: str, least: float) -> bool:
    wanted = _measure(reference).folded
    if len(wanted) < GRAM:
        return False
    decoded = decode_obvious(text)
    if decoded.isascii():
        # Folding keeps ASCII letters and digits, and adds nothing. Shingles are compared at nearly equal lengths.
        kept = len(decoded.encode().translate(None, _DROPPED))
        if 9 * kept > 10 * len(wanted) or 10 * len(decoded) < 9 * len(wanted):
            return False
    return may_share_shingles(wanted, canonical_form(decoded), least)


class _Reference(NamedTuple):
    words: int
    folded: str


@lru_cache(MAX_REFERENCES)
def _measure(reference: str) -> _Reference:
    """How many words a reference has, and its canonical text."""
    return _Reference(len(_words_of(reference)), canonical_text(reference))


def _words_of(text: str) -> list[str]:
    return words_alphanumeric(normalise_text(text[:MAX_COMPARED_CHARS]))


def _count_shared(one: Sequence[str], other: Sequence[str]) -> int:
    """The words that two texts have in common, in any order."""
    left, shared = Counter(one), 0
    for word in other:
        if count := left.get(word):
            left[word] = count - 1
            shared += 1
    return shared


def similarity(text: str, reference: Any) -> float | None:
    """How much of two texts is the same, in the same order: 0 to 1; None without a reference."""
    if not isinstance(reference, str) or not reference:
        return None
    wanted, given = (normalise_text(one[:MAX_COMPARED_CHARS]) for one in (reference, text))
    disguised = _similarity_in_disguise(reference, text)
    one, other = words_alphanumeric(wanted), words_alphanumeric(given)
    if not one or not other or disguised == 1.0:
        return 1.0 if wanted == given else disguised
    shared = 2 * _count_shared(one, other) / (len(one) + len(other))
    # Shared words in any order are an upper bound; for very long texts it is the result.
    if shared < 0.9 or max(len(one), len(other)) > MAX_COMPARED_WORDS:
        return max(shared, disguised)
    in_order = rouge_l(one, other)
    return None if in_order is None else max(in_order, disguised)


def _similarity_in_disguise(reference: str, text: str) -> float:
    """The similarity of two texts as they look, in either direction, decoded; 0 for short ones, which may agree."""
    wanted, given = _measure(reference).folded, canonical_text(text)
    return shared_shingles(wanted, given) if len(wanted) >= GRAM else 0.0


def _of_operator(metadata: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Metadata that only an operator may give; empty where the agent gave it."""
    found = metadata.get(name)
    return found if isinstance(found, Mapping) and metadata.get("reported_by") != AGENT else {}


def _texts_in(output: Mapping[str, Any]) -> Iterator[str]:
    """Every text and number in an output, and the keys."""
    waiting: list[Any] = [output]
    while waiting:
        part = waiting.pop()
        if isinstance(part, str):
            yield part
        elif isinstance(part, Mapping):
            waiting.extend(part.keys())
            waiting.extend(part.values())
        elif isinstance(part, list | tuple):
            waiting.extend(part)
        elif (written := _number_text(part)) is not None:
            yield written


def _leaves(output: Mapping[str, Any]) -> Iterator[Any]:
    """The values of an output in the order in which it is recorded: objects by key, lists in order."""
    waiting: list[Any] = [output]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Mapping):
            waiting.extend(part[key] for key in sorted(part, key=str, reverse=True))
        elif isinstance(part, list | tuple):
            waiting.extend(reversed(part))
        else:
            yield part


def _number_text(number: Any) -> str | None:
    """A number as text, 1.0 as 1; None for other values and for very large numbers."""
    if isinstance(number, bool) or not isinstance(number, int | float) or not -_LARGEST < number < _LARGEST:
        return None
    return str(int(number)) if number == int(number) else repr(number)


def _fact(judged: CriterionResult) -> MetricFact:
    met = judged.status is Status.MET
    return MetricFact(
        metric=judged.metric,
        criterion_id=judged.criterion_id,
        value=number(judged.value),
        kind=judged.natural,
        provenance=judged.provenance,
        met=met,
        margin=_margin(judged) if met else None,
        bonus_micros=as_micros(judged.bonus) if met and judged.bonus else 0,
    )


def _margin(judged: CriterionResult) -> float | None:
    value, threshold = number(judged.value_on_scale), number(judged.threshold)
    if value is None or not threshold or judged.comparison not in ONE_SIDED:
        return None
    return abs(value - threshold) / abs(threshold)


def number(value: Any) -> float | None:
    """A number that a float can hold; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def numbers(value: Any) -> dict[str, float]:
    """The entries that are numbers."""
    found = {str(name): number(one) for name, one in value.items()} if isinstance(value, Mapping) else {}
    return {name: one for name, one in found.items() if one is not None}


def moment(value: Any) -> float | None:
    """Seconds since 1970, from a number or from text with a zone."""
    if isinstance(value, str):
        try:
            read = datetime.fromisoformat(value)
        except ValueError:
            return None
        return None if read.tzinfo is None else read.timestamp()
    return number(value)


def _hashes(value: Any) -> dict[str, str] | None:
    if not isinstance(value, Mapping):
        return None
    return {str(name): str(found) for name, found in value.items()}
