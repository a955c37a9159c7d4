"""How commands reach the ranks of a session, and what a rank is: below the launchers, above the transports."""
