"""Read phases and parts of steps from the logs of a job."""
