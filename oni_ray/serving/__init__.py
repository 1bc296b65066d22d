"""Serving of the language model that labels captions: its weights, its Ray Serve application, its deployment."""
