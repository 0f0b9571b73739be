"""The loops that use several rooms: demo, twin, experiment, emulated run."""
