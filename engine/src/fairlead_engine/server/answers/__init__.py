"""What models write → what clients are told apart from the text: reasoning, and calls of tools."""
