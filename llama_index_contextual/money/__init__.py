"""Prices, token counts, spending limits and receipts."""
