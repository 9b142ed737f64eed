"""Hostile files, by format: each module's `cases` yields Case values. scripts/hostile_files.py writes and runs them."""
