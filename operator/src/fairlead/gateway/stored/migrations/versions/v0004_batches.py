"""Batches, and answers of their lines."""

import sqlalchemy as sql
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Creates both tables."""
    op.create_table(
        "batches",
        sql.Column("id", sql.String(80), primary_key=True),
        sql.Column("owner", sql.Text, nullable=False, index=True),
        sql.Column("endpoint", sql.String(80), nullable=False),
        sql.Column("input_file_id", sql.String(80), nullable=False, index=True),
        sql.Column("completion_window", sql.String(40), nullable=False),
        sql.Column("metadata", sql.Text),
        sql.Column("output_seconds", sql.Double),
        sql.Column("created_at", sql.Double, nullable=False),
        sql.Column("expires_at", sql.Double, nullable=False),
        sql.Column("status", sql.String(20), nullable=False, index=True),
        sql.Column("errors", sql.Text),
        sql.Column("total", sql.Integer, nullable=False),
        sql.Column("completed", sql.Integer, nullable=False),
        sql.Column("failed", sql.Integer, nullable=False),
        sql.Column("output_file_id", sql.String(80)),
        sql.Column("error_file_id", sql.String(80)),
        sql.Column("in_progress_at", sql.Double),
        sql.Column("finalizing_at", sql.Double),
        sql.Column("completed_at", sql.Double),
        sql.Column("failed_at", sql.Double),
        sql.Column("expired_at", sql.Double),
        sql.Column("cancelling_at", sql.Double),
        sql.Column("cancelled_at", sql.Double),
        sql.Column("runner", sql.String(40), nullable=False),
        sql.Column("lease_until", sql.Double, nullable=False),
    )
    op.create_table(
        "batch_answers",
        sql.Column("batch_id", sql.String(80), primary_key=True),
        sql.Column("number", sql.Integer, primary_key=True),
        sql.Column("is_error", sql.Boolean, nullable=False),
        sql.Column("data", sql.LargeBinary, nullable=False),
    )


def downgrade() -> None:
    """Drops both."""
    op.drop_table("batch_answers")
    op.drop_table("batches")
