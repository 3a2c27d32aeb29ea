"""Authentication and authorization: users, permissions, JWTs, account limits."""
