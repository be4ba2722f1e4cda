"""Work that is killed at any moment, restarted, and compared with an undisturbed run; see benchmarks/kills.py."""
