"""Responses and their items."""

import sqlalchemy as sql
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Creates both tables."""
    op.create_table(
        "responses",
        sql.Column("id", sql.String(80), primary_key=True),
        sql.Column("owner", sql.Text, nullable=False),
        sql.Column("previous_id", sql.String(80)),
        sql.Column("status", sql.String(20), nullable=False),
        sql.Column("body", sql.Text, nullable=False),
        sql.Column("expires_at", sql.Double, nullable=False, index=True),
        sql.Column("touched_at", sql.Double, nullable=False),
    )
    op.create_table(
        "response_items",
        sql.Column("response_id", sql.String(80), primary_key=True),
        sql.Column("position", sql.Integer, primary_key=True),
        sql.Column("id", sql.String(200), nullable=False, index=True),
        sql.Column("is_output", sql.Boolean, nullable=False),
        sql.Column("data", sql.Text, nullable=False),
    )


def downgrade() -> None:
    """Drops both."""
    op.drop_table("response_items")
    op.drop_table("responses")
