"""Work on deltas: create, apply, verify, squash, show."""
