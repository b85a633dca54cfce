"""Results of promptfoo, as `promptfoo eval -o results.json` writes them."""

from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any

import orjson

from meruit.evaluations.datafiles import KNOWN_COLUMNS
from meruit.evaluations.importers.support.json_stream import CUT, load, load_lines, split_document
from meruit.evaluations.importers.support.pieces import (
    Claim,
    ImportedCase,
    ImportNote,
    Piece,
    RunFacts,
    TokenClasses,
    build_case,
    first_known,
    items,
    mapping,
    number,
    number_names,
    plain,
)
from meruit.evaluations.importers.support.source import ImportSource
from meruit.registry import importers

FAILED, ERROR = 1, 2
"""Why a result is not a success: an assertion, or an error of the provider."""
MAX_LABEL, DIGEST_DIGITS = 60, 12
"""Of the name of a test that has no number."""
BROKEN = (
    "Custom function threw error:",
    "Python code execution failed:",
    "Ruby code execution failed:",
    "Webhook error:",
    "Moderation API error:",
    "Search rubric evaluation failed:",
    "Invalid regex pattern:",
)
"""How promptfoo begins the reason of an assertion that could not be checked; it counts it as failed."""


def is_promptfoo(source: ImportSource) -> bool:
    """Recognise a document by its keys, lines by those of a result."""
    if source.head.lstrip().startswith(b"{") and source.says("evalId", "results", "prompts"):
        return True
    return {"testIdx", "promptIdx", "success"} <= source.first_row.keys()


@importers.add(
    "promptfoo",
    recognise=is_promptfoo,
    examples=[
        (
            {
                "results.json": '{"evalId": "e", "results": {"version": 3, "prompts": [], "results": ['
                '{"testIdx": 0, "promptIdx": 0, "success": true, "score": 1, "failureReason": 0, "vars": {"q": "?"}},'
                '{"testIdx": 1, "promptIdx": 0, "success": false, "score": 0, "failureReason": 2, "error": "429"}]}}'
            },
            {"0": "pass", "1": None},
        )
    ],
)
def read_promptfoo(source: ImportSource) -> Iterator[Piece]:
    """Results of promptfoo, `-o results.json` or `-o results.jsonl`; a provider's error stays an error."""
    tags: dict[str, str] = {"origin": "promptfoo"}
    groups: dict[int, str] = {}
    places = _Places()
    with source.open() as file:
        if "testIdx" in source.first_row:
            yield RunFacts(tags)
            for row in load_lines(file):
                if row == CUT:
                    yield ImportNote("the last line is cut off; only what comes before is imported", partial=True)
                else:
                    yield _to_case(mapping(row), groups, places)
            return
        for path, text in split_document(file, {"results.results"}):
            if path == CUT:
                yield ImportNote("the file is cut off; only what comes before is imported", partial=True)
            elif path:
                yield _to_case(mapping(load(text)), groups, places)
            else:
                document = mapping(load(text))
                version = mapping(document.get("metadata")).get("promptfooVersion")
                tags["origin"] = f"promptfoo {version}" if version else "promptfoo"
                yield RunFacts(tags)


class _Places:
    """Names tests and numbers prompts of exports that do not: of version 2 and older."""

    def __init__(self) -> None:
        self._prompts: dict[str, dict[bytes, int]] = {}

    def place(self, row: Mapping[str, Any]) -> tuple[str, Any]:
        """The test and the number of the prompt that a result is about."""
        known = first_known(row.get("testIdx"), row.get("id"))
        if known is not None:
            return str(known), row.get("promptIdx")
        description = row.get("description") or mapping(row.get("testCase")).get("description")
        variables = mapping(row.get("vars"))
        # The label is for readers; the digest distinguishes labels that are cut off.
        label = " ".join(str(description or ", ".join(map(str, variables.values()))).split())[:MAX_LABEL]
        digest = sha256(_canonical([description, variables])).hexdigest()[:DIGEST_DIGITS]
        test = f"{label} {digest}".strip()
        return test, row.get("promptIdx", self._number(row, test))

    def _number(self, row: Mapping[str, Any], test: str) -> int:
        """The place of the prompt and provider among those that were met; 0 for the first."""
        prompt = mapping(row.get("prompt"))
        label = prompt.get("label") or prompt.get("display")
        # Without a label there is only the text with the variables in it, which is another in each test.
        known = self._prompts.setdefault("" if label else test, {})
        return known.setdefault(_canonical([label or prompt.get("raw"), row.get("provider")]), len(known))


def _canonical(value: Any) -> bytes:
    return orjson.dumps(plain(value), option=orjson.OPT_SORT_KEYS)


def _to_case(row: Mapping[str, Any], groups: dict[int, str], places: _Places) -> ImportedCase:
    response, variables = mapping(row.get("response")), mapping(row.get("vars"))
    grading = mapping(row.get("gradingResult"))
    given = {**variables, "prompt": mapping(row.get("prompt")).get("raw", "")}
    reference = next((value for name, value in variables.items() if KNOWN_COLUMNS.get(name) == "input.reference"), None)
    if reference is not None:
        given["reference"] = reference
    provider = mapping(row.get("provider"))
    test, prompt = places.place(row)
    case = build_case(
        # One test with several prompts or providers is as many cases.
        test if not prompt else f"{test}/{prompt}",
        given=given,
        output=response.get("output"),
        tags={
            "provider": provider.get("label") or provider.get("id"),
            "prompt": mapping(row.get("prompt")).get("label"),
            "description": mapping(row.get("testCase")).get("description"),
        },
        metadata=mapping(mapping(row.get("testCase")).get("metadata")),
        tokens=_tokens(mapping(response.get("tokenUsage"))),
        duration_ms=row.get("latencyMs"),
        cost=row.get("cost"),
        error=_error(row, response),
        # Repeats are tests of their own with the same variables, and several prompts share a test.
        group=_group(groups, variables, f"test {test}"),
    )
    return ImportedCase(case, _claim(row, grading))


def _group(groups: dict[int, str], variables: Mapping[str, Any], test: str) -> str:
    """The first test with these variables."""
    if not variables:
        return test
    return groups.setdefault(hash(_canonical(variables)), test)


def _error(row: Mapping[str, Any], response: Mapping[str, Any]) -> str | None:
    """The error of a provider; a failed assertion has a text in `error` too, and is none."""
    reason, message = row.get("failureReason"), row.get("error") or response.get("error")
    if reason == ERROR or (reason is None and response.get("error")):
        return str(message or "the origin recorded an error")
    return None


def _claim(row: Mapping[str, Any], grading: Mapping[str, Any]) -> Claim:
    parts = [mapping(one) for one in items(grading.get("componentResults"))]
    names = number_names([*map(_name, parts)])
    checks = {
        name: one["pass"]
        for name, one in zip(names, parts, strict=True)
        if isinstance(one.get("pass"), bool) and not _is_broken(one)
    }
    broken = any(map(_is_broken, [grading, *parts]))
    success = row.get("success")
    # A failure that neither the row nor the grading explains is not a verdict: it may be an error of the provider.
    explained = row.get("failureReason") == FAILED or grading.get("pass") is False
    return Claim(
        success=None if broken or not isinstance(success, bool) or not (success or explained) else success,
        checks=checks,
        scores={"score": number(row.get("score"))}
        | {str(name): plain(value) for name, value in mapping(row.get("namedScores")).items()},
        reasons={name: str(one["reason"])[:2_000] for name, one in zip(names, parts, strict=True) if one.get("reason")},
    )


def _is_broken(grading: Mapping[str, Any]) -> bool:
    """Whether an assertion could not be checked: then it says nothing about the work."""
    return bool(mapping(grading.get("metadata")).get("graderError")) or (
        grading.get("pass") is False and str(grading.get("reason", "")).startswith(BROKEN)
    )


def _name(part: Mapping[str, Any]) -> str:
    """The metric or type of an assertion, or of the set that a part sums up."""
    described = mapping(part.get("assertion")) or mapping(mapping(part.get("metadata")).get("assertionSet"))
    return str(described.get("metric") or described.get("type") or "assertion")


def _tokens(usage: Mapping[str, Any]) -> TokenClasses:
    details = mapping(usage.get("completionDetails"))
    return TokenClasses.inclusive(
        given=usage.get("prompt"),
        read=details.get("cacheReadInputTokens"),
        written=details.get("cacheCreationInputTokens"),
        made=usage.get("completion"),
    )
