"""Tables of the store: responses, the items that each was given and wrote, events of those streamed in the
background; files of clients; batches, with answers that are not in files yet. Changes need a migration beside."""

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

batches = sql.Table(
    "batches",
    metadata,
    sql.Column("id", sql.String(80), primary_key=True),
    sql.Column("owner", sql.Text, nullable=False, index=True),
    sql.Column("endpoint", sql.String(80), nullable=False),
    sql.Column("input_file_id", sql.String(80), nullable=False, index=True),
    sql.Column("completion_window", sql.String(40), nullable=False),
    sql.Column("metadata", sql.Text),  # JSON
    sql.Column("output_seconds", sql.Double),  # for which files with answers are kept; NULL = the retention
    sql.Column("created_at", sql.Double, nullable=False),
    sql.Column("expires_at", sql.Double, nullable=False),
    sql.Column("status", sql.String(20), nullable=False, index=True),
    sql.Column("errors", sql.Text),  # JSON
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
    sql.Column("runner", sql.String(40), nullable=False),  # the gateway that runs it; empty = none
    sql.Column("lease_until", sql.Double, nullable=False),  # until then nobody else does
)

batch_answers = sql.Table(
    "batch_answers",
    metadata,
    sql.Column("batch_id", sql.String(80), primary_key=True),
    sql.Column("number", sql.Integer, primary_key=True),  # of the line in the input file, from 1
    sql.Column("is_error", sql.Boolean, nullable=False),
    sql.Column("data", sql.LargeBinary, nullable=False),  # a line of the output or error file, compressed
)
