"""Targets: what machines other than this one do with compressed weights. A target is data with its sources, and a planner."""
