"""Stored responses of `/v1/responses`: a database that gateways share, and what clients ask of it."""
