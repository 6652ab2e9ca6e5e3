"""Encoders of text: the one that defines what is right, and faster ones that must agree with it."""
