"""Money: the price of a model, the tokens of calls, the account of a run, and the receipts of what was paid."""
