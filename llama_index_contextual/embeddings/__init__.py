"""Embedding models, including a local one that needs no key or network, and batching within providers' limits."""
