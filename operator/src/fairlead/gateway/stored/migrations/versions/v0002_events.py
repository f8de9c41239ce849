"""Events of responses that are streamed in the background."""

import sqlalchemy as sql
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Creates their table."""
    op.create_table(
        "response_events",
        sql.Column("response_id", sql.String(80), primary_key=True),
        sql.Column("number", sql.Integer, primary_key=True),
        sql.Column("data", sql.LargeBinary, nullable=False),
    )


def downgrade() -> None:
    """Drops it."""
    op.drop_table("response_events")
