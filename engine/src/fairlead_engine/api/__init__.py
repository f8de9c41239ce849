"""OpenAI-style requests in, answers out: endpoints, schemas, prompts, answers, structured output."""
