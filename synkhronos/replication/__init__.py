"""What the ranks hold of the program's functions and shared variables, and how it gets there."""
