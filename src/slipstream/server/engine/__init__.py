"""The server as a deterministic state machine: parsed commands and the time go in, bytes for clients come out."""
