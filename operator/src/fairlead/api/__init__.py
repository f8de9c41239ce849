"""What users write and what they read back: LLMDeployment as Python types, and every name two files must agree on."""
