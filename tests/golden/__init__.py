"""Golden files: whole texts that users read, compared with what the code prints now.

`make golden` writes them again; read the diff before you commit it.
"""

import os
from pathlib import Path

FOLDER = Path(__file__).parent
WRITE = "MERUIT_GOLDEN"
"""Set to `write` to write the files instead of comparing."""


def check_golden(name: str, text: str) -> None:
    """Assert that the text is the golden file's, or write it there."""
    path = FOLDER / f"{name}.txt"
    if os.environ.get(WRITE) == "write":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    expected = path.read_text(encoding="utf-8") if path.exists() else ""
    assert text == expected, f"tests/golden/{name}.txt differs; if the new text is right, run `make golden`"
