"""SQUIZD: one self-describing file of compressed weights."""
