"""A witness as the settings name it."""

import msgspec

from meruit.log.cosignature import WitnessKey


class KnownWitness(msgspec.Struct, frozen=True):
    """A witness that a log asks: where it is, and the key that it must sign with."""

    name: str
    """As the settings call it."""
    url: str
    key: WitnessKey
