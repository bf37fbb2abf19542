"""The kinds of deltas: one file each, and a line in `KINDS`."""
