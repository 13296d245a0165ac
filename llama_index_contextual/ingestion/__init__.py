"""Ingestion: from inputs to a published version."""
