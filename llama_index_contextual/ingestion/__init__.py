"""From inputs to a published version."""
