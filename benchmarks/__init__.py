"""What the system costs, as ratios within one run on one machine: `python -m benchmarks` or `make bench`."""
