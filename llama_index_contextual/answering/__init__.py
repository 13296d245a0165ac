"""Query and chat engines that answer questions from passages, with citation checks and guards."""
