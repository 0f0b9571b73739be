"""What of a script is saved, and how: found by a walk, encoded, put into a store, and put back."""
