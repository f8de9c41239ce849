"""The built-in kinds local mode serves, and what the API server does to each before storing it."""
