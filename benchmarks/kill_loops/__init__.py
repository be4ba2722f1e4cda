"""What is killed at any moment, started again and compared with what was left alone; benchmarks/kills.py says how."""
