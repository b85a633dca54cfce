"""Database, migrations, transaction, recorder, blobs and keys; nothing of any capability."""
