"""What we compress also runs: a small decoder over packed weights."""
