"""Mechanisms that all packages of iotwin use. This package imports only the standard library, numpy, msgspec, rich and crc32c."""
