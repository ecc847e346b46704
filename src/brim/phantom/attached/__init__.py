"""What of brim runs inside a job on phantoms."""
