"""From the batch that fits to the batch that learns: pure decisions, no torch, no device."""
