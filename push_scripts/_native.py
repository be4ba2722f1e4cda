"""Generate the two requests that a namespace's owner must send before the Hub shows its own leaderboards."""

from collections.abc import Sequence

FRAMEWORKS = "https://github.com/huggingface/huggingface.js, file packages/tasks/src/eval.ts"
ENTRY = """\
	"saliency-bench": {
		name: "saliency-bench",
		description:
			"saliency-bench measures whether the saliency maps of image classifiers can be trusted.",
		url: "URL-OF-THE-REPOSITORY",
	},"""


def requests(namespace: str, datasets: Sequence[str]) -> str:
    """Return the text of both requests, ready to send.

    Args:
        namespace: Namespace on the Hub.
        datasets: Names of the datasets in the namespace that have a test split for a leaderboard.
    """
    listed = "\n".join(f"- https://huggingface.co/datasets/{namespace}/{name}" for name in datasets)
    pushes = "\n".join(
        f"  saliency-bench push dataset FOLDER-OF-{name} --namespace {namespace} --eval-yaml" for name in datasets
    )
    return f"""\
The Hub's own leaderboards require two requests.

1. Open a pull request to {FRAMEWORKS}: "Add saliency-bench to EVALUATION_FRAMEWORKS"

{ENTRY}

2. When the pull request is merged, add eval.yaml to the datasets:

{pushes}

   Then open a discussion on the page of each dataset: "Please add this dataset to the benchmarks"

Hello, we would like this dataset to be listed as a benchmark, so that scores in the .eval_results folders of model
repositories appear on its page. The dataset has an eval.yaml, and its framework, saliency-bench, is in
EVALUATION_FRAMEWORKS. The tasks are the accuracy of image classifiers and the quality of their Grad-CAM maps
(insertion, and mIoU for datasets with masks). Scores of the first models are available: `push model --eval-results`
writes them, and all records are in
https://huggingface.co/datasets/{namespace}/results. The datasets are:
{listed}
"""
