"""Many processes on one shared buffer, killed at random, and the account of what they wrote and read."""
