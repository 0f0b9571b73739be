"""Repeats the epochs of an ordinary loader after a resume, with the random numbers of an uninterrupted job."""
