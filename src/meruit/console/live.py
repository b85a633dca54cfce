"""What a page follows, so that it shows itself again when something changed."""

from dataclasses import dataclass
from urllib.parse import urlencode

from meruit.model.events import EventType


@dataclass(frozen=True, slots=True)
class Live:
    """What a page follows: events of these types, about this subject; empty for all."""

    types: tuple[EventType, ...] = ()
    subject: str = ""

    @property
    def address(self) -> str:
        """Where the stream is."""
        asked = {"types": ",".join(self.types), "subject": self.subject}
        return f"/live?{urlencode({name: value for name, value in asked.items() if value})}"
