"""How ranks wait for each other: semaphores, the control block they lie in, and the barrier."""
