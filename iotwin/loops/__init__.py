"""Work that needs several rooms: demo, twin, experiment, emulated run."""
