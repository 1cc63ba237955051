"""What sites send each other."""
