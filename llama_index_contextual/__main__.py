"""`python -m llama_index_contextual`: the command line."""

from llama_index_contextual.cli.app import main

main()
