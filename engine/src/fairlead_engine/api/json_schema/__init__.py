"""Clients' JSON schemas → schemas in the form that grammars support. Pure: knows nothing of llguidance."""
