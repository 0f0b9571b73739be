"""DLRM on Criteo Terabyte's binary form: the recommendation training job, on CPUs or GPUs."""
