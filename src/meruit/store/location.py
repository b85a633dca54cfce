"""Where records are kept."""

from hashlib import sha256
from pathlib import Path
from typing import Literal

import msgspec

FILE = "meruit.db"
KEY_FILE = "audit-key.pem"
_ID_CHARS = 12


class Location(msgspec.Struct, frozen=True):
    """Where records are: a folder of ours, and the database in it or elsewhere."""

    folder: Path
    """Holds the signing key, large evidence, and the SQLite file unless there is a URL."""
    url: str | None = None
    """`postgresql://…` when the records are there."""

    @property
    def kind(self) -> Literal["sqlite", "postgresql"]:
        """Which database it is."""
        return "sqlite" if self.url is None else "postgresql"

    @property
    def display_name(self) -> str:
        """The place, without its password."""
        if self.url is None:
            return str(self.folder / FILE)
        scheme, _, rest = self.url.partition("://")
        # Whatever stands before the last @ may be a password, and so may what follows a question mark.
        return f"{scheme}://{rest.rpartition('@')[2].partition('?')[0]}"

    def file_about_records(self, name: str) -> Path:
        """A file of the folder about these records: one folder may be used with several databases of a server."""
        if self.url is None:
            return self.folder / name
        stem, dot, suffix = name.partition(".")
        return self.folder / f"{stem}-{sha256(self.display_name.encode()).hexdigest()[:_ID_CHARS]}{dot}{suffix}"
