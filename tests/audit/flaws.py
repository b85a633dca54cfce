"""The sentences that audits report, in one golden file: tests/golden/audit_flaws.txt.

Tests assert the step and the values that matter; `check_sentence` compares the whole sentence. `make golden` writes the
file again.
"""

import fcntl
import os
import re
from collections import Counter
from functools import cache

from tests.golden import FOLDER, WRITE

FILE = FOLDER / "audit_flaws.txt"
MAX_NAME = 160
_CALLS: Counter[str] = Counter()
_OTHERS = re.compile(r"(cannot be read|cannot be worked with|not a readable zip file|must hold): .*", re.DOTALL)


def check_sentence(sentence: str) -> None:
    """Assert that the running test reports this sentence, as the golden file says."""
    name = os.environ["PYTEST_CURRENT_TEST"].removeprefix("tests/audit/").rsplit(" ", 1)[0]
    name = name.encode("ascii", "backslashreplace").decode()[:MAX_NAME]
    _CALLS[name] += 1
    key, text = f"{name} #{_CALLS[name]}", _without_chance(sentence)
    if os.environ.get(WRITE) == "write":
        _write(key, text)
    else:
        expected = _lines().get(key)
        assert text == expected, f"{FILE.name} says {expected!r} of {key}; if the new text is right, run `make golden`"


def _without_chance(sentence: str) -> str:
    """Leave out ids, and what parsers of other packages say."""
    sentence = re.sub(r"(\w+?)_[0-9a-f]{20,}", r"\1_…", sentence)
    sentence = re.sub(r"\b[0-9a-f]{64}\b", "…", sentence)
    sentence = re.sub(
        r"(cannot be read|cannot be worked with|not a readable zip file|must hold): .*",
        r"\1: …",
        sentence,
        flags=re.DOTALL,
    )
    return sentence.encode("ascii", "backslashreplace").decode()


@cache
def _lines() -> dict[str, str]:
    return dict(line.split("\t", 1) for line in FILE.read_text().splitlines()) if FILE.exists() else {}


def _write(key: str, text: str) -> None:
    with FILE.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        lines = dict(line.split("\t", 1) for line in file.read().splitlines()) | {key: text}
        file.seek(0)
        file.truncate()
        file.write("".join(f"{key}\t{lines[key]}\n" for key in sorted(lines)))
