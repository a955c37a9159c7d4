"""What lives as long as this process: its memory, its keeper, its functions, its session."""
