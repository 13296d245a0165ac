"""Projects: isolated knowledge bases in a root folder."""
