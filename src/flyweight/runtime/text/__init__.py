"""Text for models: chat templates, tokenizers, and tokens as text that can be shown."""
