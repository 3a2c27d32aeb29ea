"""Who may connect and what they may do: users, permissions, JWTs, account limits."""
