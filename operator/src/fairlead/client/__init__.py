"""What talks to a gateway as a client does: an OpenAI SSE client, and a load generator on top of it."""
