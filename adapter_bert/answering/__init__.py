"""Answers rows of trained tasks, many tasks in one batch."""
