"""How arrays move between ranks: the collectives, over one medium each."""
