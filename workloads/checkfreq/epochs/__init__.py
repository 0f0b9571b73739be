"""Lets a resumed job repeat an epoch of an ordinary data loader with the random numbers of the interrupted job."""
