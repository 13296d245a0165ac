"""Projects, which are isolated knowledge bases in a root folder."""
