"""An explainer, a metric, a dataset and a suite for saliency-bench."""
