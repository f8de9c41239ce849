"""Tables of the store: responses, the items that each was given and wrote, events of those streamed in the
background; files of clients. Changes need a migration beside."""

import sqlalchemy as sql

metadata = sql.MetaData()

responses = sql.Table(
    "responses",
    metadata,
    sql.Column("id", sql.String(80), primary_key=True),
    sql.Column("owner", sql.Text, nullable=False),  # the name of an API key's client; "" where there are no keys
    sql.Column("previous_id", sql.String(80)),  # the turn before; NULL = the first
    sql.Column("status", sql.String(20), nullable=False),
    sql.Column("body", sql.Text, nullable=False),  # the response as JSON, without its items
    sql.Column("expires_at", sql.Double, nullable=False, index=True),  # Unix time, as below
    sql.Column("touched_at", sql.Double, nullable=False),  # when a gateway last said that it works on it
)

items = sql.Table(
    "response_items",
    metadata,
    sql.Column("response_id", sql.String(80), primary_key=True),
    sql.Column("position", sql.Integer, primary_key=True),
    sql.Column("id", sql.String(200), nullable=False, index=True),
    sql.Column("is_output", sql.Boolean, nullable=False),
    sql.Column("data", sql.Text, nullable=False),  # JSON
)

events = sql.Table(
    "response_events",
    metadata,
    sql.Column("response_id", sql.String(80), primary_key=True),
    sql.Column("number", sql.Integer, primary_key=True),  # of the first event in the row; -1 = the log's beginning
    sql.Column("data", sql.LargeBinary, nullable=False),  # as `event_log.packed` writes them
)

files = sql.Table(
    "files",
    metadata,
    sql.Column("id", sql.String(80), primary_key=True),
    sql.Column("owner", sql.Text, nullable=False, index=True),
    sql.Column("purpose", sql.String(40), nullable=False),
    sql.Column("filename", sql.Text, nullable=False),
    sql.Column("num_bytes", sql.BigInteger, nullable=False),
    sql.Column("created_at", sql.Double, nullable=False),
    sql.Column("expires_at", sql.Double, nullable=False, index=True),
    sql.Column("is_ready", sql.Boolean, nullable=False),  # whether all of its bytes are in the file store
)
