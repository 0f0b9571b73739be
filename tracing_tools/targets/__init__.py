"""What is traced: so far a command and its descendants."""
