"""Files of clients."""

import sqlalchemy as sql
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Creates their table."""
    op.create_table(
        "files",
        sql.Column("id", sql.String(80), primary_key=True),
        sql.Column("owner", sql.Text, nullable=False, index=True),
        sql.Column("purpose", sql.String(40), nullable=False),
        sql.Column("filename", sql.Text, nullable=False),
        sql.Column("num_bytes", sql.BigInteger, nullable=False),
        sql.Column("created_at", sql.Double, nullable=False),
        sql.Column("expires_at", sql.Double, nullable=False, index=True),
        sql.Column("is_ready", sql.Boolean, nullable=False),
    )


def downgrade() -> None:
    """Drops it."""
    op.drop_table("files")
