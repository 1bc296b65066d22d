"""Online intrinsic rewards from a language model, as a system of Ray actors."""

__version__ = "0.1.0"
