"""Ray: what a run needs of it, joining or starting it, and the actors beside the learner."""
