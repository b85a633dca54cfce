"""Databases of other layouts: a later one that upgrades the present one, and ones that this version cannot use."""

import shutil
from pathlib import Path

import pytest
from sqlalchemy import text

from meruit.store import migrate
from meruit.store.database import connect
from meruit.store.location import Location

LATER = "schema_9999"
LATER_TABLE = "later_table"
_MIGRATION = f'''
import sqlalchemy as sa
from alembic import op

revision = "{LATER}"
down_revision = "{migrate.HEAD}"


def upgrade() -> None:
    op.create_table("{LATER_TABLE}", sa.Column("id", sa.Integer(), primary_key=True))
'''


def use_later_layout(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Path:
    """Make this process believe that it is a version with one more migration; returns the folder of migrations."""
    migrations = folder / "later-migrations"
    shutil.copytree(migrate.MIGRATIONS, migrations)
    (migrations / "versions" / "r9999_later.py").write_text(_MIGRATION)
    monkeypatch.setattr(migrate, "MIGRATIONS", migrations)
    monkeypatch.setattr(migrate, "REVISIONS", (*migrate.REVISIONS, LATER))
    monkeypatch.setattr(migrate, "HEAD", LATER)
    return migrations


def stamp(location: Location, revision: str) -> None:
    """Mark the tables as those of another layout."""
    database = connect(location)
    with database.writer.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = :it"), {"it": revision})
    database.close()
