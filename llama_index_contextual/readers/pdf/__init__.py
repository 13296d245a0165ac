"""Reading of PDF files with one of two engines, as text with pages and headings."""
