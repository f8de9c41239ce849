"""A request's way to a replica: its model's pool, its ticket in line, and the attempts."""
