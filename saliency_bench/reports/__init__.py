"""The page of a run: reads files, never the engine."""
