"""`slipstream server` as a process: command line, configuration files, log, wire trace."""
