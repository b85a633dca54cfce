"""Check `sftp-file-present`: files that must exist, by path, size, digest and content."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Any, Self

import msgspec
from pydantic import BaseModel, Field, TypeAdapter, ValidationInfo, field_validator, model_validator

from meruit.checks.framework.assertion import DEFER_BUILD, FieldRule, PathRule, SelectionAssertion, as_rule, fields_of
from meruit.checks.framework.compile import state_check
from meruit.checks.framework.context import CheckContext
from meruit.checks.framework.file_formats import FORMATS, FileFormat, format_by_ending
from meruit.checks.framework.identity import hl7_identity, row_identity, x12_identity
from meruit.checks.framework.selection import FieldResult, decide, field_result
from meruit.checks.matching.formulas import TemplateText
from meruit.checks.matching.matchers import Dialect
from meruit.checks.values.globs import glob, literal
from meruit.errors import AuthorError, UnreadableContent
from meruit.model.environment import Item, Snapshot, SourceKind, as_work_part, make_item
from meruit.model.evidence import Checked, Missing
from meruit.model.work import Work
from meruit.registry import CheckExample
from meruit.suggestions import nearest

_DIGEST = re.compile("[0-9a-f]{64}")
_RULES: Mapping[FileFormat, TypeAdapter[dict[str, FieldRule]]] = {
    parse: TypeAdapter(fields_of(found.dialect, found.path), config=DEFER_BUILD) for parse, found in FORMATS.items()
}

_IDENTITY = {FileFormat.JSON: row_identity, FileFormat.HL7: hl7_identity, FileFormat.X12: x12_identity}
"""How the content of a file says whose it is."""


class FileParseSettings(BaseModel):
    """The format of a file; validated first, because the paths in the other settings depend on it."""

    parse: FileFormat = Field(default=FileFormat.NONE, description="The format in which the file is read.")


class SftpFilePresent(SelectionAssertion, FileParseSettings):
    """Which files, and what they must hold."""

    path: str = Field(
        description="Path of the file: * and ? match characters except a slash, ** matches whole folders too."
    )
    size: Any = Field(default=None, description="Its size in bytes: a number or a matcher.")
    sha256: Any = Field(default=None, description="The digest of its content: a text or a matcher.")

    @field_validator("path", mode="before")
    @classmethod
    def _escape_given_path(cls, written: Any) -> Any:
        return _as_literal_glob(written)

    @field_validator("path")
    @classmethod
    def _is_path(cls, written: str) -> str:
        if "${" not in written:
            _translate_author_error(lambda: glob(written))
        return written

    @field_validator("where", "fields")
    @classmethod
    def _rules(cls, written: Any, so_far: ValidationInfo) -> Any:
        parse = so_far.data.get("parse")
        # Without a valid format the paths cannot be checked.
        return written if parse is None else _RULES[parse].validate_python(written)

    @field_validator("size")
    @classmethod
    def _is_size(cls, written: Any) -> Any:
        return None if written is None else _translate_author_error(lambda: as_rule(written, Dialect.JSON))

    @field_validator("sha256")
    @classmethod
    def _is_digest(cls, written: Any) -> Any:
        if written is None:
            return None
        plain = isinstance(written, str) and "${" not in written
        rule = _translate_author_error(lambda: as_rule(written.lower() if plain else written, Dialect.TEXT))
        if rule.matcher.op == "equals" and not _DIGEST.fullmatch(str(rule.matcher.expected)):
            raise ValueError(
                f"{rule.matcher.expected!r} is not a SHA-256 digest; it must have 64 characters of 0 to 9 and a to f"
            )
        return rule

    @model_validator(mode="after")
    def _some_file(self) -> Self:
        if self.count.high == 0 and (self.size or self.sha256):
            raise ValueError("count: 0 allows no file, so size and sha256 cannot apply; remove one of them")
        return self

    def derive_identity(self, path: str, rule: FieldRule) -> Sequence[PathRule]:
        """The rules about whose the file's content is."""
        derive = _IDENTITY.get(self.parse)
        return () if derive is None else derive(path, rule)


def _as_literal_glob(written: Any) -> Any:
    """Escape wildcards in a value that was filled in, because it comes from untrusted data."""
    return literal(written.pattern) if isinstance(written, TemplateText) else written


def _translate_author_error(compute: Callable[[], Any]) -> Any:
    try:
        return compute()
    except AuthorError as problem:
        raise ValueError(str(problem)) from None


@lru_cache(maxsize=4_096)
def _compile_path(parse: FileFormat, path: str) -> Any:
    return FORMATS[parse].path(path)


class FileReader(msgspec.Struct, frozen=True):
    """Reads files."""

    parse_as: FileFormat | None = None
    """None chooses by the file's extension."""

    def parse(self, item: Item) -> Any:
        """The file: `path`, `size`, `sha256`, `modified`, and its `content` as it was parsed."""
        parse = self.parse_as or format_by_ending(item.key)
        has_body, content = item.body is not None, item.content()
        if not has_body and parse is not FileFormat.NONE:
            raise UnreadableContent.at("was too large to keep", content, 0)
        return {
            "path": item.key,
            "size": len(content) if has_body else item.facts.get("size"),
            "sha256": sha256(content).hexdigest() if has_body else item.version,
            "modified": item.facts.get("modified"),
            "format": parse,
            "content": FORMATS[parse].read(content),
        }

    def values(self, document: Any, path: str) -> tuple[Any, ...]:
        """Everything at a path of the file's format."""
        parse: FileFormat = document["format"]
        return FORMATS[parse].values(document["content"], _compile_path(parse, path))

    def check_path(self, path: str, selector: Mapping[str, Any]) -> object:
        """Validate a path for the format of the file's extension, or for any format where that is unknown."""
        file = str(selector.get("file", "*"))
        known = self.parse_as or (None if file[-1:] in "*?]" else format_by_ending(file))
        if known is not None:
            return _compile_path(known, path)
        whys = []
        for parse in FORMATS:
            try:
                return _compile_path(parse, path)
            except AuthorError as problem:
                whys.append(f"as {parse}: {problem}")
        raise AuthorError("; ".join(whys))

    def narrow(self, selector: Mapping[str, Any]) -> Callable[[Item, Any], bool]:
        """Select files by `file`, a glob like the check's `path`; in `let`, `path` is that of a value in the file."""
        for name in selector.keys() - {"file"}:
            raise AuthorError(f"files are not found by {name!r}{nearest(str(name), ['file'])}, but by file")
        fits = glob(str(_as_literal_glob(selector.get("file", "**"))))
        return lambda one, _document: fits(one.key)


def _example(asked: Mapping[str, Any], path: str, content: bytes, expect: str) -> CheckExample:
    was, now = {"drop": Snapshot(SourceKind.FILES)}, {"drop": Snapshot(SourceKind.FILES, [make_item(path, content)])}
    return CheckExample(assertion=asked, work=Work(input=as_work_part(was), output=as_work_part(now)), expect=expect)


_ROSTER = {"path": "outbound/roster_*.json", "changed": "created", "count": 1, "parse": "json"}


@state_check(
    "sftp-file-present",
    reads=[SourceKind.FILES],
    settings=SftpFilePresent,
    reader=FileReader(),
    is_text=lambda settings: settings.get("parse") in (FileFormat.HL7, FileFormat.X12),
    examples=[
        _example(
            _ROSTER | {"fields": {"members[].id": {"set": ["A1", "A2"]}}},
            "outbound/roster_7.json",
            b'{"members": [{"id": "A2"}, {"id": "A1"}]}',
            "1",
        ),
        _example(_ROSTER, "outbound/roster_7.json", b'{"members": [', "0"),
        _example({"path": "claims/*.tmp", "count": 0}, "claims/77.837", b"", "1"),
    ],
)
def sftp_file_present(asked: SftpFilePresent, context: CheckContext) -> Checked | Missing:
    """A file exists and holds what it must."""
    fits = glob(asked.path)
    files = context.filter_items(lambda one: fits(one.key))
    found = decide(asked, files, FileReader(asked.parse), {}, lambda document: _attribute_results(asked, document))
    if isinstance(found, Missing) or found.details is None:
        return found
    matched = [*found.details.get("selected", ()), *found.details.get("also_selected", ())]
    return Checked(found.score, {**found.details, "paths": sorted(one["key"] for one in matched)}, found.fault)


def _attribute_results(asked: SftpFilePresent, document: Mapping[str, Any]) -> Iterator[FieldResult]:
    """The facts about a file that need no parsing."""
    for name, rule in (("size", asked.size), ("sha256", asked.sha256)):
        if rule is not None:
            value = document[name]
            yield field_result(name, rule, () if value is None else (value,), asked.evidence)
