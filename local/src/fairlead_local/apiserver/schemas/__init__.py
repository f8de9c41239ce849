"""Schemas of the built-in kinds, and what the API server does to each before storing it. The kinds themselves are in
`resources.py`."""
