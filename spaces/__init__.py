"""Apps of the project, one folder each, installed as `saliency_bench.spaces`."""

# An editable installation puts the checkout on the path, and this folder has the name of a Hub package that Gradio
# imports if it exists. Imported as `spaces`, this is not that package, and raises the error that Gradio expects.
if __name__ == "spaces":
    raise ImportError("the folder of the Spaces of saliency-bench, not the package `spaces` of the Hub")
