"""The page of an evaluation: whole, harmless whatever cases hold, and readable offline, on a phone and in the dark."""

import base64
import json
import re
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from tests.evaluations.conftest import CRITERIA, TENANT
from tests.pages.browsing import CHROMIUM, Screen, Visit, visit
from tests.sampling import IN_FULL

from meruit.errors import MeruitError
from meruit.evaluations.evaluation import Case, CaseError
from meruit.evaluations.page import cases as page_cases
from meruit.evaluations.page.render import render_comparison, render_evaluation
from meruit.evaluations.reader import Evaluations, erase_case
from meruit.evaluations.run import run_cases
from meruit.evaluations.service import Evaluator
from meruit.outcomes.service import Registrar
from meruit.store.location import Location
from meruit.store.store import Store
from meruit.verify.engine import VerificationEngine

HOSTILE = [
    "<script>alert(1)</script>",
    "\"'><img src=x onerror=alert(2)>",
    "</script></style></svg></title><script>alert(3)</script>",
    "]]><!--",
    "javascript:alert(4)",
    "\u202egnirts detrevni",
    "שלום <b>",
    "👩‍👩‍👧‍👦🇨🇭",
    "x" * 200,
    "&lt;&amp;",
]
SCREENS = [
    Screen(1280, 900),
    Screen(1280, 900, "dark"),
    Screen(360, 740),
    Screen(1024, 700, media="print"),
]
READY = """
async () => {
  const pause = () => new Promise(next => setTimeout(next, 20));
  while (!document.documentElement.dataset.ready) await pause();
  for (const one of document.querySelectorAll('#list th a')) one.click();
  while (document.querySelector('tr.opened') && !document.querySelector('tr.sub')) await pause();
}
"""
SCRIPTS = {
    "rows": "document.querySelectorAll('#list tbody tr[id]').length",
    "open": "document.querySelector('tr.sub')?.textContent",
    "works": "document.querySelectorAll('tr.sub .work').length",
    "address": "location.hash",
    "bold": "document.querySelectorAll('#list b, #list img').length",
}


def case(number: int, text: str | None, **more: Any) -> Case:
    output = None if text is None else {"text": text}
    return Case(f"c{number}", {"question": f"Question {number}?", "reference": "yes"}, output, **more)


def run(evaluator: Evaluator, name: str, cases: list[Case]) -> None:
    criteria = evaluator.compile(CRITERIA)
    run_cases(evaluator, evaluator.start(name, criteria, tags={"model": name}), criteria, cases)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    opened = Store.open(Location(tmp_path_factory.mktemp("records")))
    evaluator = Evaluator(Registrar(VerificationEngine(), opened), TENANT)
    run(
        evaluator,
        "small",
        [
            *(case(n, "yes" if n % 3 else "no", tags={"kind": "odd" if n % 2 else "even"}) for n in range(30)),
            case(30, None, error=CaseError.TARGET_ERROR, error_message="it broke"),
            case(31, "too many words for this", group="g", claimed="pass", cost_micros=2_000),
        ],
    )
    run(evaluator, "large", [case(n, "yes" if n % 5 else "no") for n in range(1, 33)])
    hostile = [
        Case(
            f"{place} {text[:150]}" if text.isprintable() else f"{place}",
            {"question": text, "reference": text},
            {"text": text[::-1], text: text},
            {text: text},
        )
        for place, text in enumerate(HOSTILE)
    ]
    run(evaluator, HOSTILE[0], hostile)
    run(evaluator, HOSTILE[1], hostile[1:])
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def reader(store: Store) -> Evaluations:
    return Evaluations(store, TENANT)


def page_of(reader: Evaluations, *names: str) -> bytes:
    found = [reader.find(name) for name in names]
    return render_evaluation(reader, *found) if len(found) == 1 else render_comparison(reader, *found)


# Any: what the page embeds is JSON.
def embedded(page: bytes) -> tuple[dict[str, Any], list[Any]]:
    index, *parts = (
        json.loads(zlib.decompress(base64.b64decode(one)))
        for one in re.findall(r'<script type="text/plain"[^>]*>([^<]*)</script>', page.decode())
    )
    return index, parts


def test_every_case_is_in_the_page_with_its_work(reader: Evaluations) -> None:
    index, parts = embedded(page_of(reader, "small"))
    assert [row[0] for row in index["rows"]] == [f"c{n}" for n in range(32)]
    assert [one["id"] for one in index["criteria"]] == ["exact_match", "word_count"]
    works = {row[0]: parts[row[4]][row[5]][0] for row in index["rows"]}
    assert works["c0"]["output"] == {"text": "no"}
    assert works["c30"]["error"] == "it broke"
    assert [one["status"] for one in works["c31"]["criteria"]] == ["n", "n"]
    (end,) = index["rows"][31][6]
    assert (end[1], end[3], end[6]) == (0, "nn", "pass")


def test_a_comparison_lays_cases_side_by_side(reader: Evaluations) -> None:
    index, parts = embedded(page_of(reader, "small", "large"))
    rows = {row[0]: row for row in index["rows"]}
    assert len(rows) == 33
    assert [end is None for end in rows["c0"][6]] == [False, True]
    assert [end[1] for end in rows["c3"][6]] == [0, 1]
    assert [side["output"]["text"] for side in parts[rows["c5"][4]][rows["c5"][5]]] == ["yes", "no"]
    # Flips are in the first part, which is opened first.
    assert rows["c3"][4] == 0
    with pytest.raises(MeruitError):
        page_of(reader, "small", "small")


def test_work_is_left_out_where_the_page_would_be_too_large(
    reader: Evaluations, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_cases, "MAX_WORK_BYTES", 1_500)
    monkeypatch.setattr(page_cases, "PART_CASES", 4)
    index, parts = embedded(page_of(reader, "small"))
    kept = {row[0] for row in index["rows"] if row[4] >= 0}
    assert len(index["rows"]) == 32
    assert 0 < len(kept) == 4 * len(parts) < 32
    # Failing ones come first.
    assert all(row[6][0][1] != 1 for row in index["rows"] if row[0] in kept)


def test_only_so_many_cases_are_listed(reader: Evaluations, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_cases, "MAX_ROWS", 5)
    page = page_of(reader, "small")
    index, _ = embedded(page)
    assert [row[6][0][1] for row in index["rows"]] == [0] * 5
    assert "lists 5 of 32 cases" in page.decode()


@pytest.mark.parametrize(
    "value",
    ["x" * 100_000, {"a": "x" * 100_000}, {"a": ["x" * 50_000] * 3, "b": "y"}, [{"n": n} for n in range(9_000)]],
)
def test_long_work_is_cut(value: Any) -> None:
    cut = page_cases._cut(value)
    assert len(json.dumps(cut)) < 4 * page_cases.MAX_TEXT
    assert "…" in json.dumps(cut, ensure_ascii=False)


def test_an_erased_case_says_so(store: Store, reader: Evaluations) -> None:
    evaluator = Evaluator(Registrar(VerificationEngine(), store), TENANT)
    run(evaluator, "erased", [case(1, "secret words"), case(2, "yes")])
    (first, _) = reader.cases(reader.find("erased"))
    erase_case(store, TENANT, first.outcome_id, "asked")
    page = page_of(reader, "erased")
    index, parts = embedded(page)
    assert parts[index["rows"][0][4]][index["rows"][0][5]][0]["erased"] is True
    assert "secret" not in json.dumps([index, parts])


def test_a_page_is_one_file_that_allows_its_own_script_alone(reader: Evaluations) -> None:
    for names in (("small",), (HOSTILE[0],), (HOSTILE[0], HOSTILE[1])):
        page = page_of(reader, *names).decode()
        (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert len(re.findall("<script>", page)) == 1
        assert not re.findall(r'(?:src|href)="(?!#)', page)
        assert "<img" not in page


@pytest.fixture(scope="module")
def visits(reader: Evaluations, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, Screen], Visit]:
    if CHROMIUM is None:
        pytest.skip("no Chromium here")
    pages = {
        "small.html": page_of(reader, "small"),
        "compared.html": page_of(reader, "small", "large"),
        "hostile.html": page_of(reader, HOSTILE[0]),
        "hostile-compared.html": page_of(reader, HOSTILE[0], HOSTILE[1]),
    }
    return visit(tmp_path_factory.mktemp("pages"), pages, SCREENS, SCRIPTS, prepare=READY)


def test_the_list_begins_with_what_needs_attention(visits: dict[tuple[str, Screen], Visit]) -> None:
    answers = visits["small.html", SCREENS[0]].answers
    assert answers["rows"] == 12
    assert answers["address"].startswith("#case-c31?")
    assert "its origin claimed pass" not in answers["open"]
    assert visits["compared.html", SCREENS[0]].answers["rows"] == 13


def test_an_open_case_shows_its_work_and_criteria(visits: dict[tuple[str, Screen], Visit]) -> None:
    answers = visits["small.html", SCREENS[0]].answers
    for text in ("Question 31?", "too many words for this", "word_count", "not met", "0.002 USD", "group g"):
        assert text in answers["open"]
    assert answers["works"] >= 3


def test_pages_are_readable_on_every_screen(visits: dict[tuple[str, Screen], Visit]) -> None:
    for (name, screen), found in visits.items():
        if screen.media == "screen":
            assert found.audit == [], (name, screen)
            assert found.width <= screen.width, (name, screen)
        assert found.requests == [name], (name, screen)


def test_hostile_cases_run_nothing(visits: dict[tuple[str, Screen], Visit]) -> None:
    for (name, screen), found in visits.items():
        assert found.complaints == [], (name, screen)
    assert visits["hostile.html", SCREENS[0]].answers["rows"] == len([one for one in HOSTILE if one != one[::-1]])


@pytest.mark.skipif(not IN_FULL, reason="ten thousand cases: `make endurance`")
def test_ten_thousand_cases_are_ten_megabytes_at_most(store: Store, reader: Evaluations) -> None:
    evaluator = Evaluator(Registrar(VerificationEngine(), store), TENANT)
    words = [f"{n * 7919 % 10_007:x}" for n in range(10_000)]
    texts = [" ".join(words[n % 9_000 : n % 9_000 + 120]) for n in range(10_000)]
    run(evaluator, "ten thousand", [case(n, text) for n, text in enumerate(texts)])
    page = page_of(reader, "ten thousand")
    assert len(page) <= 10_000_000
    assert len(embedded(page)[0]["rows"]) == 10_000
