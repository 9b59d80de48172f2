"""Every defense on one frontier: in training, alone and behind the veil, and of the scores."""
