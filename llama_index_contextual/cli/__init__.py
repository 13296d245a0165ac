"""The command line, `llama-index-contextual`."""
