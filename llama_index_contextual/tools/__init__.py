"""Tools with which agents explore the documents of a project: `search`, `grep`, `outline` and `read`."""
