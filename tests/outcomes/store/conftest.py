from tests.store.conftest import clock, store

__all__ = ["clock", "store"]
