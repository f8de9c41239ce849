"""OpenAI's API as the gateway speaks it: paths, bodies, lists and errors. Pure."""
