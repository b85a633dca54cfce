"""Read usage files, whole and within limits."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path

import msgspec

from meruit.errors import FetchError, FetchFailed
from meruit.sources.retry import MAX_BYTES

MAX_FILES = 10_000


class UsageText(msgspec.Struct, frozen=True):
    """The content of one file."""

    name: str
    content: bytes

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield each line that is not empty, with its number."""
        for number, line in enumerate(self.content.splitlines(), start=1):
            if line.strip():
                yield number, line


async def read_texts(path: str, endings: Sequence[str], clock: Callable[[], datetime]) -> list[UsageText]:
    """Read a file, or the files of a folder with these endings, by name; raises FetchFailed."""
    try:
        return await asyncio.to_thread(_read_texts, Path(path), tuple(endings))
    except FetchFailed as failure:
        failure.at = clock()
        raise


def _read_texts(path: Path, endings: tuple[str, ...]) -> list[UsageText]:
    try:
        if path.is_dir():
            names = sorted(one for one in path.iterdir() if one.name.endswith(endings) and one.is_file())
        else:
            names = [path]
        if len(names) > MAX_FILES:
            raise FetchFailed(FetchError.PARTIAL_PAGE, f"{path} has more than {MAX_FILES:,} files; name one of them")
        texts: list[UsageText] = []
        left_bytes = MAX_BYTES
        for one in names:
            with one.open("rb") as file:
                content = file.read(left_bytes + 1)
            left_bytes -= len(content)
            if left_bytes < 0:
                raise FetchFailed(
                    FetchError.PARTIAL_PAGE, f"{path} has more than {MAX_BYTES:,} bytes; name fewer files"
                )
            texts.append(UsageText(str(one), content))
    except FileNotFoundError:
        raise FetchFailed(FetchError.NOT_READY, f"{path} does not exist yet; check the setting file") from None
    except PermissionError:
        raise FetchFailed(FetchError.AUTH, f"{path} may not be read; check its permissions") from None
    except OSError as problem:
        raise FetchFailed(FetchError.SERVER, f"{path} cannot be read: {type(problem).__name__}") from None
    return texts
