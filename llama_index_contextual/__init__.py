"""Contextual Retrieval for LlamaIndex: every chunk is situated in its document before it is embedded and indexed."""
