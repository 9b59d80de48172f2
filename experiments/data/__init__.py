"""The datasets of the experiments: how records are parted, and where they are fetched from."""
