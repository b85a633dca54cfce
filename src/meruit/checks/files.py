"""Files that must be there: by path, size and digest, and what they hold."""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from hashlib import sha256
from typing import Any, NamedTuple, Self

from pydantic import BaseModel, Field, TypeAdapter, ValidationInfo, field_validator, model_validator

from meruit.checks.framework.assertion import LATER, Rule, Selecting, as_rule, fields_of
from meruit.checks.framework.compile import state_check
from meruit.checks.framework.context import Scene
from meruit.checks.framework.file_formats import FORMATS, Parse, by_ending
from meruit.checks.framework.selection import FieldResult, decide, field_result
from meruit.checks.matching.formulas import GivenText
from meruit.checks.matching.matchers import Dialect
from meruit.checks.values.errors import Unreadable
from meruit.checks.values.globs import glob, literal
from meruit.errors import AuthorError, nearest
from meruit.model.evidence import Checked, Missing
from meruit.model.work import Work
from meruit.model.world import Item, Snapshot, SourceKind, in_work, item
from meruit.registry import CheckExample

_DIGEST = re.compile("[0-9a-f]{64}")
_RULES: Mapping[Parse, TypeAdapter[dict[str, Rule]]] = {
    parse: TypeAdapter(fields_of(found.dialect, found.path), config=LATER) for parse, found in FORMATS.items()
}


class Parsed(BaseModel):
    """As what a file is read; the first of all settings, because the paths of the others hang on it."""

    parse: Parse = Field(default=Parse.NONE, description="As what the file is read.")


class SftpFilePresent(Selecting, Parsed):
    """Which files, and what they must hold."""

    path: str = Field(
        description="Where the file is: * and ? stand for characters but not for a slash, ** for whole folders, too."
    )
    size: Any = Field(default=None, description="Its bytes: a number or a matcher.")
    sha256: Any = Field(default=None, description="The digest of its content: a text or a matcher.")

    @field_validator("path", mode="before")
    @classmethod
    def _filled_in(cls, written: Any) -> Any:
        return _as_given(written)

    @field_validator("path")
    @classmethod
    def _is_path(cls, written: str) -> str:
        if "${" not in written:
            _told(lambda: glob(written))
        return written

    @field_validator("where", "fields")
    @classmethod
    def _rules(cls, written: Any, so_far: ValidationInfo) -> Any:
        parse = so_far.data.get("parse")
        # Where parse itself is wrong there is nothing to hold the paths against.
        return written if parse is None else _RULES[parse].validate_python(written)

    @field_validator("size")
    @classmethod
    def _is_size(cls, written: Any) -> Any:
        return None if written is None else _told(lambda: as_rule(written, Dialect.JSON))

    @field_validator("sha256")
    @classmethod
    def _is_digest(cls, written: Any) -> Any:
        if written is None:
            return None
        plain = isinstance(written, str) and "${" not in written
        rule = _told(lambda: as_rule(written.lower() if plain else written, Dialect.TEXT))
        if rule.matcher.op == "equals" and not _DIGEST.fullmatch(str(rule.matcher.expected)):
            raise ValueError(f"{rule.matcher.expected!r} is no SHA-256 digest; it has 64 of 0 to 9 and a to f")
        return rule

    @model_validator(mode="after")
    def _some_file(self) -> Self:
        if self.count.high == 0 and (self.size or self.sha256):
            raise ValueError("count: 0 leaves no file that could have a size or digest; drop one of the two")
        return self


def _as_given(written: Any) -> Any:
    """Whoever wrote what is filled in may have written a wildcard, which then stands for itself."""
    return literal(written.pattern) if isinstance(written, GivenText) else written


def _told(compute: Callable[[], Any]) -> Any:
    try:
        return compute()
    except AuthorError as problem:
        raise ValueError(str(problem)) from None


@lru_cache(maxsize=4_096)
def _compiled(parse: Parse, path: str) -> Any:
    return FORMATS[parse].path(path)


class Files(NamedTuple):
    """How files are read."""

    parse_as: Parse | None = None
    """None goes by the file's ending."""

    def parse(self, item: Item) -> Any:
        """The file: `path`, `size`, `sha256`, `modified`, and its `content` as it was parsed."""
        parse = self.parse_as or by_ending(item.key)
        kept, content = item.body is not None, item.content()
        if not kept and parse is not Parse.NONE:
            raise Unreadable.at("was too large to keep", content, 0)
        return {
            "path": item.key,
            "size": len(content) if kept else item.facts.get("size"),
            "sha256": sha256(content).hexdigest() if kept else item.version,
            "modified": item.facts.get("modified"),
            "format": parse,
            "content": FORMATS[parse].read(content),
        }

    def values(self, document: Any, path: str) -> tuple[Any, ...]:
        """Everything at a path of the file's format."""
        parse: Parse = document["format"]
        return FORMATS[parse].values(document["content"], _compiled(parse, path))

    def check_path(self, path: str, selector: Mapping[str, Any]) -> object:
        """A path of the format that the file's ending tells; of any where it tells none."""
        file = str(selector.get("file", "*"))
        known = self.parse_as or (None if file[-1:] in "*?]" else by_ending(file))
        if known is not None:
            return _compiled(known, path)
        whys = []
        for parse in FORMATS:
            try:
                return _compiled(parse, path)
            except AuthorError as problem:
                whys.append(f"as {parse}: {problem}")
        raise AuthorError("; ".join(whys))

    def narrow(self, selector: Mapping[str, Any]) -> Callable[[Item, Any], bool]:
        """Files by `file`, which is what `path` is to the check; `path` says where in them a value stands."""
        for name in selector.keys() - {"file"}:
            raise AuthorError(f"files are not found by {name!r}{nearest(str(name), ['file'])}, but by file")
        fits = glob(str(_as_given(selector.get("file", "**"))))
        return lambda one, _document: fits(one.key)


def _example(asked: Mapping[str, Any], path: str, content: bytes, expect: str) -> CheckExample:
    was, now = {"drop": Snapshot(SourceKind.FILES)}, {"drop": Snapshot(SourceKind.FILES, [item(path, content)])}
    return CheckExample(asked, Work(input=in_work(was), output=in_work(now)), expect)


_ROSTER = {"path": "outbound/roster_*.json", "changed": "created", "count": 1, "parse": "json"}


@state_check(
    "sftp-file-present",
    reads=[SourceKind.FILES],
    settings=SftpFilePresent,
    reader=Files(),
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
def sftp_file_present(asked: SftpFilePresent, scene: Scene) -> Checked | Missing:
    """A file is there, and holds what it should."""
    fits = glob(asked.path)
    files = scene.only(lambda one: fits(one.key))
    found = decide(asked, files, Files(asked.parse), {}, lambda document: _outside(asked, document))
    if isinstance(found, Missing) or found.details is None:
        return found
    matched = [*found.details.get("selected", ()), *found.details.get("also_selected", ())]
    return Checked(found.score, {**found.details, "paths": sorted(one["key"] for one in matched)}, found.fault)


def _outside(asked: SftpFilePresent, document: Mapping[str, Any]) -> Iterator[FieldResult]:
    """What can be said of a file without reading it."""
    for name, rule in (("size", asked.size), ("sha256", asked.sha256)):
        if rule is not None:
            value = document[name]
            yield field_result(name, rule, () if value is None else (value,), asked.evidence)
