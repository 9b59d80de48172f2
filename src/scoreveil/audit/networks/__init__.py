"""The networks that a study trains: the paper's classifier, and the one that redraws its inputs."""
