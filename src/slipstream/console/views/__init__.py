"""The views of the console: for each, the addresses of the API that its page asks."""
