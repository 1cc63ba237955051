"""Run directories: what they hold, and the only code that writes and reads their files."""
