"""The pieces of the long campaign (tools/sabotage.py), each of which `make test` runs in a short form."""
