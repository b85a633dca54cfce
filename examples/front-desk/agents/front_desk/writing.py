"""HL7 and X12 as they are written: fields by their numbers, and counts that are right."""

from collections.abc import Mapping

ZONE = "-0600"
"""Of the clinic, in winter."""
FROM, NPI = "MAPLE", "1528074632"
"""The clinic as its partners know it, and Dr. Okafor, for whom it asks."""


def hl7(kind: str, receiver: str, control: str, *segments: str) -> str:
    """A message of some kind, as `SIU^S13^SIU_S12`."""
    head = f"MSH|^~\\&|{FROM}|MAPLE STREET|{receiver}||20260303120000{ZONE}||{kind}|{control}|P|2.5.1"
    return "".join(f"{segment}\r" for segment in (head, *segments))


def segment(name: str, fields: Mapping[int, str]) -> str:
    """A segment of HL7, each field at its number."""
    return "|".join([name, *(fields.get(number, "") for number in range(1, max(fields) + 1))])


def x12(kind: str, function: str, version: str, *body: str, miscounted: bool = False) -> str:
    """An interchange with one transaction set; `body` is what stands between ST and SE."""
    count = len(body) + (3 if miscounted else 2)
    return "".join(
        f"{one}~"
        for one in (
            f"ISA*00*          *00*          *ZZ*{FROM:<15}*ZZ*{'CEDAR':<15}*260303*1200*^*00501*000000101*0*P*:",
            f"GS*{function}*{FROM}*CEDAR*20260303*1200*1*X*{version}",
            f"ST*{kind}*0001*{version}",
            *body,
            f"SE*{count}*0001",
            "GE*1*1",
            "IEA*1*000000101",
        )
    )


def elements(interchange: str, start: str) -> list[str]:
    """The elements of the first segment that begins so; none where there is none."""
    found = [one for one in interchange.split("~") if one.startswith(start)]
    return found[0].split("*") if found else []
