"""Projects: isolated knowledge bases in one root folder."""
