"""A silo's hub."""
