"""Read PDF files as text with pages and headings, using one of two engines."""
