"""Embedding models, including a local model that needs no key or network, and batching within providers' limits."""
