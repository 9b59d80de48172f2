"""What survives: workers that are killed, requests that are repeated."""
