"""Entry point of the command line for `python -m llama_index_contextual`."""

from llama_index_contextual.cli.app import main

main()
