"""Kept fixes as a diff against the user's own source, or in words where a diff would be unsafe."""
