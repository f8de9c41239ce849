"""Alembic's scripts: one version of the tables after the other, applied by gateways when they start."""
