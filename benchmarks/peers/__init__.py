"""What a user could pick instead of us: every peer is a group of processes that wait, idle, until they are measured."""
