"""The command line: arguments in, text out. `main.COMMANDS` lists what there is."""
