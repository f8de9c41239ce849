"""What an API server must say about LLMDeployments: cases, nearly valid specs, and verdicts that compare servers."""
