"""Papers that describe datasets, with authors, title, year and URL, for the constant `PAPER` of a builder."""

SALIENCY_BENCH = (
    "Zhang et al., Saliency-Bench: A Comprehensive Benchmark for Evaluating Visual Explanations, 2023, "
    "https://arxiv.org/abs/2310.08537"
)
QUANTITATIVE = (
    "Li et al., Quantitative Evaluations on Saliency Methods: An Experimental Study, 2020, "
    "https://arxiv.org/abs/2012.15616"
)
CROWDSOURCING = (
    "Lu et al., Crowdsourcing Evaluation of Saliency-based XAI Methods, 2021, https://arxiv.org/abs/2107.00456"
)
RFXG = (
    "Elisha et al., Rethinking Saliency Maps: A Cognitive Human Aligned Taxonomy and Evaluation Framework for "
    "Explanations, 2025, https://arxiv.org/abs/2511.13081"
)
