"""Modules with the names that scripts written for CheckFreq's own code import."""
