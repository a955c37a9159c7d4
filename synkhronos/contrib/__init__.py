"""Optional additions: asynchronous steps, and predictions of performance on more ranks."""
