"""PDF files: their layout, from either engine, as text with pages and headings."""
