"""Batches of requests, `/v1/batches`: lines of a file, run in spare capacity, with answers in files."""
