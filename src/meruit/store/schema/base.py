"""What every table shares: one MetaData, and the type of gapless numbers."""

from sqlalchemy import BigInteger, Integer, MetaData

metadata = MetaData()


# SQLite's own integer key is the only one that needs no second index.
SEQ = BigInteger().with_variant(Integer, "sqlite")
