"""Tests of the Workbench in a browser."""
