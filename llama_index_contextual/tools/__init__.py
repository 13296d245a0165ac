"""Tools for agents to explore the documents of a project: `search`, `grep`, `outline` and `read`."""
