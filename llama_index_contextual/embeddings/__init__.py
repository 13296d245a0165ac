"""Embedding models that need no key and no network, and batching within the providers' limits."""
