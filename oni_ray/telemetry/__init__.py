"""What a run shows and leaves behind: metrics, progress, report."""
