"""A result's JSON with five gaps: what differs between works that were judged alike. Pure.

Results of bulk work repeat each other apart from their id, their time and three digests. So a result is written once
for each distinct evidence, and the gaps are filled for each work.
"""

import re
from datetime import datetime

import msgspec

from meruit.model.record import Record
from meruit.model.verdict import VerificationResult

_ID, _SUCCESS, _AT = b'{"contract_id":"', b'","success":', b',"verified_at":'
_OPEN = _ID[:-1]
_INPUT, _OUTPUT, _METADATA = b',"input_digest":', b',"output_digest":', b',"metadata_digest":'
_HASH = rb'"[0-9a-f]{64}"|null'
_DIGESTS = re.compile(rb"%b(%b)%b(%b)%b(%b),\"versions\":\{" % (_INPUT, _HASH, _OUTPUT, _HASH, _METADATA, _HASH))
_MOMENT = re.compile(rb'%b("[0-9T:.+Z-]{1,40}"),"verdict":"' % _AT)


class ResultGaps(Record, frozen=True):
    """What a template lacks, each written as JSON."""

    contract_id: bytes
    verified_at: bytes
    input: bytes
    output: bytes
    metadata: bytes


class ResultTemplate(Record, frozen=True):
    """The JSON of a result without its gaps."""

    judged: bytes
    """From `success` to the time."""
    summary: bytes
    """From the verdict to the digests."""
    end: bytes
    """From the versions on."""

    def fill(self, gaps: ResultGaps) -> bytes:
        """The whole result, to the byte as `to_json` writes it."""
        return self.fill_in(gaps.contract_id, gaps.verified_at, gaps.input, gaps.output, gaps.metadata)

    # By position: it is called for every work, and keywords would take as long as the rest.
    def fill_in(self, contract_id: bytes, verified_at: bytes, given: bytes, made: bytes, facts: bytes) -> bytes:
        """The same from the parts."""
        return b"".join(
            (
                *(_OPEN, contract_id, self.judged, verified_at, self.summary),
                *(given, _OUTPUT, made, _METADATA, facts, self.end),
            )
        )


def split_result(written: bytes) -> tuple[ResultTemplate, ResultGaps] | None:
    """The template and the gaps of a result; None for anything that `to_json` does not write.

    A quote inside a text is escaped, so that no text can look like a key. From the end, the digests and the time come
    first of all keys of their names: what follows them holds texts or objects under chosen keys, and never these forms.
    """
    own = written.find(_SUCCESS) + 1
    at = written.rfind(_INPUT)
    digests = _DIGESTS.match(written, at) if at > 0 else None
    if digests is None:
        # A metric may be called input_digest, and stands among the versions then.
        at = written.rfind(_INPUT, 0, max(at, 0))
        digests = _DIGESTS.match(written, at) if at > 0 else None
    moment_at = written.rfind(_AT, 0, at)
    moment = _MOMENT.match(written, moment_at) if moment_at > 0 else None
    if digests is None or moment is None or not written.startswith(_ID) or not 0 < own < moment_at:
        return None
    start, end = moment.span(1)
    template = ResultTemplate(
        judged=written[own:start], summary=written[end : digests.start(1)], end=written[digests.end(3) :]
    )
    return template, ResultGaps(written[len(_ID) - 1 : own], written[start:end], *digests.groups())


def template_of(result: VerificationResult) -> ResultTemplate | None:
    """The template of a result."""
    found = split_result(result.to_json())
    return None if found is None else found[0]


def encode_text(text: str | None) -> bytes:
    """A text, or None, as JSON."""
    return msgspec.json.encode(text)


def encode_time(moment: datetime) -> bytes:
    """A time as results hold it."""
    return msgspec.json.encode(moment)
