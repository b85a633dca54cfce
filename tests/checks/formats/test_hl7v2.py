"""HL7 v2 as it travels: what a sender wrote is what is read, and what is no HL7 is said to be none."""

import pickle
import re
import string
from collections.abc import Callable

# It comes without types.
import hl7
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from meruit.checks.formats import hl7v2 as er7
from meruit.checks.formats.hl7v2 import HL7_NULL, Hl7Message, Value, compile_path, read, read_batch, values
from meruit.errors import AuthorError, UnreadableContent

ADT = rb"""MSH|^~\&|ADT1|GHH|GHH LAB|GHH|20260304112300-0600||ADT^A01^ADT_A01|MSG00001|P|2.5.1
EVN|A01|20260304112300
PID|1||483671^^^GHH^MR~4471-22^^^PAYER&2.16.840.1.113883.3.1&ISO^PI||Everyman^Adam||19610615|M||||||""||S||PATID1^2^M10
NK1|1|Nuclear^Nelda^W|SPO^Spouse^HL70063||||NK^Next of Kin^HL70131
PV1|1|I|2000^2012^01||||004777^Attend^Aaron^A|||SUR||||ADM|A0
AL1|1|DA|^Penicillin \T\ derivatives|MO|Hives\.br\Itching
"""
ORU = r"""MSH|^~\&|GHH LAB|ELAB-3|GHH OE|BLDG4|20260304093000||ORU^R01^ORU_R01|CNTRL-3456|P|2.5.1||||||UNICODE UTF-8
PID|1||555-44-4444^^^SSA^SS~483671^^^GHH^MR||Müller^Eve^E||19620320|F
ORC|RE|845439^GHH OE|1045813^GHH LAB
OBR|1|845439^GHH OE|1045813^GHH LAB|55284-4^Blood pressure^LN|||20260304073000
OBX|1|NM|8480-6^Systolic^LN||118|mm[Hg]^mm[Hg]^UCUM|90-140|N|||F
OBX|2|NM|8462-4^Diastolic^LN||""|mm[Hg]^mm[Hg]^UCUM|60-90||||P
OBX|3|TX|8716-3^Note^LN||Cuff size\F\large~Left arm
NTE|1|L|
""".encode()
SIU = rb"""MSH|^~\&|MESA_OP|CLINIC|SCHEDAPP|HOSPITAL|20260303120000||SIU^S13^SIU_S12|2026030312|P|2.5.1
SCH|10345^10345|2196178^2196178|||10345|OFFICE|follow-up|OFFICE|60|m|^^60^20260306100000-0600^20260306110000-0600|||||9^Rivera||||9^Rivera|||||Booked
PID|1||483671^^^GHH^MR||Smith^John
RGS|1|A
AIS|1|A|OFFICE^Office visit|20260306100000|15|m|60|m||Booked
AIP|1|A|9^Rivera^Ana|D^Doctor||20260306100000|15|m|60|m||Booked
"""
BATCH = (
    b"FHS|^~\\&|ADT1|GHH|||20260304||roster.hl7\rBHS|^~\\&|ADT1|GHH|||20260304\r"
    + b"".join(sample.replace(b"\n", b"\r") for sample in (ADT, ORU))
    + b"BTS|2\rBHS|^~\\&|MESA_OP\r"
    + SIU.replace(b"\n", b"\r")
    + b"BTS|1\rFTS|2\r"
)
SAMPLES = {"ADT": ADT, "ORU": ORU, "SIU": SIU}


def at(message: Hl7Message, path: str) -> tuple[Value, ...]:
    return values(message, compile_path(path))


# A writer, so that what it composes can be held against what is read.

Component = list[str | None]
"""Its subcomponents; None is the HL7 null."""
Field = list[list[Component]]
"""Its repetitions, and the components of each."""
Segment = tuple[str, list[Field]]


def written(text: str | None, marks: str, codec: str) -> str:
    """A leaf, with everything escaped that has to be."""
    escape = marks[3]
    names = dict(zip(marks, "FSRETP", strict=False))
    if text is None:
        return '""'
    if text == '""':
        return f"{escape}X2222{escape}"

    def one(character: str) -> str:
        if character in names:
            return f"{escape}{names[character]}{escape}"
        return f"{escape}X{character.encode(codec).hex()}{escape}" if character < " " else character

    return "".join(map(one, text))


def compose(segment: Segment, marks: str, codec: str) -> str:
    name, fields = segment
    field, component, repetition, subcomponent = marks[0], marks[1], marks[2], marks[4]
    texts = [
        repetition.join(
            component.join(subcomponent.join(written(leaf, marks, codec) for leaf in part) for part in one)
            for one in repetitions
        )
        for repetitions in fields
    ]
    start = [name, marks[1:]] if name == "MSH" else [name]
    return field.join([*start, *texts])


CHARSETS = {"": "utf-8", "UNICODE UTF-8": "utf-8", "8859/1": "latin-1", "ASCII": "ascii"}
FRAMES: list[Callable[[bytes], bytes]] = [
    lambda body: body,
    lambda body: b"\xef\xbb\xbf" + body,
    lambda body: b"\x0b" + body + b"\x1c\r",
    lambda body: b"\x0b\xef\xbb\xbf" + body + b"\x1c\r",
    lambda body: b"\xef\xbb\xbf\x0b" + body + b"\x1c",
    lambda body: b"\r\n" + body + b"\r\n\n\n",
]


@st.composite
def sent(draw: st.DrawFn, marks: str | None = None) -> tuple[bytes, list[Segment], str]:
    """Content, the segments that were written into it, and the delimiters."""
    if marks is None:
        marks = "".join(draw(st.lists(st.sampled_from(string.punctuation), min_size=5, max_size=6, unique=True)))
    charset, codec = draw(st.sampled_from([(c, k) for c, k in CHARSETS.items() if not set(c) & set(marks)]))
    texts = st.text(st.characters(codec=codec), max_size=5) | st.sampled_from(["", '""', marks, marks[3] * 3])
    leaf: st.SearchStrategy[str | None] = texts if '"' in marks else st.one_of(texts, st.none())
    component = st.lists(leaf, min_size=1, max_size=3)
    field = st.lists(st.lists(component, min_size=1, max_size=3), min_size=1, max_size=3)
    fields = st.lists(field, max_size=4)
    nothing: Field = [[[""]]]
    header = draw(fields)
    if charset:
        header = [*header, *[nothing] * (15 - len(header)), [[[charset]]]]
    names = st.sampled_from(["PID", "OBX", "NTE", "ZPD", "Z01"])
    segments: list[Segment] = [("MSH", header), *draw(st.lists(st.tuples(names, fields), max_size=5))]
    end = draw(st.sampled_from(["\r", "\n", "\r\n"]))
    body = end.join(compose(one, marks, codec) for one in segments) + draw(st.sampled_from([end, ""]))
    return draw(st.sampled_from(FRAMES))(body.encode(codec)), segments, marks


def leaves(segments: list[Segment]) -> list[tuple[str, str | None]]:
    """Each leaf by the path that means it alone."""
    seen: dict[str, int] = {}
    found = []
    for name, fields in segments:
        seen[name] = seen.get(name, 0) + 1
        for f, repetitions in enumerate(fields, 3 if name == "MSH" else 1):
            for r, components in enumerate(repetitions, 1):
                for c, subcomponents in enumerate(components, 1):
                    for s, leaf in enumerate(subcomponents, 1):
                        found.append((f"{name}[{seen[name]}]-{f}[{r}].{c}.{s}", leaf))
    return found


def value(leaf: str | None) -> Value:
    return HL7_NULL if leaf is None else leaf


@settings(max_examples=40)
@given(sent())
def test_what_was_written_is_what_is_read(given: tuple[bytes, list[Segment], str]) -> None:
    content, segments, marks = given
    message = read(content)
    assert message.segments == tuple(name for name, _ in segments)
    assert (at(message, "MSH-1"), at(message, "MSH-2")) == ((marks[0],), (marks[1:],))
    for path, leaf in leaves(segments):
        assert at(message, path) == (value(leaf),), path


@settings(max_examples=40)
@given(sent())
def test_what_was_not_written_is_absent(given: tuple[bytes, list[Segment], str]) -> None:
    content, segments, _ = given
    message = read(content)
    there = {path for path, _ in leaves(segments)}
    for path in there:
        start, component, subcomponent = path.rsplit(".", 2)
        beyond = f"{start}.{component}.{int(subcomponent) + 1}"
        assert (at(message, beyond) == ()) is (beyond not in there)
    for name, fields in dict(reversed(segments)).items():
        assert at(message, f"{name}[1]-{len(fields) + (3 if name == 'MSH' else 1)}") == ()
        assert at(message, f"{name}[99]-1") == at(message, f"{name}[99]") == ()
    assert at(message, "QQQ") == at(message, "QQQ-1") == ()


@settings(max_examples=40)
@given(sent())
def test_a_whole_is_given_as_it_was_sent_and_a_leaf_as_it_was_meant(given: tuple[bytes, list[Segment], str]) -> None:
    content, segments, marks = given
    message = read(content)
    codec = message.notation.codec
    for name in set(message.segments):
        mine = [compose(one, marks, codec) for one in segments if one[0] == name]
        assert at(message, name) == tuple(mine)
    name, fields = segments[-1]
    last = f"{name}[{message.segments.count(name)}]"
    for f, repetitions in enumerate(fields, 3 if name == "MSH" else 1):
        for r, components in enumerate(repetitions, 1):
            whole = marks[1].join(marks[4].join(written(leaf, marks, codec) for leaf in one) for one in components)
            is_leaf = sum(map(len, components)) == 1
            assert at(message, f"{last}-{f}[{r}]") == ((value(components[0][0]),) if is_leaf else (whole,))
        each = (at(message, f"{last}-{f}[{r}]") for r in range(1, len(repetitions) + 1))
        assert at(message, f"{last}-{f}") == tuple(value for (value,) in each)


@settings(max_examples=40)
@given(sent())
def test_another_library_reads_the_same(given: tuple[bytes, list[Segment], str]) -> None:
    # What python-hl7 0.4.5 cannot do is kept from it: BOM, frame and LF; a header of MSH-2 alone, of which it loses a
    # character; a segment without fields, which it does not count; and blanks at a message's end, which it strips.
    (_, header), *others = given[1]
    marks = given[2]
    segments: list[Segment] = [("MSH", header or [[[[""]]]]), *(one for one in others if one[1]), ("ZZZ", [[[["1"]]]])]
    codec = read(given[0]).notation.codec
    text = "\r".join(compose(one, marks, codec) for one in segments)
    message, oracle = read(text.encode(codec)), hl7.parse(text)
    for path, leaf in leaves(segments):
        # It drops what it does not know, such as `\P\`; we keep it. And it takes hexadecimal for characters where HL7
        # says data, in the message's character set; so only ASCII is written so here.
        if leaf is None or marks[5:] == "" or marks[5] not in leaf:
            name, *numbers = re.findall("[A-Z0-9]+", path)
            # It has no null: two quotation marks are text to it.
            assert str(at(message, path)[0]) == oracle.extract_field(name, *map(int, numbers)), path


@settings(max_examples=30)
@given(st.lists(sent(), max_size=3), st.booleans(), st.sampled_from([b"\r", b"\n", b"\r\n"]))
def test_a_batch_is_its_messages(many: list[tuple[bytes, list[Segment], str]], framed: bool, end: bytes) -> None:
    contents = [content + end for content, _, _ in many]
    alone = [read(content) for content in contents]
    envelope = (b"FHS|^~\\&|A", b"BHS|^~\\&|A", b"BTS|%d" % len(many), b"FTS") if framed or not many else ()
    assert read_batch(end.join([*envelope[:2], *contents, *envelope[2:]])) == alone


# What a path selects.


@pytest.mark.parametrize(
    ("sample", "path", "expected"),
    [
        ("ADT", "MSH-1", ("|",)),
        ("ADT", "MSH-2", ("^~\\&",)),
        ("ADT", "MSH-3", ("ADT1",)),
        ("ADT", "MSH-9", ("ADT^A01^ADT_A01",)),
        ("ADT", "MSH-9.1", ("ADT",)),
        ("ADT", "PID-3", ("483671^^^GHH^MR", "4471-22^^^PAYER&2.16.840.1.113883.3.1&ISO^PI")),
        ("ADT", "PID-3[2]", ("4471-22^^^PAYER&2.16.840.1.113883.3.1&ISO^PI",)),
        ("ADT", "PID-3[3]", ()),
        ("ADT", "PID-3.4", ("GHH", "PAYER&2.16.840.1.113883.3.1&ISO")),
        ("ADT", "PID-3[5=PI].4.2", ("2.16.840.1.113883.3.1",)),
        ("ADT", "PID-3[4.1=PAYER].1", ("4471-22",)),
        ("ADT", "PID-3[5=MR].1", ("483671",)),
        ("ADT", "PID-3[5=MR].9", ()),
        ("ADT", "PID-3[5=MR].4.2", ()),
        ("ADT", "PID-3[9.9=MR]", ()),
        ("ADT", "PID-3[5=SS]", ()),
        ("ADT", "PID-3[5=SS].1", ()),
        ("ADT", "PID-14", (HL7_NULL,)),
        ("ADT", "PID-14.1.1", (HL7_NULL,)),
        ("ADT", "PID-15", ("",)),
        ("ADT", "PID-15.1", ("",)),
        ("ADT", "PID-15.2", ()),
        ("ADT", "PID-19", ()),
        ("ADT", "ZPD", ()),
        ("ADT", "EVN", ("EVN|A01|20260304112300",)),
        ("ADT", "AL1-3.2", ("Penicillin & derivatives",)),
        ("ADT", "AL1-3", ("^Penicillin \\T\\ derivatives",)),
        ("ADT", "AL1-5", ("Hives\nItching",)),
        ("ORU", "PID-5.1", ("Müller",)),
        ("ORU", "OBX[3.1=8480-6]-5", ("118",)),
        ("ORU", "OBX[6.1=mm[Hg]]-5", ("118", HL7_NULL)),
        ("ORU", "OBX[6.1=mm[Hg]][2]-3.2", ("Diastolic",)),
        ("ORU", 'OBX[5=""]-1', ("2",)),
        ("ORU", "OBX[2]-5", (HL7_NULL,)),
        ("ORU", "OBX[4]-5", ()),
        ("ORU", "OBX[3]-5", ("Cuff size|large", "Left arm")),
        ("ORU", "OBX[5=Left arm]-1", ("3",)),
        ("ORU", "OBX-5[2]", ("Left arm",)),
        ("ORU", "OBX[1=9]-5", ()),
        ("ORU", "OBX[3]-11", ()),
        ("ORU", "NTE-3", ("",)),
        ("ORU", "NTE-4", ()),
        ("SIU", "SCH-11.4", ("20260306100000-0600",)),
        ("SIU", "SCH-25.1", ("Booked",)),
        ("SIU", "MSH[9.2=S13]-5.1", ("SCHEDAPP",)),
    ],
)
@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_paths_find(sample: str, path: str, expected: tuple[Value, ...], end: bytes) -> None:
    assert at(read(SAMPLES[sample].replace(b"\n", end)), path) == expected


def test_a_segment_that_ends_early_does_not_hide_among_those_that_do_not() -> None:
    # Its third OBX has no status: "all are final" must not be concluded from the other two.
    assert at(read(ORU), "OBX-11") == ("F", "P", "")
    assert at(read(ORU), "OBX-8") == ("N", "", "")
    assert at(read(ORU), "OBX-14") == ()
    # A repetition likewise: of two identifiers one says of what type it is.
    message = read(b"MSH|^~\\&|\rPID|||1~2^^^^MR\r")
    assert at(message, "PID-3.5") == ("", "MR")
    assert at(message, "PID-3.6") == ()


def test_a_segment_is_counted_as_often_as_it_is_there() -> None:
    message = read(ORU)
    assert message.segments == ("MSH", "PID", "ORC", "OBR", "OBX", "OBX", "OBX", "NTE")
    assert len(at(message, "OBX")) == 3


@pytest.mark.parametrize(
    ("msh", "kind"),
    [
        (rb"MSH|^~\&|||||||ORU^R01^ORU_R01", "ORU^R01"),
        (rb"MSH|$~\&|||||||ORU$R01", "ORU^R01"),
        (rb"MSH|^~\&|||||||ACK", "ACK"),
        (rb"MSH|^~\&|||||||ACK^^ACK", "ACK"),
        (rb"MSH|^~\&|", ""),
        (rb"MSH|^~\&", ""),
    ],
)
def test_a_message_says_what_it_is(msh: bytes, kind: str) -> None:
    assert read(msh).kind == kind


def test_null_is_one_thing_wherever_it_travels() -> None:
    assert str(HL7_NULL) == repr(HL7_NULL) == '""'
    assert pickle.loads(pickle.dumps(HL7_NULL)) is HL7_NULL
    # Mypy knows that an enum's member is no text; a reader may not.
    assert HL7_NULL not in ("", '""')
    # Two quotation marks that are meant as text can be sent as text.
    assert at(read(b"MSH|^~\\&|\rNTE|\\X2222\\"), "NTE-1") == ('""',)


@pytest.mark.parametrize(
    "path",
    [
        *("", "PID.3", "pid-3", "PI-3", "PID-", "PID-0", "PID-3.0", "PID-3[0]", "PID-3-1", "PID-3.1.1.1", " PID-3"),
        *("PID-3[]", "PID-3[5=]", "PID-3[5=MR", "PID-3[5.1.1=MR]", "PID-3.1[2]", "OBX[3.1]-5", "OBX[3.1.1.1=x]-5"),
        *("PID-12345", "PID-3 ", "MSH-1.1", "MSH-2[1]", "PID-٣", "PID-3\n"),
    ],
)
def test_an_invalid_path_is_refused_with_an_example(path: str) -> None:
    with pytest.raises(AuthorError, match=r"HL7 path: .*PID-3\.1"):
        compile_path(path)


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("PID.3.1", "hyphen"),
        ("PID-3-1", "dots inside"),
        ("PID-3.0", "counted from 1"),
        ("MSH-2.1", "delimiters themselves"),
        ("pid-3", "capital letters"),
        ("PID-3.1.2.4", r"'\.4' cannot follow 'PID-3\.1\.2'"),
    ],
)
def test_a_refused_path_says_what_is_wrong_with_it(path: str, hint: str) -> None:
    with pytest.raises(AuthorError, match=hint):
        compile_path(path)


# What a text means.


@pytest.mark.parametrize(
    ("raw", "meant"),
    [
        (rb"a\F\b\S\c\T\d\R\e\E\f", "a|b^c&d~e\\f"),
        (rb"\P\50", "#50"),
        (rb"a\X0D0A\b", "a\r\nb"),
        (rb"caf\XC3A9\, caf\xc3a9\ ", "café, café "),
        (rb"\XC3\ \X0\ \X\ \XZZ\ ", "\\XC3\\ \\X0\\ \\X\\ \\XZZ\\ "),
        (rb"one\.br\two\.BR\three\.sp\four\.sp2\five", "one\ntwo\nthree\nfour\n\nfive"),
        (rb"\.in+4\a\.sk3\b\.ti-2\c\.ce\d\.fi\e\.nf\ ", "a   bc\nde "),
        (rb"\.sp100\\.xx\\.sp1x\ ", "\\.sp100\\\\.xx\\\\.sp1x\\ "),
        (rb"\H\high\N\ ", "high "),
        # Unknown ones stay, and take their own end with them.
        (rb"\Zabc\F\Zdef\ ", "\\Zabc\\F\\Zdef\\ "),
        (rb"\C2842\ \M1B2442\ ", "\\C2842\\ \\M1B2442\\ "),
        (rb"C:\temp and \\host\share\F", "C:\\temp and \\\\host\\share\\F"),
        (rb"half\F", "half\\F"),
        (rb"\\", "\\\\"),
    ],
)
def test_escapes_are_replaced_and_unknown_ones_kept(raw: bytes, meant: str) -> None:
    assert at(read(b"MSH|^~\\&#|\rNTE|1||" + raw), "NTE-3") == (meant,)


@given(st.text(st.characters(codec="utf-8", exclude_characters="|^~&\r\n\x0b\x1c")))
@example("\\.sp99999999\\")
def test_a_text_without_an_escape_is_itself_and_none_grows_without_limit(text: str) -> None:
    (meant,) = at(read(f"MSH|^~\\&|\rNTE|{text}|".encode()), "NTE-1")
    if text == '""':
        assert meant is HL7_NULL
    elif "\\" not in text:
        assert meant == text
    else:
        assert len(str(meant)) <= 99 * len(text)


def test_a_delimiter_that_is_not_declared_parts_nothing() -> None:
    # python-hl7 takes the usual ones for those that are missing; HL7 lets a sender leave off what it does not use.
    message = read(b"MSH|^|A&B~C\\F\\\rPID|x^y~z")
    assert at(message, "MSH-3") == ("A&B~C\\F\\",)
    assert at(message, "MSH-3.1.1") == ("A&B~C\\F\\",)
    assert at(message, "PID-1.2") == ("y~z",)
    assert at(read(b"MSH|^~\\|\rNTE|\\T\\ \\P\\ \\S\\"), "NTE-1") == ("\\T\\ \\P\\ ^",)


def test_quotation_marks_may_be_delimiters_and_then_mean_no_null() -> None:
    message = read(b'MSH|"~\\&|\rPID|""|a"b')
    assert at(message, "PID-1") == ('""',)
    assert at(message, "PID-1.3") == ("",)
    assert at(message, "PID-2.2") == ("b",)


# Characters and lines.


@pytest.mark.parametrize(
    ("charset", "raw", "text"),
    [
        ("", "Müller".encode(), "Müller"),
        ("UNICODE UTF-8", "Мария 李".encode(), "Мария 李"),
        ("unicode utf-8", "é".encode(), "é"),
        ("UTF-8", "é".encode(), "é"),
        ("8859/1", b"M\xfcller", "Müller"),
        ("8859/1~UNICODE UTF-8", b"M\xfcller", "Müller"),
        ("8859/5", b"\xbc", "М"),
        ("8859/15", b"\xa4", "€"),
        ("8859/1", b"\\XFC\\\x85\xa0", "ü\x85\xa0"),
        ("ASCII", b"Mueller", "Mueller"),
    ],
)
def test_msh_18_says_how_bytes_are_characters(charset: str, raw: bytes, text: str) -> None:
    head = rb"MSH|^~\&|" + b"|" * 15 + charset.encode()
    assert at(read(head + b"\rPID|" + raw + b"\r"), "PID-1") == (text,)


def test_each_message_of_a_batch_has_its_own_character_set() -> None:
    old, new = (rb"MSH|^~\&|" + b"|" * 15 + name for name in (b"8859/1", b"UNICODE UTF-8"))
    first, second = read_batch(old + b"\rPID|\xfc\r" + new + b"\rPID|\xc3\xbc\r")
    assert at(first, "PID-1") == at(second, "PID-1") == ("ü",)


def test_a_line_feed_within_a_message_that_uses_cr_is_text() -> None:
    message = read(b"MSH|^~\\&|\rOBX|1|TX|||first\nsecond \nNO|||F\rOBX|2\r")
    assert at(message, "OBX-5") == ("first\nsecond \nNO", "")
    assert at(message, "OBX[1]-8") == ("F",)


def test_mixed_line_ends_lose_no_segment() -> None:
    message = read(b"MSH|^~\\&|\nPID|1\r\nOBX|1\n\nOBX|2\rZPD\r\n\n\nNTE|1")
    assert message.segments == ("MSH", "PID", "OBX", "OBX", "ZPD", "NTE")
    assert at(message, "OBX-1") == ("1", "2")


def test_a_capture_of_several_frames_is_a_batch() -> None:
    framed = b"".join(b"\x0b" + sample.replace(b"\n", b"\r") + b"\x1c\r" for sample in SAMPLES.values())
    assert read_batch(framed) == [read(sample) for sample in SAMPLES.values()]
    marked = b"".join(b"\xef\xbb\xbf" + sample for sample in SAMPLES.values())
    assert read_batch(marked) == [read(sample) for sample in SAMPLES.values()]


def test_a_batch_by_hand() -> None:
    assert [message.kind for message in read_batch(BATCH)] == ["ADT^A01", "ORU^R01", "SIU^S13"]
    assert read_batch(BATCH) == [read(sample) for sample in SAMPLES.values()]
    assert read_batch(b"BHS|^~\\&|\rBTS|0\r") == []
    assert [len(one) for one in hl7.parse_file(BATCH.decode())] == [2, 1]


def test_one_message_may_come_in_an_envelope() -> None:
    assert read(b"BHS|^~\\&|\r" + SIU.replace(b"\n", b"\r") + b"BTS|1") == read(SIU)


# What is no HL7.


@pytest.mark.parametrize(
    ("content", "why", "offset"),
    [
        (b"", "is empty", 0),
        (b"\x0b\x1c\r", "is empty", 0),
        (b"hello", "with MSH", 0),
        (b"\r\n  hello", "with MSH", 4),
        (b'{"MSH": 1}', "with MSH", 0),
        (b"PID|1\rMSH|^~\\&|", "with MSH", 0),
        (b"MSHello", "with MSH", 0),
        ("MSH|^~\\&|".encode("utf-16"), "with MSH", 0),
        (b"MSH", "declares 0 delimiters", 3),
        (b"MSH\rPID|1", "declares 0 delimiters", 3),
        (b"MSH|", "declares 1 delimiters", 3),
        (b"MSH||x", "declares 1 delimiters", 3),
        (b"MSH|^~\\&#+|", "declares 7 delimiters", 3),
        (b"MSH|^^\\&|", "declares '^'", 5),
        (b"MSH|^~a&|", "declares 'a'", 6),
        (b"MSH|^~\xc3|", "declares 'Ã'", 6),
        (b"\x0bMSH|^~\\&|\rPID|\xff\r", "set, utf-8", 15),
        (b"MSH|^~\\&|" + b"|" * 15 + b"ASCII\rPID|\xc3\xbc", "set, ascii", 34),
        (b"MSH|^~\\&|" + b"|" * 15 + b"ISO IR87\r", "'ISO IR87' in MSH-18", 24),
        ("MSH|^~\\&|ü\r\n\nhello\r".encode(), "segment's name", 14),
        (b"MSH|^~\\&|\rPID^1\r", "segment's name", 10),
        (b"MSH|^~\\&|\nmore\nPID|1", "segment's name", 10),
        (b"MSH|^~\\&|\rMSH|^~\\&|\r", "2 messages", 10),
        (b"BHS|^~\\&|\rBTS|0", "no message", 0),
        (b"BHS|^~\\&|\rPID|1\rMSH|^~\\&|\r", "outside", 10),
        (b"MSH|^~\\&|\rBTS|1\r\nPID|1\r", "outside", 17),
    ],
)
def test_invalid_hl7_is_unreadable_with_its_offset(content: bytes, why: str, offset: int) -> None:
    with pytest.raises(UnreadableContent) as caught:
        read(content)
    assert why in caught.value.why
    assert caught.value.offset == offset
    assert len(caught.value.head) >= len(content[:64])
    assert caught.value.head.isascii()
    assert caught.value.head.isprintable()


PATHS = [
    compile_path(path)
    for path in (
        *("MSH", "MSH-1", "MSH-2", "MSH-3", "MSH-9.1", "PID-3[5=MR].1", "PID-3[2].1.2", "OBX[3.1=8480-6]-5", "OBX-11"),
        *('OBX[1=""][2]', "NTE-9999", "MSH[2=^~\\&]-18"),
    )
]


def ask_everything(content: bytes) -> None:
    """Whatever the bytes: messages, or an Unreadable whose offset lies in them."""
    for found in (_attempt(lambda: [read(content)], content), _attempt(lambda: read_batch(content), content)):
        for message in found:
            assert message.segments[0] == "MSH"
            assert message.segments.count("MSH") == 1
            assert not {"FHS", "BHS", "BTS", "FTS"} & set(message.segments)
            assert isinstance(message.kind, str)
            assert all(isinstance(value, str) or value is HL7_NULL for path in PATHS for value in values(message, path))


def _attempt(reading: Callable[[], list[Hl7Message]], content: bytes) -> list[Hl7Message]:
    try:
        return reading()
    except UnreadableContent as problem:
        offset = problem.offset
    assert 0 <= offset <= len(content)
    return []


@given(st.binary() | st.binary().map(lambda more: b"MSH|^~\\&|" + more) | st.binary().map(lambda more: b"MSH" + more))
def test_any_bytes_are_a_message_or_unreadable(content: bytes) -> None:
    ask_everything(content)


@given(
    st.sampled_from([*SAMPLES.values(), BATCH]),
    st.lists(
        st.tuples(
            st.integers(0, 2000),
            st.integers(0, 3),
            st.binary(max_size=2) | st.sampled_from([b"\rMSH|", b"\r", b"\n", b"\x0b", b"\x1c", b"\\", b'""', b"BTS"]),
        ),
        min_size=1,
        max_size=6,
    ),
)
def test_a_broken_message_is_a_message_or_unreadable(content: bytes, breaks: list[tuple[int, int, bytes]]) -> None:
    for where, gone, instead in breaks:
        place = where % (len(content) + 1)
        content = content[:place] + instead + content[place + gone :]
    ask_everything(content)


@pytest.mark.parametrize(
    "run",
    [
        *(b"\n", b"\r", b"\r\n", b"\n\r", b" ", b"|", b"~", b"^", b"\\", b"\\E\\", b"\\.sp99\\", b"\x0b"),
        *(b"\xef\xbb\xbf", b"\xbfMSH|", b"MSH", b"\nMSH|", b"\rMSH|^\n", b"\rBTS", b"\nAAA", b"\nAAA|", b"\r\nAAA|"),
    ],
)
def test_long_runs_are_read_in_one_pass(run: bytes) -> None:
    # Were any of it quadratic, this would not come to an end.
    times = 50_000 // len(run)
    ask_everything(b"MSH|^~\\&|" + run * times)
    ask_everything(b"MSH|^~\\&|\rNTE|" + run * times + b"x\rNTE|1\n\n")
    ask_everything(run * times)


def test_a_file_of_endless_messages_or_segments_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(er7, "MAX_MESSAGES", 3)
    monkeypatch.setattr(er7, "MAX_SEGMENTS", 6)
    head = b"MSH|^~\\&|A\r"
    assert len(read_batch(head * 3)) == 3
    assert len(read(head + b"NTE|1\r" * 5).segments) == 6
    for reading in (read, read_batch):
        with pytest.raises(UnreadableContent, match="more than 3 messages"):
            reading(head * 4)
        for end in (b"\r", b"\n", b"\r\n"):
            with pytest.raises(UnreadableContent, match="more than 6 segments"):
                reading(head.replace(b"\r", end) + (b"NTE|1" + end) * 6)
