"""How well a model predicts text, and how far a compressed one is from its source."""
