"""Run by Alembic with the connection that the store gave it."""

from alembic import context

from fairlead.gateway.stored.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
