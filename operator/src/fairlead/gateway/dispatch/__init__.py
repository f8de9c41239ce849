"""A request's way to a replica: its model's pool and line, its turn, and the attempt."""
