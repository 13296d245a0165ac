"""Test support: an OpenAI-compatible HTTP provider on the loopback interface."""
