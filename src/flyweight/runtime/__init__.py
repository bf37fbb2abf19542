"""Running a model: what a forward pass needs beyond its weights."""
