"""X12 read by our own reader: what was written is what is found, and nothing broken goes unnoticed."""

import io
import string
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

# It comes without types.
from pyx12.x12file import X12Reader

from meruit.checks.formats.x12 import (
    Interchange,
    TransactionSet,
    X12Delimiters,
    X12Flaw,
    X12Path,
    compile_path,
    flaws,
    read,
    values,
)
from meruit.errors import AuthorError, UnreadableContent

USUAL = X12Delimiters("*", ":", "~", "^")

# What each set says between ST and SE, one segment a line; all people and numbers are made up.
BODIES = {
    ("270", "005010X279A1", "HS"): """
        BHT*0022*13*10001234*20260301*1319
        HL*1**20*1
        NM1*PR*2*ABC COMPANY*****PI*842610001
        HL*2*1*21*1
        NM1*1P*2*BONE AND JOINT CLINIC*****XX*1234567893
        HL*3*2*22*0
        TRN*1*93175-012547*9877281234
        NM1*IL*1*SMITH*ROBERT****MI*123456789
        DMG*D8*19430519
        DTP*291*D8*20260301
        EQ*30^98""",
    ("271", "005010X279A1", "HB"): """
        BHT*0022*11*10001234*20260301*1319
        HL*1**20*1
        NM1*PR*2*ABC COMPANY*****PI*842610001
        HL*2*1*21*1
        NM1*1P*2*BONE AND JOINT CLINIC*****XX*1234567893
        HL*3*2*22*1
        TRN*2*93175-012547*9877281234
        NM1*IL*1*SMITH*ROBERT****MI*123456789
        N3*15197 BROADWAY AVENUE*APT 215
        EB*6
        HL*4*3*23*0
        NM1*03*1*SMITH*MARY LOU
        DMG*D8*19780912*F
        DTP*346*D8*20260101
        EB*1**30*MC*GOLD 123 PLAN
        EB*B*IND*1^33^98***27*10*****Y
        EB*B*IND*30***27*30*****N
        EB*C*IND*30***23*2000""",
    ("276", "005010X212", "HR"): """
        BHT*0010*13*ABC276XXX*20260301*1425
        HL*1**20*1
        NM1*PR*2*ABC INSURANCE*****PI*12345
        HL*2*1*21*1
        NM1*41*2*XYZ SERVICE*****46*X67E
        HL*3*2*19*1
        NM1*1P*2*HOME HOSPITAL*****XX*1666666661
        HL*4*3*22*0
        DMG*D8*19301210*M
        NM1*IL*1*SMITH*FRED****MI*123456789A
        TRN*1*ABCXYZ1
        REF*BLT*111
        AMT*T3*8513.88
        DTP*472*RD8*20260211-20260213""",
    ("277", "005010X212", "HN"): """
        BHT*0010*08*277X212*20260301*1428*DG
        HL*1**20*1
        NM1*PR*2*ABC INSURANCE*****PI*12345
        HL*2*1*21*1
        NM1*41*2*XYZ SERVICE*****46*X67E
        HL*3*2*19*1
        NM1*1P*2*HOME HOSPITAL*****XX*1666666661
        HL*4*3*22*0
        NM1*IL*1*SMITH*FRED****MI*123456789A
        TRN*2*ABCXYZ1
        STC*P3:317*20260913**8513.88
        STC*F1:65:PR*20260914**10*5
        REF*1K*0603012""",
    ("278", "005010X217", "HI"): """
        BHT*0007*13*A12345*20260301*1101
        HL*1**20*1
        NM1*X3*2*MARYLAND CAPITAL*****PI*789312
        HL*2*1*21*1
        NM1*1P*1*GARDENER*JAMES****XX*1298345673
        HL*3*2*22*1
        NM1*IL*1*SMITH*JOE****MI*12345678901
        HL*4*3*EV*1
        TRN*1*AUTHREQ-4471*9012345678
        UM*SC*I*3*11:B
        DTP*AAH*D8*20260310
        HI*BF:41090:D8:20260301^BF:4280
        HL*5*4*SS*0
        SV1*HC:33510*250*UN*1""",
    ("278 response", "005010X217", "HI"): """
        BHT*0007*11*A12345*20260301*1102*18
        HL*1**20*1
        NM1*X3*2*MARYLAND CAPITAL*****PI*789312
        HL*2*1*21*1
        NM1*1P*1*GARDENER*JAMES****XX*1298345673
        HL*3*2*22*1
        NM1*IL*1*SMITH*JOE****MI*12345678901
        HL*4*3*EV*1
        TRN*2*AUTHREQ-4471*9012345678
        UM*SC*I*3*11:B
        HCR*A1*AUTH-0081096
        DTP*AAH*RD8*20260310-20260410
        HL*5*4*SS*0
        HCR*A1*LINE-1
        SV1*HC:33510*250*UN*1""",
    ("837", "005010X222A1", "HC"): """
        BHT*0019*00*244579*20260301*1023*CH
        NM1*41*2*PREMIER BILLING SERVICE*****46*TGJ23
        PER*IC*JERRY*TE*3055552222*EX*231
        NM1*40*2*KEY INSURANCE COMPANY*****46*66783JJT
        HL*1**20*1
        PRV*BI*PXC*203BF0100Y
        NM1*85*2*BEN KILDARE SERVICE*****XX*9876543210
        HL*2*1*22*1
        SBR*P**2222-SJ******CI
        NM1*IL*1*SMITH*JANE****MI*JS00111223333
        HL*3*2*23*0
        PAT*19
        NM1*QC*1*SMITH*TED
        CLM*CLAIM-77*450.00***11:B:1*Y*A*Y*I
        HI*BK:0340*BF:V7389
        LX*1
        SV1*HC:99213*40*UN*1***1
        DTP*472*D8*20260301
        LX*2
        SV1*HC:87070:25*15*UN*1***1:2
        DTP*472*D8*20260301""",
    ("835", "005010X221A1", "HP"): """
        BPR*I*132*C*CHK************20260301
        TRN*1*12345*1512345678
        N1*PR*DENTAL OF ABC
        N3*225 MAIN STREET
        N1*PE*SMITH DENTAL*XX*1234567893
        LX*1
        CLP*7722337*1*226*132**12*119932404007801
        CAS*CO*45*94
        NM1*QC*1*DOE*SANDY****MI*SJD11112
        SVC*AD:D0120*46*25
        CAS*CO*45*21
        SVC*AD:D0220*25*14
        SVC*AD:D0330:22*155*93**1""",
    ("999", "005010X231A1", "FA"): """
        AK1*HC*1*005010X222A1
        AK2*837*0001*005010X222A1
        IK5*A
        AK2*837*0002*005010X222A1
        IK3*NM1*8**8
        IK4*9*67*1
        IK5*R*5
        AK9*P*2*2*1""",
}


def wrapped(body: str, name: str = "271", version: str = "005010X279A1", code: str = "HB") -> str:
    """A body in an envelope that is whole, one segment a line."""
    segments = body.split("\n")
    return "\n".join([
        "ISA*00*          *00*          *ZZ*SENDER         *ZZ*RECEIVER       *260301*1319*^*00501*000000907*1*P*:",
        f"GS*{code}*SENDER*RECEIVER*20260301*1319*1*X*{version}",
        f"ST*{name}*0001*{version}",
        *segments,
        f"SE*{len(segments) + 2}*0001",
        "GE*1*1",
        "IEA*1*000000907",
    ]).replace("\n", "~\n") + "~\n"  # fmt: skip


def sample(which: str) -> str:
    ((name, version, code),) = [key for key in BODIES if key[0] == which]
    lines = [line.strip() for line in BODIES[name, version, code].strip().split("\n")]
    return wrapped("\n".join(lines), name.split()[0], version, code)


SAMPLES = {name: sample(name) for name, *_ in BODIES}


def only(content: str | bytes) -> TransactionSet:
    (found,) = read(content.encode() if isinstance(content, str) else content)
    (transaction,) = found.transactions
    return transaction


def found_flaws(content: str | bytes) -> list[X12Flaw]:
    return [one for found in read(content.encode() if isinstance(content, str) else content) for one in flaws(found)]


def broken(content: bytes) -> bool:
    """Whether anybody would notice."""
    try:
        return bool(found_flaws(content))
    except UnreadableContent:
        return True


# --- what is written is what is read ---------------------------------------------------------------------------------

SEPARATORS = "".join(sorted({*map(chr, range(1, 128))} - {*string.ascii_letters, *string.digits, *" \r\n"}))

Body = list[tuple[str, list[list[list[str]]]]]
"""Segments: an identifier, and elements of repetitions of components."""


class Written(NamedTuple):
    """Interchanges, and their bytes."""

    marks: X12Delimiters
    groups: list[list[Body]]
    pieces: list[str]
    """One a segment."""
    content: bytes


MARKS = st.lists(st.sampled_from(SEPARATORS), min_size=4, max_size=4, unique=True)
# Some characters that other formats would trip over; those that are delimiters just then are taken out again.
WORDS = st.text("Aa0 .'\\~*:^|é漢\x1f\x00", max_size=4)
ELEMENTS = st.lists(st.lists(st.lists(WORDS, min_size=1, max_size=3), min_size=1, max_size=3), max_size=3)
BODIES_WRITTEN = st.lists(st.tuples(st.sampled_from(["NM1", "EB", "Z9Z"]), ELEMENTS), max_size=4)
GROUPS = st.lists(st.lists(BODIES_WRITTEN, max_size=2), max_size=2)


@st.composite
def every_marks(draw: st.DrawFn) -> X12Delimiters:
    element, component, repetition, terminator = draw(MARKS)
    return X12Delimiters(
        element,
        component,
        draw(st.sampled_from([terminator, "\r", "\n"])),
        draw(st.sampled_from([repetition, None])),
    )


def fitting(groups: list[list[Body]], marks: X12Delimiters) -> list[list[Body]]:
    """Without delimiters in the words, nor repetitions where there are none."""
    taken = str.maketrans("", "", "".join(mark or "" for mark in marks) + "\r\n")
    most = None if marks.repetition else 1
    return [
        [
            [
                (name, [[[word.translate(taken) for word in one] for one in element[:most]] for element in elements])
                for name, elements in body
            ]
            for body in group
        ]
        for group in groups
    ]


@st.composite
def writings(draw: st.DrawFn, breaks: tuple[str, ...] = ("", "\n", "\r\n")) -> Written:
    marks = draw(every_marks())
    groups = fitting(draw(GROUPS), marks)
    version, eleventh = ("00501", marks.repetition) if marks.repetition else ("00401", "U")
    e = marks.element
    isa = ["ISA", "00", " " * 10, "00", " " * 10, "ZZ", "A".ljust(15), "ZZ", "B".ljust(15), "260301", "1319"]
    pieces = [e.join([*isa, eleventh or "", version, "000000907", "1", "P", marks.component])]
    for number, group in enumerate(groups, 1):
        pieces.append(e.join(["GS", "HB", "A", "B", "20260301", "1319", f"{number}", "X", "005010"]))
        for place, body in enumerate(group, 1):
            pieces.append(e.join(["ST", "271", f"{place:04}"]))
            pieces += [e.join([name, *(_element(one, marks) for one in elements)]) for name, elements in body]
            pieces.append(e.join(["SE", f"{len(body) + 2}", f"{place:04}"]))
        pieces.append(e.join(["GE", f"{len(group)}", f"{number}"]))
    pieces.append(e.join(["IEA", f"{len(groups)}", "000000907"]))
    end = marks.terminator + draw(st.sampled_from(breaks))
    return Written(marks, groups, pieces, "".join(piece + end for piece in pieces).encode())


def _element(repetitions: list[list[str]], marks: X12Delimiters) -> str:
    return (marks.repetition or "").join(marks.component.join(composite) for composite in repetitions)


@given(st.lists(writings(), min_size=1, max_size=2), st.sampled_from([b"", b"\xef\xbb\xbf", b"\r\n"]))
def test_what_was_written_is_what_is_read(written: list[Written], before: bytes) -> None:
    content = before + b"".join(one.content for one in written)
    found = read(content)
    assert [one.marks for one in found] == [one.marks for one in written]
    assert not [flaw for one in found for flaw in flaws(one)]
    for interchange, expected in zip(found, written, strict=True):
        assert [len(group.transactions) for group in interchange.groups] == [len(group) for group in expected.groups]
        inside = [body for group in expected.groups for body in group]
        for transaction, body in zip(interchange.transactions, inside, strict=True):
            assert [one.name for one in transaction.segments] == ["ST", *(name for name, _ in body), "SE"]
            _holds_all(transaction, body)


def _holds_all(transaction: TransactionSet, body: Body) -> None:
    """Every path that can be asked gives what was written there, and nothing else."""
    for wanted in {name for name, _ in body}:
        same = [elements for name, elements in body if name == wanted]
        assert len(values(transaction, compile_path(wanted))) == len(same)
        for number in range(1, 6):
            here = [elements[number - 1] for elements in same if number <= len(elements)]
            whole = [transaction.marks.component.join(one) for repetitions in here for one in repetitions]
            assert values(transaction, compile_path(f"{wanted}.{number}")) == tuple(whole)
            for part in range(1, 5):
                parts = [one[part - 1] for repetitions in here for one in repetitions if part <= len(one)]
                assert values(transaction, compile_path(f"{wanted}.{number}-{part}")) == tuple(parts)


@given(writings(breaks=("",)), st.data())
def test_no_interchange_can_lose_its_end_unnoticed(written: Written, data: st.DataObject) -> None:
    assert broken(written.content[: data.draw(st.integers(0, len(written.content) - 1))])


@given(writings(), st.data())
def test_no_segment_can_be_lost_unnoticed(written: Written, data: st.DataObject) -> None:
    lost = data.draw(st.integers(0, len(written.pieces) - 1))
    end = written.marks.terminator
    assert broken("".join(one + end for place, one in enumerate(written.pieces) if place != lost).encode())


@given(writings(), st.data())
def test_no_segment_can_be_added_unnoticed(written: Written, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(written.pieces)))
    more = written.marks.element.join(["NTE", "ADD", "more"])
    pieces = [*written.pieces[:place], more, *written.pieces[place:]]
    assert broken("".join(one + written.marks.terminator for one in pieces).encode())


# --- the oracle ------------------------------------------------------------------------------------------------------


def by_oracle(content: str) -> list[list[str]]:
    """Each segment's identifier and elements as pyx12 reads them; composites are put together again.

    Its `format` drops empty components at the end, so the parts are joined here.
    """
    return [
        [segment.get_seg_id(), *(_joined(one) for one in segment.elements)]
        for segment in X12Reader(io.StringIO(content))
    ]


# Any, for what pyx12 gives has no types.
def _joined(composite: Any) -> str:
    mark: str = composite.subele_term
    return mark.join(one.get_value() for one in composite.elements)


def complaints(content: str) -> list[object]:
    reader = X12Reader(io.StringIO(content))
    return [error for _ in reader for error in reader.pop_errors()]


def by_us(found: Interchange) -> Iterator[list[str]]:
    yield found.isa.elements
    for group in found.groups:
        yield group.gs.elements
        for transaction in group.transactions:
            yield from (segment.elements for segment in transaction.segments)
        if group.ge:
            yield group.ge.elements
    if found.iea:
        yield found.iea.elements


@pytest.mark.parametrize("content", SAMPLES.values(), ids=SAMPLES)
@pytest.mark.parametrize("end", ["~\n", "~", "~\r\n", "\n", "\r\n", "\x1c"], ids=repr)
def test_samples_are_read_as_the_oracle_reads_them(content: str, end: str) -> None:
    content = content.replace("~\n", end)
    (found,) = read(content.encode())
    assert list(by_us(found)) == by_oracle(content)
    assert flaws(found) == []


@given(writings(breaks=("",)))
def test_anything_written_is_read_as_the_oracle_reads_it(written: Written) -> None:
    (found,) = read(written.content)
    assert list(by_us(found)) == by_oracle(written.content.decode())


TRAILING = [("SE", 1), ("SE", 2), ("GE", 1), ("GE", 2), ("IEA", 1), ("IEA", 2)]


@pytest.mark.parametrize(("name", "element"), TRAILING)
@pytest.mark.parametrize("wrong", ["", "7777", "-1", "x", "9" * 5000], ids=lambda wrong: wrong[:5])
def test_a_wrong_trailer_is_seen_by_us_and_by_the_oracle(name: str, element: int, wrong: str) -> None:
    lines = SAMPLES["271"].split("~\n")
    (place,) = [at for at, line in enumerate(lines) if line.startswith(f"{name}*")]
    elements = lines[place].split("*")
    elements[element] = wrong
    content = "~\n".join([*lines[:place], "*".join(elements), *lines[place + 1 :]])
    (flaw,) = found_flaws(content)
    assert flaw.segment == place + 1
    assert flaw.offset == content.index(f"~\n{name}*") + 2
    assert flaw.why.startswith(f"{name}{element:02}")
    assert len(flaw.why) < 150
    assert complaints(content)


def test_where_the_oracle_differs() -> None:
    """Each with the reason why we read on."""
    content = SAMPLES["271"]
    # It stops at an empty line between segments that line feeds end. Blank lines are line breaks after a terminator.
    blank = content.replace("~\n", "\n").replace("\nHL*1", "\n\nHL*1")
    assert found_flaws(blank) == []
    assert len(by_oracle(blank)) == 4
    # It reads every interchange of a file with the delimiters of the first. Each ISA declares its own.
    second = content.replace("*", "|")
    assert [one.marks.element for one in read((content + second).encode())] == ["*", "|"]
    assert by_oracle(content + second)[-1][0].startswith("IEA|")
    # It counts an ISA's characters, so that one blank too few moves all delimiters. We count elements, and complain.
    short = content.replace("SENDER         ", "SENDER        ")
    assert [flaw.why for flaw in found_flaws(short)] == ["ISA06 has 14 characters, not 15"]
    with pytest.raises(Exception, match="unknown: 0501"):
        by_oracle(short)
    # It takes any digit of Unicode for a number. X12 has ten of them.
    wide = content.replace("GE*1*1", "GE*１*1")
    assert [flaw.why[:11] for flaw in found_flaws(wide)] == ["GE01 is '１'"]
    assert complaints(wide) == []
    # It knows two versions. The delimiters are found alike in all of them.
    other = content.replace("*00501*", "*00602*")
    assert found_flaws(other) == []
    with pytest.raises(Exception, match="unknown"):
        by_oracle(other)
    # It wants children before the next sibling, a rule of guides; the standard wants parents to come first.
    late = only(wrapped("HL*1**20*1\nHL*2*1*22*1\nHL*3*1*22*0\nHL*4*2*23*0"))
    assert [loop.parent for loop in late.loops] == [None, 0, 0, 1]


# --- any bytes at all ------------------------------------------------------------------------------------------------

PATHS = [compile_path(text) for text in ("ST.1", "HL[22]/NM1[1=IL].9", "EB[3=30].1", "HL", "ISA.13", "SVC.1-2")]


@st.composite
def spoilt(draw: st.DrawFn) -> bytes:
    """A sample with some bytes taken out or put in."""
    content = bytearray(draw(st.sampled_from(list(SAMPLES.values()))).encode())
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(content)) | st.integers(0, 110))
        content[start : start + draw(st.integers(0, 5))] = draw(st.binary(max_size=3) | st.sampled_from([b"~", b"*"]))
    return bytes(content)


@st.composite
def jumbled(draw: st.DrawFn) -> bytes:
    """Envelope segments and loops in any order, parents pointing anywhere."""
    isa, *_ = SAMPLES["271"].split("\n")
    number = st.sampled_from(["", "1", "2", "3", "x"])
    loop = st.builds("HL*{}*{}*{}".format, number, number, st.sampled_from(["20", "22"]))
    known = st.sampled_from(["GS*HB", "ST*271*1", "SE*2*1", "GE*1*1", "IEA*1*1", "TA1*1", isa[:-1], "NM1*IL"])
    return (isa + "".join(one + "~" for one in draw(st.lists(known | loop, max_size=30)))).encode()


def either(content: bytes) -> tuple[list[Interchange], UnreadableContent | None]:
    """Any other exception is a test's failure."""
    try:
        return read(content), None
    except UnreadableContent as unreadable:
        return [], unreadable


@given(st.binary() | st.binary().map(SAMPLES["999"][:106].encode().__add__) | spoilt() | jumbled())
def test_any_bytes_are_interchanges_or_unreadable(content: bytes) -> None:
    found, unreadable = either(content)
    if unreadable:
        assert 0 <= unreadable.offset <= len(content)
        assert unreadable.head.isascii()
        assert not unreadable.head or unreadable.head.isprintable()
    else:
        assert found
    for interchange in found:
        assert content[interchange.isa.offset :].startswith(b"ISA")
        assert all(0 <= flaw.offset < len(content) for flaw in flaws(interchange))
        for transaction in interchange.transactions:
            for segment in transaction.segments:
                assert content[segment.offset :].startswith(segment.name.encode())
            for place, loop in enumerate(transaction.loops):
                assert loop.parent is None or loop.parent < place
            for path in PATHS:
                values(transaction, path)


@pytest.mark.parametrize(
    ("loops", "why"),
    [
        ("HL*1*1*20*1", "HL02 is '1'"),
        ("HL*1*2*20*1\nHL*2**22*0", "HL02 is '2'"),
        ("HL*1**20*1\nHL*2*9*22*0", "HL02 is '9'"),
        ("HL*1**20*1\nHL*1*1*22*0", "HL01 is '1'"),
        ("HL***20*1", "HL01 is ''"),
        ("HL", "HL01 is ''"),
    ],
    ids=["itself", "later", "nowhere", "twice", "none", "bare"],
)
def test_a_loop_that_is_not_in_the_tree_is_a_flaw(loops: str, why: str) -> None:
    content = wrapped(loops)
    (flaw,) = found_flaws(content)
    assert flaw.why.startswith(why)
    assert content[flaw.offset :].startswith("HL")


def test_two_loops_that_are_each_others_parent_are_read_once_each() -> None:
    transaction = only(wrapped("HL*1*2*22*1\nNM1*A\nHL*2*1*22*1\nNM1*B"))
    assert [loop.parent for loop in transaction.loops] == [None, 0]
    assert values(transaction, compile_path("HL[22]/NM1.1")) == ("A", "B")


def test_a_loop_without_a_number_has_no_children() -> None:
    assert [loop.parent for loop in only(wrapped("HL***20*1\nHL*2**22*1")).loops] == [None, None]


LARGE = 20_000


@pytest.mark.parametrize(
    "content",
    [
        wrapped("\n".join(f"HL*{n}*{n - 1 or ''}*22*1" for n in range(1, LARGE))),
        SAMPLES["999"] * (LARGE // 10),
        SAMPLES["999"].replace("~\n", "~" + "\n" * LARGE),
        wrapped("EB*" + "^" * LARGE * 10),
        "ISA" * LARGE,
        "\r\n" * LARGE * 10,
    ],
    ids=["deep", "many", "blank", "repeated", "heads", "nothing"],
)
def test_large_content_is_read_in_one_pass(content: str) -> None:
    found, unreadable = either(content.encode())
    assert unreadable or not [flaw for one in found for flaw in flaws(one)]


# --- cases a person would argue about --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "offset"),
    [
        (b"", 0),
        (b"\xef\xbb\xbf", 3),
        (b"hello", 0),
        (SAMPLES["271"].lower().encode(), 0),
        (b"MSH|^~\\&|A|B", 0),
        (b"  ST*271*0001~", 2),
        (b"ISA", 0),
        (SAMPLES["271"][:105].encode(), 0),
        (SAMPLES["271"].encode("utf-16"), 0),
        (SAMPLES["271"].replace("GS*", "gs*").encode(), 107),
        (SAMPLES["271"].replace("GS*", "~GS*").encode(), 107),
        (SAMPLES["271"].replace("*P*:~", "*P**~").encode(), 0),
        (SAMPLES["271"].replace("*P*:~", "*P*::").encode(), 0),
        (SAMPLES["271"].replace("*P*:~", "*P*A~").encode(), 0),
        (SAMPLES["271"].replace("*P*:~", "*P*:Z").encode(), 0),
        (SAMPLES["271"].replace("SENDER ", "SEND~R ").encode(), 0),
        (SAMPLES["271"].replace("*P*:~", "*P*\u00a7~").encode("latin-1"), 0),
    ],
)
def test_invalid_x12_is_unreadable_with_its_offset(content: bytes, offset: int) -> None:
    with pytest.raises(UnreadableContent) as caught:
        read(content)
    assert caught.value.offset == offset


def test_the_head_of_unreadable_bytes_can_be_shown() -> None:
    with pytest.raises(UnreadableContent) as caught:
        read(b"\x00\xff\r\nhello" + b"x" * 100)
    assert caught.value.head == "\\x00\\xff\\r\\nhello" + "x" * 55
    assert caught.value.why.endswith("ISA")


ENVELOPE = SAMPLES["999"]


@pytest.mark.parametrize(
    ("was", "is_", "why"),
    [
        ("SE*10*0001~\n", "", ["ST has no SE"]),
        ("GE*1*1~\n", "", ["GS has no GE"]),
        ("IEA*1*000000907~\n", "", ["ISA has no IEA"]),
        ("SE*10*0001~\nGE*1*1~\nIEA*1*000000907~\n", "", ["ISA has no IEA", "GS has no GE", "ST has no SE"]),
        ("IEA*1*000000907~\n", "IEA*1*000000907", ["IEA is not"]),
        ("IEA*1*000000907~\n", "IEA*1*000000907\r\n", ["IEA is not"]),
        ("IEA*1*000000907~\n", "IEA*1*000000907~\nbye", ["3 bytes"]),
        ("IEA*1*000000907~\n", "IEA*1*000000907~~", ["1 bytes"]),
        ("IEA*1*000000907~\n", "IEA*1*000000907~\n \r\n\x00\x1a", []),
        ("IEA*1*000000907~\n", "IEA*1*000000907~", []),
        ("GE*1*1~\n", "GE*1*1~\nGE*1*1~\n", ["GE is outside"]),
        ("GE*1*1~\n", "NTE*x~\nGE*1*1~\n", ["NTE is outside"]),
        ("GE*1*1~\n", "GE*1*1~\nTA1*000000907*260301*1319*A*000~\n", []),
        ("SE*10*", "SE*0010*", []),
        ("*1*X*", "*01*X*", ["GE02 is '1', and GS06 is '01'"]),
        ("ST*999*0001*", "ST*999**", ["SE02 is '0001', and ST02 is ''"]),
        ("*^*00501*", "*U*00501*", ["ISA11 is 'U'"]),
        ("*^*00501*", "*:*00501*", ["ISA11 is ':'"]),
        ("*^*00501*", "*U*00401*", []),
        ("*RECEIVER       *", "*RECEIVER*", ["ISA08 has 8 characters, not 15"]),
        ("*RECEIVER       *", "*RECEIVER            *", ["ISA08 has 20 characters, not 15"]),
    ],
)  # fmt: skip
def test_each_flaw_of_an_envelope_is_named(was: str, is_: str, why: list[str]) -> None:
    assert ENVELOPE.count(was) == 1
    flaws = found_flaws(ENVELOPE.replace(was, is_))
    assert all(flaw.why.startswith(start) for flaw, start in zip(flaws, why, strict=True))


def test_control_numbers_that_are_both_left_out_do_not_agree() -> None:
    content = ENVELOPE.replace("ST*999*0001*", "ST*999**").replace("SE*10*0001", "SE*10*")
    assert [flaw.why for flaw in found_flaws(content)] == ["SE02 is '', and ST02 is ''"]


def test_a_flaw_says_where() -> None:
    (flaw,) = found_flaws(ENVELOPE.replace("SE*10*", "SE*11*"))
    assert str(flaw).startswith(f"segment 12, byte {ENVELOPE.index('SE*10*')}: SE01 is '11', ")


def test_offsets_of_a_second_interchange_are_into_the_whole() -> None:
    content = ENVELOPE + ENVELOPE.replace("SE*10*", "SE*11*")
    (flaw,) = found_flaws(content)
    assert flaw.segment == 12
    assert content[flaw.offset :].startswith("SE*11*")


def test_an_interchange_without_its_end_does_not_swallow_the_next() -> None:
    content = ENVELOPE.replace("IEA*1*000000907~\n", "") + ENVELOPE
    first, second = read(content.encode())
    assert [flaw.why for flaw in flaws(first)] == ["ISA has no IEA"]
    assert flaws(second) == []


def test_a_set_knows_its_kind_and_its_version() -> None:
    transaction = only(SAMPLES["271"])
    assert (transaction.set_id, transaction.version) == ("271", "005010X279A1")
    old = only(
        SAMPLES["271"].replace("ST*271*0001*005010X279A1", "ST*271*0001").replace("005010X279A1", "004010X092A1")
    )
    assert (old.set_id, old.version) == ("271", "004010X092A1")


def test_names_are_read_in_either_encoding() -> None:
    content = SAMPLES["271"].replace("MARY LOU", "ZOÉ")
    path = compile_path("HL[23]/NM1.4")
    for encoding in ("utf-8", "utf-8-sig", "latin-1"):
        (found,) = read(content.encode(encoding))
        assert values(found.transactions[0], path) == ("ZOÉ",)


@pytest.mark.parametrize(
    ("which", "path", "expected"),
    [
        ("271", "ST.1", ("271",)),
        ("271", "TRN.2", ("93175-012547",)),
        ("271", "HL[23]/EB[1=1].1", ("1",)),
        ("271", "HL[23]/EB[1=B][12=Y].7", ("10",)),
        ("271", "HL[23]/EB[1=B].7", ("10", "30")),
        ("271", "HL[22]/NM1[1=IL].9", ("123456789",)),
        ("271", "HL[23]/NM1[1=IL].9", ()),
        ("271", "HL[22]/EB.1", ("6",)),
        ("271", "HL[23]/AAA", ()),
        ("271", "HL[23]/DMG", ("DMG*D8*19780912*F",)),
        ("271", "EB[3=98].3", ("1", "33", "98")),
        ("271", "EB[3=9].3", ()),
        ("271", "EB[1=1].2", ("",)),
        ("271", "EB[2=].1", ("1",)),
        ("271", "EB[1=6].2", ()),
        ("271", "HL[23]/HL.2", ("3",)),
        ("271", "HL[23]/SE", ()),
        ("271", "HL[99]/EB", ()),
        ("271", "ISA.11", ("^",)),
        ("271", "ISA.16-1", (":",)),
        ("271", "ISA.6-2", ()),
        ("271", "GS.8", ("005010X279A1",)),
        ("270", "EQ.1", ("30", "98")),
        ("277", "STC.1-2", ("317", "65")),
        ("277", "STC.1:3", ("PR",)),
        ("277", "STC[1-1=F1].2", ("20260914",)),
        ("278 response", "HL[EV]/HCR.2", ("AUTH-0081096",)),
        ("278 response", "HL[EV]/DTP[1=AAH].3", ("20260310-20260410",)),
        ("278", "HI.1-2", ("41090", "4280")),
        ("278", "HI.1-3", ("D8",)),
        ("837", "CLM.1", ("CLAIM-77",)),
        ("837", "CLM.02", ("450.00",)),
        ("837", "CLM.5", ("11:B:1",)),
        ("835", "SVC.1-2", ("D0120", "D0220", "D0330")),
        ("999", "AK9.1", ("P",)),
        ("999", "IK5.1", ("A", "R")),
    ],
)
def test_a_path_finds(which: str, path: str, expected: tuple[str, ...]) -> None:
    assert values(only(SAMPLES[which]), compile_path(path)) == expected


@pytest.mark.parametrize(
    ("version", "expected"), [("00401", ("30^98",)), ("00402", ("30", "98")), ("00501", ("30", "98"))]
)
def test_elements_repeat_since_a_version(version: str, expected: tuple[str, ...]) -> None:
    transaction = only(SAMPLES["270"].replace("*^*00501*", f"*^*{version}*"))
    assert values(transaction, compile_path("EQ.1")) == expected


@pytest.mark.parametrize(
    ("path", "from_"),
    [
        ("", "''"),
        ("clm.2", "'clm.2'"),
        ("CLM02", "'02'"),
        ("CLM.", "'.'"),
        ("CLM.x", "'.x'"),
        ("CLM.1-", "'-'"),
        ("CLM.1234", "'4'"),
        ("CLM.١", "'.١'"),
        ("CLM.2 ", "' '"),
        ("HL[23]", "'[23]'"),
        ("HL[23]/", "'[23]/'"),
        ("HL[]/EB", "'[]/EB'"),
        ("HL[3=23]/EB", "'/EB'"),
        ("NM1/EB", "'/EB'"),
        ("HL[22]/HL[23]/EB", "'[23]/EB'"),
        ("EB[1].2", "'[1].2'"),
        ("EB[1=B.7", "'[1=B.7'"),
    ],
)
def test_a_path_that_makes_no_sense_is_its_authors_error(path: str, from_: str) -> None:
    with pytest.raises(AuthorError) as caught:
        compile_path(path)
    assert f"from {from_} on" in str(caught.value)
    assert "CLM.2" in str(caught.value)


@pytest.mark.parametrize("path", ["CLM.0", "CLM.1-0", "CLM[0=x]", "CLM[1-0=x].1"])
def test_counting_begins_at_one(path: str) -> None:
    with pytest.raises(AuthorError, match=r"number 0"):
        compile_path(path)


@given(st.text(max_size=20) | st.text("HLNM123[]=/.-:", max_size=20))
def test_any_text_is_a_path_or_its_authors_error(text: str) -> None:
    try:
        path = compile_path(text)
    except AuthorError:
        return
    assert isinstance(path, X12Path)
    assert isinstance(values(only(SAMPLES["271"]), path), tuple)


def test_a_file_of_endless_segments_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    isa = "ISA*00*          *00*          *ZZ*A              *ZZ*B              *260301*1319*^*00501*000000001*0*T*:~"
    monkeypatch.setattr("meruit.checks.formats.x12.MAX_SEGMENTS", 4)
    read(f"{isa}{'A1~' * 3}".encode())
    for endless in (isa + "A1~" * 4, isa * 5, (isa + "IEA~") * 3):
        with pytest.raises(UnreadableContent, match="more than 4 segments"):
            read(endless.encode())
    monkeypatch.setattr("meruit.checks.formats.x12.MAX_INTERCHANGES", 2)
    assert len(read((isa * 2).encode())) == 2
    with pytest.raises(UnreadableContent, match="more than 2 interchanges"):
        read((isa * 3).encode())


def test_blanks_and_line_ends_after_a_terminator_are_read() -> None:
    padded = SAMPLES["271"].replace("~", "~ \t\r\n").encode()
    (found,) = read(padded)
    assert [len(found.transactions), list(flaws(found))] == [1, []]


def test_a_rejecting_ta1_is_a_flaw_of_the_envelope_beside_it() -> None:
    for code, number in (("A", 0), ("R", 1)):
        (found,) = read(SAMPLES["271"].replace("GS*", f"TA1*000000905*260301*1318*{code}*020~GS*", 1).encode())
        assert [one.get(4) for one in found.acknowledgements] == [code]
        assert len(flaws(found)) == number
