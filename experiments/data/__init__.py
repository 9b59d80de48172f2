"""The datasets of the experiments: read, parted, and fetched from where they are published."""
