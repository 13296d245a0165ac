"""Answers from passages: engines, citations that are checked, guards."""
