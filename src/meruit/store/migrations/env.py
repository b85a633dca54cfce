"""Alembic's entry point: runs our migrations inside the transaction that `store.migrate` began."""

from alembic import context

context.configure(connection=context.config.attributes["connection"], transactional_ddl=True)
with context.begin_transaction():
    context.run_migrations()
