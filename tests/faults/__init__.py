"""A project on disk survives what happens to files, processes and machines: proved by breaking it."""
