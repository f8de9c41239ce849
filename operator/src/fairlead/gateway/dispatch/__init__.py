"""A request's way to a replica: pool, ticket in line, and attempts."""
