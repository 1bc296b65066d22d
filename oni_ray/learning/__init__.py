"""From fragments to gradients: returns, the intrinsic-reward step, and one learner a file."""
