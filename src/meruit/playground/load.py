"""Load benchmarks and seeds from files, with the files that they name."""

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from meruit.benchmarks.formula_names import find_unknown_names
from meruit.documents.authoring import Gather, parse_benchmark
from meruit.documents.document import parse
from meruit.errors import DocumentError, Problem
from meruit.files import display_name, find_beside, read_bytes
from meruit.model.task import Benchmark

if TYPE_CHECKING:
    from meruit.playground.seed import Seed


def load_benchmark(path: str | Path) -> Benchmark:
    """Load a benchmark from a YAML or JSON file, with the files that its seeds name.

    Raises DocumentError with every problem.
    """
    return parse_benchmark(
        read_bytes(path), display_name(path), gather=_gather_beside(path), examine=find_unknown_names
    )


def load_tasks(path: str | Path, benchmark: str) -> Benchmark:
    """Load the task of a file, or all tasks of a benchmark file; raises DocumentError with every problem.

    A task that names the benchmark it belongs to must name this one.
    """
    document = parse(read_bytes(path), display_name(path))
    if isinstance(document.value, dict) and "tasks" not in document.value:
        document = msgspec.structs.replace(
            document,
            value={"benchmark": benchmark, "tasks": [document.value]},
            lines={("tasks", 0, *place): line for place, line in document.lines.items()},
            numbers={("tasks", 0, *place): text for place, text in document.numbers.items()},
        )
    loaded = parse_benchmark(document, document.name, gather=_gather_beside(path), examine=find_unknown_names)
    if loaded.benchmark != benchmark:
        where = Problem("benchmark", f"these tasks belong to {loaded.benchmark!r}, not to {benchmark!r}")
        raise DocumentError(document.name, [where._replace(line=document.line_of(("benchmark",)))])
    return loaded


def _gather_beside(path: str | Path) -> Gather | None:
    """Build what reads the files that a seed names from the folder of the benchmark; None for standard input."""
    # The seed's module loads every reader of the playground, which criteria do not need.
    from meruit.playground.seed import read_seed

    folder = Path(path).parent

    def gather(seed: Any, attached: Mapping[str, Any]) -> dict[str, Any]:
        files: dict[str, Any] = {}

        def read(name: str) -> bytes:
            known = _attachment_content(attached.get(name))
            if known is not None:
                return known
            content = _read_beside(folder, name)
            try:
                files[name] = content.decode()
            except UnicodeDecodeError:
                files[name] = {"base64": base64.b64encode(content).decode()}
            return content

        read_seed(seed, read)
        return files

    return None if str(path) == "-" else gather


def is_benchmark_file(path: str | Path) -> bool:
    """Whether a file holds a benchmark rather than criteria; False for one that cannot be read, or only once."""
    if not Path(path).is_file():
        return False
    try:
        written = parse(read_bytes(path), display_name(path)).value
    except DocumentError:
        return False
    return isinstance(written, dict) and "tasks" in written


def load_seed(path: str | Path) -> "Seed":
    """Load a seed from a YAML or JSON file and those beside it; raises DocumentError with every problem."""
    from meruit.playground.seed import read_seed

    called, folder = display_name(path), Path(path).parent
    return read_seed(called, lambda name: read_bytes(path) if name == called else _read_beside(folder, name))


def _read_beside(folder: Path, name: str) -> bytes:
    return read_bytes(find_beside(folder, name))


# Any: the benchmark has not been validated yet.
def _attachment_content(written: Any) -> bytes | None:
    """The content of a file that a benchmark brings along; None for another value, which its model reports."""
    match written:
        case str():
            return written.encode()
        case {"base64": str(text)}:
            try:
                return base64.b64decode(text, validate=True)
            except ValueError:
                return b""
        case _:
            return None
