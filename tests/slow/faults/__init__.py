"""Tests that damage files, kill processes and cut the power, and check that projects survive."""
