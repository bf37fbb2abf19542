"""The Apple Neural Engine: which weights it streams compressed, which it folds to dense, and what that costs."""
