"""UQFF, mistral.rs's format, in both generations."""
