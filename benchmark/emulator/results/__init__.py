"""What a run measured, and the files that say so."""
