"""Gradio apps of the project, one folder each, installed as `saliency_bench.spaces`."""

# An editable installation puts the checkout on the path, and this folder goes by the name of a package of the Hub that
# Gradio imports if it is there. As `spaces` this is not that package, and says so in the way Gradio looks for.
if __name__ == "spaces":
    raise ImportError("the folder of the Spaces of saliency-bench, not the package `spaces` of the Hub")
