"""The ground floor: small mechanisms that every room uses. It imports the standard library, numpy, msgspec and rich."""
