"""Experience collection: the fragment and the env runner that fills it."""
