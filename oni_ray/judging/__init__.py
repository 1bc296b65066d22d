"""Measures a language model as a judge of captions (`oni-ray judge`): how right, sure and consistent, at what cost.

Questions go through the same prompts and the same `Questioner` as in training, so what is measured is what trains.
"""
