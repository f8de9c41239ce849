"""Who is served: API keys, and the check of a request's."""
