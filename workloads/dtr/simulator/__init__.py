"""Simulates dynamic tensor rematerialization from logs of models, without torch."""
