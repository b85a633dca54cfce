"""Logs of Inspect: `.eval` archives, crashed ones too, and whole logs as `.json`."""

from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

from meruit.errors import ImportDamaged
from meruit.evaluations.importers.support.json_stream import CUT, load, split_document
from meruit.evaluations.importers.support.messages import prompt_of, text_of, to_messages
from meruit.evaluations.importers.support.pieces import (
    Claim,
    ImportedCase,
    ImportNote,
    Piece,
    RunFacts,
    TokenClasses,
    build_case,
    count,
    items,
    mapping,
    number,
    plain,
    verdict_word,
)
from meruit.evaluations.importers.support.source import ImportSource
from meruit.evaluations.importers.support.zip_reader import ZipArchive, list_entries, read_entry
from meruit.registry import importers

GRADES = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}
"""Inspect's letters for correct, incorrect, partial, and no answer."""
HEADER, START, SUMMARIES, JOURNAL, SAMPLES = (
    *("header.json", "_journal/start.json", "summaries.json", "_journal/summaries/", "samples/"),
)
_ATTACHMENT = "attachment://"


def is_inspect(source: ImportSource) -> bool:
    """Recognise an archive by its entries, a document by its keys."""
    if source.head.startswith(b"PK\x03\x04"):
        with source.open() as file:
            return any(name in list_entries(file).entries for name in (HEADER, START))
    return source.head.lstrip().startswith(b"{") and source.says("eval", "task", "run_id") and source.says("dataset")


@importers.add(
    "inspect",
    recognise=is_inspect,
    examples=[
        (
            {
                "log.json": '{"version": 2, "status": "success", "eval": {"task": "t", "run_id": "r", "dataset": {}},'
                ' "samples": [{"id": "a", "epoch": 1, "input": "1+1?", "target": "2", "scores": {"match":'
                ' {"value": "C"}}}, {"id": "b", "epoch": 1, "input": "?", "error": {"message": "died"}}]}'
            },
            {"a": "pass", "b": None},
        )
    ],
)
def read_inspect(source: ImportSource) -> Iterator[Piece]:
    """Inspect logs, `.eval` (Zstandard or deflate, crashed runs too) and `.json`."""
    with source.open() as file:
        if source.head.startswith(b"PK\x03\x04"):
            yield from _read_archive(file)
        else:
            yield from _read_document(file)


def _read_archive(file: BinaryIO) -> Iterator[Piece]:
    archive = list_entries(file)
    if not archive.is_whole:
        yield ImportNote("the archive is cut off; only what comes before is imported", partial=True)
    header = _entry(file, archive, HEADER) if HEADER in archive.entries else None
    started = mapping(header if header is not None else _entry(file, archive, START))
    yield from _facts(started, crashed=header is None)
    headline = _headline(started)
    seen: set[tuple[str, int]] = set()
    for name in archive.entries:
        if name.startswith(SAMPLES):
            case = _to_case(mapping(_entry(file, archive, name)), headline)
            seen.add((case.case.id, case.case.repeat))
            yield case
    # A run that was killed has summaries of samples that it did not write yet.
    for name in archive.entries:
        if name.startswith(JOURNAL) or name == SUMMARIES:
            for sample in items(_entry(file, archive, name)):
                case = _to_case(mapping(sample), headline)
                if (case.case.id, case.case.repeat) not in seen:
                    seen.add((case.case.id, case.case.repeat))
                    yield case


def _entry(file: BinaryIO, archive: ZipArchive, name: str) -> Any:
    entry = archive.entries.get(name)
    if entry is None:
        raise ImportDamaged(f"the archive has no {name}")
    return load(read_entry(file, entry))


def _read_document(file: BinaryIO) -> Iterator[Piece]:
    """The header first, which a document may have behind its samples; then the samples."""
    header: Mapping[str, Any] = {}
    for path, text in split_document(file, {"samples"}):
        if path == CUT:
            yield ImportNote("the file is cut off; only what comes before is imported", partial=True)
        elif not path:
            header = mapping(load(text))
    yield from _facts(header, crashed=False)
    headline = _headline(header)
    file.seek(0)
    for path, text in split_document(file, {"samples"}):
        if path == "samples":
            yield _to_case(mapping(load(text)), headline)


def _facts(header: Mapping[str, Any], *, crashed: bool) -> Iterator[Piece]:
    spec = mapping(header.get("eval"))
    packages = mapping(spec.get("packages"))
    tags = {
        "model": spec.get("model"),
        "task": spec.get("task"),
        "origin": f"inspect-ai {packages.get('inspect_ai', '')}".strip(),
        "commit": mapping(spec.get("revision")).get("commit"),
    }
    status = "started" if crashed else str(header.get("status", ""))
    if status and status != "success":
        tags["origin_status"] = status
        yield ImportNote(f"Inspect did not finish this run (status: {status})")
    epochs = count(mapping(spec.get("config")).get("epochs")) or 1
    samples = count(mapping(spec.get("dataset")).get("samples"))
    yield RunFacts({name: str(value) for name, value in tags.items() if value}, samples * epochs or None)


def _headline(header: Mapping[str, Any]) -> str | None:
    """The scorer that stands for the whole; None where the log does not say."""
    scorer = mapping(mapping(header.get("results")).get("headline")).get("scorer")
    return scorer if isinstance(scorer, str) else None


def _to_case(sample: Mapping[str, Any], headline: str | None) -> ImportedCase:
    attached = mapping(sample.get("attachments"))
    messages = to_messages(_resolve(sample.get("messages"), attached))
    given = _resolve(sample.get("input"), attached)
    target = sample.get("target")
    work: dict[str, Any] = {"prompt": prompt_of(given)}
    if isinstance(target, list):
        work["references"] = target
    elif target not in (None, ""):
        work["reference"] = target
    if sample.get("choices"):
        work["choices"] = sample["choices"]
    error = sample.get("error")
    problem = mapping(error).get("message", error) if error else None
    invalid = sample.get("invalidation")
    if problem is None and invalid:
        problem = f"invalidated at the origin: {mapping(invalid).get('reason', '')}"
    usage = [mapping(one) for one in mapping(sample.get("model_usage")).values()]
    tokens = sum((_tokens(one) for one in usage), TokenClasses())
    costs = [number(one.get("total_cost")) for one in usage]
    took = number(sample.get("total_time"))
    case = build_case(
        sample.get("id"),
        given=work,
        output=_output(sample, attached),
        repeat=count(sample.get("epoch")) - 1,
        metadata={**mapping(sample.get("metadata")), **({"limit": sample["limit"]} if sample.get("limit") else {})},
        messages=messages,
        tokens=tokens,
        duration_ms=None if took is None else took * 1_000,
        cost=sum(filter(None, costs)) if any(costs) else None,
        error=None if problem is None else str(problem),
    )
    return ImportedCase(case, _claim(mapping(sample.get("scores")), headline))


def _tokens(usage: Mapping[str, Any]) -> TokenClasses:
    return TokenClasses.exclusive(
        given=usage.get("input_tokens"),
        read=usage.get("input_tokens_cache_read"),
        written=usage.get("input_tokens_cache_write"),
        made=usage.get("output_tokens"),
    )


def _output(sample: Mapping[str, Any], attached: Mapping[str, Any]) -> dict[str, Any] | None:
    output = mapping(sample.get("output"))
    choices = items(output.get("choices"))
    if not choices and not output.get("completion"):
        return None
    content = mapping(mapping(choices[0]).get("message")).get("content") if choices else output.get("completion")
    return {"text": text_of(_resolve(content, attached))}


def _claim(scores: Mapping[str, Any], headline: str | None) -> Claim:
    values: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    for scorer, score in scores.items():
        found = mapping(score)
        value = found.get("value")
        parts = {f"{scorer}.{key}": part for key, part in value.items()} if isinstance(value, Mapping) else None
        values |= {scorer: value} if parts is None else parts
        if found.get("explanation"):
            reasons[scorer] = str(found["explanation"])[:2_000]
    checks = {name: _grade(value) for name, value in values.items() if _grade(value) is not None}
    first = headline if headline in values else next(iter(values), None)
    decided = values.get(first) if first is not None else None
    return Claim(
        success=_grade(decided),
        score=_number(decided),
        checks=checks,
        scores={name: plain(one) for name, one in values.items()},
        reasons=reasons,
    )


def _grade(value: Any) -> bool | None:
    """C and I, yes and no: Inspect's verdicts; None for numbers and everything between."""
    return None if value in ("N", "n") else verdict_word(value)


def _number(value: Any) -> float | None:
    return GRADES.get(value) if isinstance(value, str) else number(value)


def _resolve(value: Any, attached: Mapping[str, Any], depth: int = 0) -> Any:
    """The value with what was moved to the attachments put back."""
    if isinstance(value, str) and value.startswith(_ATTACHMENT):
        return attached.get(value.removeprefix(_ATTACHMENT), value)
    if depth > 10 or not attached:
        return value
    if isinstance(value, list):
        return [_resolve(part, attached, depth + 1) for part in value]
    if isinstance(value, Mapping):
        return {key: _resolve(part, attached, depth + 1) for key, part in value.items()}
    return value
