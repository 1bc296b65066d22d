"""Judging policies: playing whole episodes of a checkpoint, statistics with intervals, and runs side by side."""
