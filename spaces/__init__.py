"""Web apps (Hub Spaces) of the project, one folder each, installed as `saliency_bench.spaces`."""

# Gradio imports the Hub's package `spaces` if it is installed. With an editable installation, the checkout is on the
# path, so that import finds this folder instead. Raise the error that Gradio expects for a missing package.
if __name__ == "spaces":
    raise ImportError("this is the folder of saliency-bench's Spaces, not the Hub's package `spaces`")
