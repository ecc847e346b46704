"""Inside the user's training loop."""
