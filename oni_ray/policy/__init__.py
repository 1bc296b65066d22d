"""The policy network and its RLModule."""
