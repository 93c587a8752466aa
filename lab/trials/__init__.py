"""Kills and damages runs, and feeds readers, for as long as one likes."""
