"""Answers from passages: query and chat engines, checked citations, guards."""
