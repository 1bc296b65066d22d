"""The annotation side: captions the policy meets go in, labels from a language model come out.

`store.AnnotationStore` owns captions, leases and labels; `annotator.Annotator` takes leases and asks a language model;
the reward side reads `messages.LabelDelta`s. Nothing is imported here, so that a process pays only for the part it
uses.
"""
