"""Embeddings: a local model without key and network, and batching within the limits of providers."""
