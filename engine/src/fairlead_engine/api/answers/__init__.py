"""A model's text → the parts that clients get: content, reasoning and calls of tools."""
