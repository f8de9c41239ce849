"""Towards clients: connections, the heads and bodies of requests, and answers that must be read."""
