"""HTTP in and out: the OpenAI API, probes, metrics and drain, on top of an engine client. Never imports torch."""
