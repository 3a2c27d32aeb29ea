"""Short programs to run and to copy from."""
