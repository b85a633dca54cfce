"""Faxes: pages of PDF and TIFF, numbers as they are dialled."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.playground.documents import pdf, tiff

from meruit.checks.formats.fax_pages import MAX_PAGES, FaxFormat, read_pages
from meruit.errors import UnreadableContent
from meruit.model.criterion import Assertion
from meruit.model.environment import Snapshot, SourceKind, as_work_part, make_item
from meruit.model.evidence import Checked, Missing
from meruit.model.work import Work
from meruit.registry import checks, faults_of


def judge(asked: dict[str, Any], *faxes: tuple[str, bytes]) -> Checked | Missing:
    now = Snapshot(
        SourceKind.FAX,
        [
            make_item(f"{number:06}", content, facts={"to": to, "status": "sent", "from": "+15550100100"})
            for number, (to, content) in enumerate(faxes, 1)
        ],
    )
    check = checks.find("fax-sent")
    assert check is not None
    work = Work(input=as_work_part({"fax": Snapshot(SourceKind.FAX)}), output=as_work_part({"fax": now}))
    found = check.prepare(Assertion.model_validate({"assert": "fax-sent", **asked}))(work)
    assert isinstance(found, Checked | Missing)
    return found


def score(asked: dict[str, Any], *faxes: tuple[str, bytes]) -> str:
    found = judge(asked, *faxes)
    assert isinstance(found, Checked)
    return str(found.score)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("pages", [1, 2, MAX_PAGES])
def test_pages_of_a_tiff_are_counted_in_both_byte_orders(pages: int, order: str) -> None:
    found = read_pages(tiff(pages, order=order))
    assert (found.format, len(found.texts), found.pictures) == (FaxFormat.TIFF, pages, pages)


def test_text_of_a_pdf_is_read_page_by_page() -> None:
    found = read_pages(pdf("Ann  Smith", "", "MRN 483671"))
    assert (found.format, found.texts, found.pictures) == (FaxFormat.PDF, ("Ann Smith", "", "MRN 483671"), 1)


@pytest.mark.parametrize(
    "content", [b"", b"text", tiff(0), tiff(MAX_PAGES + 1), tiff(1, circle=True), pdf(), b"%PDF-1.4\n", b"II*\0"]
)
def test_what_has_no_readable_pages_is_unreadable(content: bytes) -> None:
    with pytest.raises(UnreadableContent):
        read_pages(content)


@given(st.binary(max_size=200), st.sampled_from([b"II*\0", b"MM\0*", b"%PDF-1.7\n", b""]))
def test_no_bytes_break_the_reader(noise: bytes, head: bytes) -> None:
    try:
        found = read_pages(head + noise)
    except UnreadableContent:
        return
    assert 1 <= len(found.texts) <= MAX_PAGES


@given(st.integers(0, 200), st.sampled_from([tiff(3), pdf("a", "b")]))
def test_a_cut_document_is_unreadable_or_has_fewer_pages(length: int, whole: bytes) -> None:
    try:
        assert len(read_pages(whole[:length]).texts) <= len(read_pages(whole).texts)
    except UnreadableContent:
        assert length < len(whole)


def test_numbers_are_compared_as_they_are_dialled() -> None:
    asked = {"count": 1, "fields": {"to": "+1 (555) 010-0199", "text": {"contains": "Smith"}}}
    assert score(asked, ("+15550100199", pdf("Ann Smith"))) == "1"
    assert score({"fields": {"to": {"in": ["+1 555 010 0199"]}}}, ("+15550100199", tiff(1))) == "1"


def test_a_fax_to_another_number_is_not_the_one_asked_for() -> None:
    asked = {"fields": {"to": "+15550100199", "pages": 1, "status": "sent", "text": {"contains": "Smith"}}}
    found = judge(asked, ("+15550100198", pdf("Ann Smith")))
    assert isinstance(found, Checked)
    assert found.score == "0"


SMITH = {"fields": {"to": "+15550100199", "text": {"contains": "Smith"}}}
NO_SSN = {"where": {"text": {"contains": "078-05-1120"}}, "count": 0}


@pytest.mark.parametrize("content", [tiff(1), pdf(""), pdf("Dr. Rivera", "")])
@pytest.mark.parametrize("asked", [SMITH, NO_SSN, {"fields": {"page[0]": "x", "page[1]": "y"}}])
def test_text_in_a_picture_is_neither_passed_nor_failed(asked: dict[str, Any], content: bytes) -> None:
    found = judge(asked, ("+15550100199", content))
    assert isinstance(found, Missing)
    assert (found.cause, found.fault, found.details) == ("unread_form", "system", {"pictures": ["000001"]})


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (SMITH, "1"),
        ({"fields": {"text": {"one_of": [{"contains": "Smith"}, {"says": "jones"}]}}}, "1"),
        ({"fields": {"page[0]": {"contains": "Smith"}}}, "1"),
        ({"fields": {"page[0]": {"contains": "Jones"}}}, "0"),
        ({"fields": {"pages": 2, "pictures": 1}}, "1"),
        (NO_SSN | {"where": {"page[0]": {"contains": "078-05-1120"}}}, "1"),
        (SMITH | {"fields": {**SMITH["fields"], "to": "+15550100198"}}, "0"),
        (SMITH | {"count": 2}, "0"),
        ({"where": {"text": {"contains": "Smith"}}, "count": 2}, "0"),
    ],
)
def test_what_pictures_cannot_change_is_judged(asked: dict[str, Any], expected: str) -> None:
    assert score(asked, ("+15550100199", pdf("Ann Smith", ""))) == expected


@pytest.mark.parametrize("rule", [{"not": {"contains": "Jones"}}, "Ann Smith", {"matches": ".*"}, {"contains": "Jo"}])
def test_what_more_text_could_change_is_open(rule: Any) -> None:
    assert isinstance(judge({"fields": {"text": rule}}, ("+15550100199", pdf("Ann Smith", ""))), Missing)


def test_a_whole_fax_is_enough_beside_a_picture() -> None:
    faxes = (("+15550100199", tiff(1)), ("+15550100199", pdf("Ann Smith")))
    assert score(SMITH, *faxes) == "1"
    assert isinstance(judge(SMITH | {"match": "all"}, *faxes), Missing)
    one = {"where": {"text": {"contains": "Smith"}}, "count": 1}
    assert isinstance(judge(one, *faxes), Missing)
    assert isinstance(judge(one, *(("+15550100199", tiff(1)),) * 2), Missing)


def test_an_attempt_selects_nothing_for_other_checks() -> None:
    now = Snapshot(SourceKind.FAX, [make_item("000001", tiff(1), facts={"to": "+15550100199"})])
    work = Work(input=as_work_part({"fax": Snapshot(SourceKind.FAX)}), output=as_work_part({"fax": now}))
    found = []
    for name, asked in (("fax-sent", SMITH), ("state-unchanged", {})):
        check = checks.find(name)
        assert check is not None
        found.append(check.prepare(Assertion.model_validate({"assert": name, **asked}))(work))
    assert isinstance(found[0], Missing)
    assert isinstance(found[1], Checked)
    assert found[1].score == "0"


def test_an_unreadable_fax_is_the_agents() -> None:
    found = judge({"fields": {"pages": 1}}, ("+15550100199", b"%PDF-1.4 broken"))
    assert isinstance(found, Checked)
    assert (found.score, str(found.fault)) == ("0", "agent")


def test_an_unknown_field_of_a_fax_is_refused_with_the_nearest() -> None:
    (fault,) = faults_of(Assertion.model_validate({"assert": "fax-sent", "fields": {"page_count": 1}}))
    assert "page" in str(fault)
