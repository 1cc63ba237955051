"""Who is who, and the certificates that prove it."""
