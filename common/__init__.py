"""Mechanisms that all packages of iotwin use. It imports only the standard library, numpy, msgspec, rich and crc32c."""
