"""The installed metrics, for intake that asks before it accepts a criterion."""

from meruit.verify.catalogue import Catalogue

extractor_registry = Catalogue(None)
"""Every installed metric; `extractor_registry.can_extract(name)` says whether one can be computed."""
