"""What the logprobs of a language model tell."""
