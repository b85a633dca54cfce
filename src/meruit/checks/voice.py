"""Check `voice-transcript`: phrases that must be said in a call, their order, and phrases that must not be said."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from difflib import SequenceMatcher
from enum import StrEnum
from fractions import Fraction
from heapq import nlargest
from typing import Annotated, Any, Self

import msgspec
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WrapValidator, model_validator

from meruit.checks.formats import json_path as dotted
from meruit.checks.framework.assertion import Credit, EvidenceDisplay, StateAssertion
from meruit.checks.framework.compile import state_check
from meruit.checks.framework.context import CheckContext, ParsedItem, for_evidence, missing_if_unread, redact_value
from meruit.checks.framework.selection import (
    base_evidence,
    describe_unreadable,
    missing_if_not_kept,
    parse_items,
    split_by_fault,
)
from meruit.checks.matching.compare import TemplateValue
from meruit.checks.matching.formulas import TemplateText
from meruit.checks.values.confusables import is_plain, unmask
from meruit.checks.values.decimals import format_decimal, numeral
from meruit.checks.values.speech import (
    SpeechPause,
    SpeechSpan,
    SpeechToken,
    digits_of,
    find_negator,
    find_spans,
    tokenize_speech,
    units,
)
from meruit.errors import AuthorError, UnreadableContent
from meruit.model.environment import Item, Snapshot, SourceKind, as_work_part, make_item
from meruit.model.evidence import Checked, Fault, Missing
from meruit.model.work import Work
from meruit.registry import CheckExample
from meruit.suggestions import nearest

MAX_PHRASES = 200
"""Entries of one list."""
MAX_PHRASE = 500
"""Characters of one phrase."""
MAX_NEAR = 10
"""The most words between two words of a phrase."""
MAX_TURNS = 20
"""The most turns that a phrase may span."""
MAX_COMPARED = 50
"""Parts of a call that are compared to find the closest one."""
MAX_HEARD = 2_000
"""Words of a speaker in which they are searched."""
CLOSE = 0.6
"""The similarity from which a near miss is shown."""


def _check_sayable(text: str) -> str:
    if "${" not in text and not units(text):
        raise ValueError(f"{text!r} has no words")
    return text


def _check_digits(text: str) -> str:
    if "${" not in text and not digits_of(text):
        raise ValueError(f"{text!r} has no digits")
    return text


# Any: authors may write anything there.
def _as_text(written: Any, understand: Callable[[Any], str]) -> str:
    """Accept a number too; a value that was filled in stays marked, because it comes from untrusted data."""
    number = numeral(written) if isinstance(written, int | Decimal) else None
    text = understand(written if number is None else format_decimal(number))
    return TemplateText(text) if isinstance(written, TemplateValue | Decimal) else text


Sayable = Annotated[str, Field(max_length=MAX_PHRASE), AfterValidator(_check_sayable), WrapValidator(_as_text)]
Countable = Annotated[str, Field(max_length=MAX_PHRASE), AfterValidator(_check_digits), WrapValidator(_as_text)]


class Phrase(BaseModel):
    """A phrase: its words, several ways to say it, or digits in any form."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid")

    say: Sayable | None = Field(default=None, description="The words.")
    any_of: tuple[Sayable, ...] = Field(default=(), max_length=MAX_PHRASES, description="Several ways to say it.")
    digits: Countable | None = Field(
        default=None, description="Digits, said one by one, in pairs or as a number; letters and signs are ignored."
    )
    speaker: str | None = Field(default=None, description="The speaker; default: the assertion's.")
    not_negated: bool = Field(default=False, description="Whether a negated phrase, as `not approved`, does not count.")
    within_turns: int = Field(
        default=1, ge=1, le=MAX_TURNS, description="Successive turns of the speaker that it may span."
    )
    near: int = Field(default=0, ge=0, le=MAX_NEAR, description="Other words allowed between two of its words.")

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.say is not None) + bool(self.any_of) + (self.digits is not None) != 1:
            raise ValueError("a phrase needs exactly one of say, any_of and digits")
        return self

    @property
    def ways(self) -> list[str]:
        """The ways to say it, as they are written."""
        return [one for one in (self.say, self.digits, *self.any_of) if one is not None]

    def unit_sequences(self, *, as_read: bool = False) -> list[tuple[str, ...]]:
        """The same as units; perhaps without look-alike and invisible characters."""
        ways = [unmask(one) for one in self.ways] if as_read else self.ways
        return [found for one in ways if (found := digits_of(one) if self.digits is not None else units(one))]

    def text(self, shown: EvidenceDisplay) -> str:
        """As it is called in the evidence."""
        return " | ".join(_render_phrase(one, shown) for one in self.ways)


def _as_phrase(written: Any) -> Any:
    return {"say": written} if isinstance(written, str | int | Decimal) else written


Phrases = Annotated[tuple[Annotated[Phrase, BeforeValidator(_as_phrase)], ...], Field(max_length=MAX_PHRASES)]


class VoiceTranscript(StateAssertion):
    """What a speaker must say and must not say; without phrases, the speaker must say anything at all."""

    speaker: str | None = Field(default=None, min_length=1, description="Whose turns are read; default: all.")
    contains: Phrases = Field(default=(), description="Phrases that must be said.")
    phrases: Phrases = Field(default=(), description="Phrases that must be said, with all settings of a phrase.")
    order: Phrases = Field(default=(), description="Phrases that must be said one after the other.")
    forbidden: Phrases = Field(default=(), description="Phrases that must not be said.")


class TurnReader:
    """Reads turns."""

    def parse(self, item: Item) -> Any:
        """The turn: `speaker`, `text`, `at`."""
        content = item.content()
        try:
            text = content.decode()
        except UnicodeDecodeError as fault:
            raise UnreadableContent.at("is not UTF-8", content, fault.start) from None
        if item.body is None:
            raise UnreadableContent.at("was not kept", content, 0)
        return {"speaker": str(item.facts.get("speaker") or ""), "text": text, "at": item.facts.get("at")}

    def values(self, document: Any, path: str) -> tuple[Any, ...]:
        """One of its parts."""
        return dotted.values(document, dotted.compile_path(path))

    def check_path(self, path: str, _selector: Mapping[str, Any]) -> object:
        """A dotted path."""
        return dotted.compile_path(path)

    def narrow(self, selector: Mapping[str, Any]) -> Callable[[Item, Any], bool]:
        """Turns by `speaker`."""
        for name in selector.keys() - {"speaker"}:
            raise AuthorError(f"turns are not found by {name!r}{nearest(name, ['speaker'])}, but by speaker")
        speaker = selector.get("speaker")
        return lambda _item, turn: _is_by(turn, None if speaker is None else str(speaker))


def _name(speaker: Any) -> str:
    return str(speaker or "").strip().casefold()


def _is_by(turn: Mapping[str, Any], speaker: str | None) -> bool:
    return speaker is None or _name(turn["speaker"]) == _name(speaker)


TURNS = TurnReader()

# A call, heard


class Voice(msgspec.Struct, frozen=True):
    """All that one speaker says."""

    speaker: str
    tokens: Sequence[SpeechToken]
    turns: Sequence[int]
    """Which of the speaker's turns each token is in."""
    places: Sequence[int]
    """The position of each of these turns in the call, from 0."""


class CallTranscript(msgspec.Struct, frozen=True):
    """A call, as it is heard."""

    turns: Sequence[ParsedItem]
    voices: Sequence[Voice]
    as_read: Sequence[Voice]
    """The same voices without look-alike and invisible characters."""
    garbled: frozenset[str]
    """Speakers of whom some turns cannot be read."""

    def by(self, speaker: str | None, *, as_read: bool = False) -> list[Voice]:
        """The voices of the speaker, or all voices."""
        voices = self.as_read if as_read else self.voices
        return [one for one in voices if speaker is None or one.speaker == _name(speaker)]

    @property
    def is_masked(self) -> bool:
        """Whether the text has look-alike or invisible characters."""
        return self.as_read is not self.voices

    def is_whole(self, speaker: str | None) -> bool:
        """Whether all of the speaker's turns can be read."""
        return not self.garbled if speaker is None else _name(speaker) not in self.garbled


class Mention(msgspec.Struct, frozen=True):
    """A phrase that was said."""

    voice: Voice
    span: SpeechSpan
    negated: str | None
    """The word that denies it."""

    @property
    def first(self) -> tuple[int, int]:
        """Turn and token where it begins."""
        return self._place(self.span.start)

    @property
    def last(self) -> tuple[int, int]:
        """Turn and token where it ends."""
        return self._place(self.span.end - 1)

    def _place(self, token: int) -> tuple[int, int]:
        return self.voice.places[self.voice.turns[token]], token


def _build_transcript(turns: Sequence[ParsedItem], unreadable: Sequence[ParsedItem]) -> CallTranscript:
    texts = [turn.document["text"] for turn in turns]
    voices = _voices(turns, texts)
    as_read = voices if all(map(is_plain, texts)) else _voices(turns, list(map(unmask, texts)))
    return CallTranscript(
        turns=turns,
        voices=voices,
        as_read=as_read,
        garbled=frozenset(_name(one.item.facts.get("speaker")) for one in unreadable),
    )


def _voices(turns: Sequence[ParsedItem], texts: Sequence[str]) -> list[Voice]:
    speakers: dict[str, list[tuple[int, tuple[SpeechToken, ...]]]] = {}
    for place, (turn, text) in enumerate(zip(turns, texts, strict=True)):
        if tokens := tokenize_speech(text):
            own = speakers.setdefault(_name(turn.document["speaker"]), [])
            own.append((place, (msgspec.structs.replace(tokens[0], pause=SpeechPause.LONG), *tokens[1:])))
    return [
        Voice(
            speaker=speaker,
            tokens=[token for _, tokens in own for token in tokens],
            turns=[number for number, (_, tokens) in enumerate(own) for _ in tokens],
            places=[place for place, _ in own],
        )
        for speaker, own in speakers.items()
    ]


def _split_numbers(voice: Voice) -> Voice:
    """The same with every digit a number of its own, so that digits are found inside longer ones."""
    parts = [
        (msgspec.structs.replace(token, units=(unit,), pause=SpeechPause.NONE if place else token.pause), turn)
        for token, turn in zip(voice.tokens, voice.turns, strict=True)
        for place, unit in enumerate(token.units)
    ]
    return msgspec.structs.replace(voice, tokens=[token for token, _ in parts], turns=[turn for _, turn in parts])


def _mentions(
    voices: Sequence[Voice], phrase: Phrase, *, anywhere: bool = False, as_read: bool = False
) -> list[Mention]:
    """Wherever a phrase is said, in the order of the call; digits as a whole number, or `anywhere` in one."""
    loose = anywhere and phrase.digits is not None
    found = [
        Mention(voice=voice, span=span, negated=find_negator(voice.tokens, span))
        for voice in (map(_split_numbers, voices) if loose else voices)
        for wanted in phrase.unit_sequences(as_read=as_read)
        for span in find_spans(
            voice.tokens, wanted, near=phrase.near, turns=voice.turns, within_turns=phrase.within_turns
        )
        if loose or phrase.digits is None or _is_whole(voice.tokens, span)
    ]
    return sorted(found, key=lambda one: (one.first, one.last))


def _is_whole(tokens: Sequence[SpeechToken], span: SpeechSpan) -> bool:
    """Whether no other digits are next to these: 44719 does not say 4471."""
    begins = span.start == 0 or not tokens[span.start - 1].is_number or tokens[span.start].pause is SpeechPause.LONG
    at_end = span.end == len(tokens) or not tokens[span.end].is_number or tokens[span.end].pause is SpeechPause.LONG
    return begins and at_end


# A call, judged


class PhraseRole(StrEnum):
    """What is asked of a phrase."""

    CONTAINS = "contains"
    PHRASES = "phrases"
    ORDER = "order"
    FORBIDDEN = "forbidden"


class PhraseResult(msgspec.Struct, frozen=True):
    """One phrase, held against the call."""

    kind: PhraseRole
    phrase: Phrase
    found: bool
    """Whether it was said as it is meant."""
    mention: Mention | None
    """Where it was said, or nearly."""
    why: str | None = None
    """Why it is not as asked; None when it is."""

    def to_dict(self, call: CallTranscript, shown: EvidenceDisplay) -> dict[str, Any]:
        """As evidence."""
        phrase, mention = self.phrase, self.mention
        op = str(self.kind)
        if self.kind is PhraseRole.PHRASES:
            op = "digits" if phrase.digits is not None else "any_of" if phrase.any_of else "say"
        ways = [_render_phrase(one, shown) for one in phrase.ways]
        text = phrase.text(shown)
        found: dict[str, Any] = {"path": text, "op": op, "expected": ways if phrase.any_of else text}
        found |= {
            "actual": None if mention is None else _quote_mention(call, mention, shown),
            "passed": self.why is None,
        }
        if self.why is not None:
            found["why"] = self.why
        if mention is not None and mention.negated is not None:
            found["negated"] = mention.negated
        return found | {
            "phrase": text,
            "found": self.found,
            "turn": None if mention is None else mention.first[0] + 1,
        }


def _render_phrase(text: str, shown: EvidenceDisplay) -> str:
    return str(redact_value(text)) if shown is EvidenceDisplay.HASH and isinstance(text, TemplateValue) else str(text)


def _quote_mention(call: CallTranscript, mention: Mention, shown: EvidenceDisplay) -> Any:
    """What was said in the turns of a mention."""
    voice = mention.voice
    places = voice.places[voice.turns[mention.span.start] : voice.turns[mention.span.end - 1] + 1]
    return for_evidence((" / ".join(call.turns[place].document["text"] for place in places),), shown)


def _judge_phrases(asked: VoiceTranscript, call: CallTranscript) -> Iterator[PhraseResult]:
    for kind, several in ((PhraseRole.CONTAINS, asked.contains), (PhraseRole.PHRASES, asked.phrases)):
        for phrase in several:
            yield _judge_required(kind, phrase, call, asked)
    reached, previous = (-1, -1), ""
    for phrase in asked.order:
        found = _judge_required(PhraseRole.ORDER, phrase, call, asked, after=reached, previous=previous)
        if found.found and found.mention is not None:
            reached, previous = found.mention.last, phrase.text(asked.evidence)
        yield found
    for phrase in asked.forbidden:
        yield _judge_forbidden(phrase, call, asked)


def _judge_required(
    kind: PhraseRole,
    phrase: Phrase,
    call: CallTranscript,
    asked: VoiceTranscript,
    *,
    after: tuple[int, int] = (-1, -1),
    previous: str = "",
) -> PhraseResult:
    speaker = phrase.speaker or asked.speaker
    voices = call.by(speaker)
    if not voices:
        return PhraseResult(kind, phrase, found=False, mention=None, why=_silence_reason(speaker))
    mentions = _mentions(voices, phrase)
    meant = mentions
    if phrase.not_negated:
        # A negation with look-alike characters counts too.
        asserted = _turns_asserting(phrase, call, speaker) if call.is_masked else None
        meant = [one for one in mentions if one.negated is None and (asserted is None or one.first[0] in asserted)]
    in_time = [one for one in meant if one.first > after]
    if in_time:
        return PhraseResult(kind, phrase, found=True, mention=min(in_time, key=lambda one: one.last))
    if meant:
        return PhraseResult(kind, phrase, found=False, mention=meant[0], why=f"was said, but not after {previous!r}")
    if mentions:
        return PhraseResult(kind, phrase, found=False, mention=mentions[0], why=_negation_reason(mentions[0]))
    close = "" if asked.evidence is EvidenceDisplay.HASH else _closest(voices, phrase)
    return PhraseResult(kind, phrase, found=False, mention=None, why=f"was not said{close}")


def _turns_asserting(phrase: Phrase, call: CallTranscript, speaker: str | None) -> set[int]:
    """The turns in which the phrase is read and not negated."""
    mentions = _mentions(call.by(speaker, as_read=True), phrase, as_read=True)
    return {one.first[0] for one in mentions if one.negated is None}


def _negation_reason(mention: Mention) -> str:
    return f"was said, but negated: {mention.negated or 'with look-alike characters'}"


def _judge_forbidden(phrase: Phrase, call: CallTranscript, asked: VoiceTranscript) -> PhraseResult:
    speaker = phrase.speaker or asked.speaker
    voices = call.by(speaker)
    mentions = _mentions(voices, phrase, anywhere=True)
    if call.is_masked or not all(map(is_plain, phrase.ways)):
        mentions += _mentions(call.by(speaker, as_read=True), phrase, anywhere=True, as_read=True)
    meant = [one for one in mentions if one.negated is None or not phrase.not_negated]
    why = None
    if meant:
        why = "was said"
    elif not call.is_whole(speaker):
        why = "a turn cannot be read, so it may have been said"
    elif not voices:
        # Silence scores 0.
        why = _silence_reason(speaker)
    return PhraseResult(PhraseRole.FORBIDDEN, phrase, found=bool(meant), mention=meant[0] if meant else None, why=why)


def _silence_reason(speaker: str | None) -> str:
    return "no speaker said anything" if speaker is None else f"{speaker} said nothing"


def _closest(voices: Sequence[Voice], phrase: Phrase) -> str:
    """What came closest to a phrase, shown to readers only."""
    best, place, text = CLOSE, 0, ""
    for wanted in phrase.unit_sequences():
        like = SequenceMatcher(None, b=" ".join(wanted))
        for voice, start, spoken in _stretches(voices, wanted):
            like.set_seq1(spoken)
            if like.ratio() > best:
                best, place, text = like.ratio(), voice.places[voice.turns[start]], spoken
    return f"; closest: {text!r} in turn {place + 1}" if text else ""


def _stretches(voices: Sequence[Voice], wanted: tuple[str, ...]) -> list[tuple[Voice, int, str]]:
    """Where as many words as the phrase has share most of them with it."""
    sought, size = set(wanted), len(wanted)
    stretches = (
        (voice, start, " ".join(unit for token in voice.tokens[start : start + size] for unit in token.units))
        for voice in voices
        for start in range(min(len(voice.tokens), MAX_HEARD))
    )
    return nlargest(MAX_COMPARED, stretches, key=lambda stretch: len(sought.intersection(stretch[2].split())))


def _share_found(results: Sequence[PhraseResult]) -> Fraction:
    return Fraction(sum(one.why is None for one in results), len(results))


def _example(asked: Mapping[str, Any], spoken: str, expect: str) -> CheckExample:
    turns = [make_item("000001", spoken.encode(), facts={"speaker": "agent"})]
    was, now = {"call": Snapshot(SourceKind.VOICE)}, {"call": Snapshot(SourceKind.VOICE, turns)}
    return CheckExample(assertion=asked, work=Work(input=as_work_part(was), output=as_work_part(now)), expect=expect)


@state_check(
    "voice-transcript",
    reads=[SourceKind.VOICE],
    settings=VoiceTranscript,
    evidence="phraseResults",
    reader=TURNS,
    examples=[
        _example({"contains": ["member ID"], "forbidden": ["you have"]}, "What is your member-ID?", "1"),
        _example({"contains": ["date of birth", "member ID"]}, "What is your member ID?", "1/2"),
        _example({"phrases": [{"digits": "4471"}]}, "It is forty-four seventy-one.", "1"),
        _example({"phrases": [{"say": "approved", "not_negated": True}]}, "It was not approved.", "0"),
    ],
)
def voice_transcript(asked: VoiceTranscript, context: CheckContext) -> Checked | Missing:
    """A speaker says what must be said, in order, and nothing that must not be."""
    trouble = missing_if_unread(context.source, context.after, "after")
    if trouble is not None:
        return trouble
    changes = context.changes()
    turns, unreadable = parse_items(context, TURNS, changes, deleted_too=False)
    if trouble := missing_if_not_kept(context.source, split_by_fault(unreadable, changes)[1]):
        return trouble
    # Calling is the task itself, so no turn of the call is collateral.
    context.work_context.select(context.source, [one.key for one in context.after.items])
    call = _build_transcript(turns, unreadable)
    considered = [one for one in turns if _is_by(one.document, asked.speaker)]
    evidence = base_evidence(context, len(considered), [describe_unreadable(one, asked.evidence) for one in unreadable])
    results = list(_judge_phrases(asked, call))
    evidence["fields"] = [one.to_dict(call, asked.evidence) for one in results]
    if results:
        broken = any(one.why is not None for one in results if one.kind is PhraseRole.FORBIDDEN)
        required = [one for one in results if one.kind is not PhraseRole.FORBIDDEN]
        # A forbidden phrase does not count towards a share: said once, it costs the whole criterion.
        score = Fraction(not broken) if broken or not required else _share_found(required)
    else:
        score = Fraction(bool(call.by(asked.speaker)))
        evidence["why"] = "something was said, and no more is asked" if score else _silence_reason(asked.speaker)
    positions = [one.mention.first[0] for one in results if one.mention is not None and one.why is None]
    if asked.capture is not None and positions:
        context.work_context.names[asked.capture] = turns[positions[0]].document
    if asked.credit is Credit.ALL and score < 1:
        score = Fraction(0)
    return Checked(str(score), evidence, Fault.AGENT)
