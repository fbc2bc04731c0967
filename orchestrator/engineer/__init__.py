"""Engineers: who writes the next environment configuration from evidence."""
