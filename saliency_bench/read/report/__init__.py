"""The page of a run and the plots of analyses: reads files, never the engine."""
