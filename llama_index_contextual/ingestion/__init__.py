"""Ingestion of files, Documents and nodes into a new version."""
