"""OpenAI requests as gateway and engine read them: prompts, chat rendering, bounds, translations."""
