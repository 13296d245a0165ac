"""Answer questions from passages: query and chat engines, citation checks and guards."""
