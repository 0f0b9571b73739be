"""What a job must keep to go on where it stopped."""
