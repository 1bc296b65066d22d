"""The same stages as online training, one after the other: collect captions, annotate them, fit a reward to the labels.

Labels have one format for both, so an online run can start from labels made offline and the other way round.
"""
