"""Prompts as routing sees them: their fields, read and made into token ids by the model's own tokenizer."""
