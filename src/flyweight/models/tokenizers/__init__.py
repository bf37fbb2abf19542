"""Tokenizers: the vocabulary that dialects translate, tokenizer.json, and what of it is run."""
