"""Test the pictures on the pages of metrics: the score of each map appears before the usage section."""

import pandas as pd
from site_pages import site_page

page = site_page("metrics")


def test_a_page_has_the_scores_of_each_map():
    records = pd.DataFrame([
        ("coffee", "gradcam", 0.25), ("coffee", "random", 0.5), ("shape-7", "gradcam", 1.0), ("coffee", "centre", None),
    ], columns=["image_id", "explainer", "value"])  # fmt: skip
    text = page.with_picture("# saliency_miou\n\nWhat it is.\n\n## How to use\n\nSo.\n", "saliency_miou", records)
    assert text.startswith("# saliency_miou\n\nWhat it is.\n\n## On a photograph and on a drawing\n\n![maps of ")
    assert "\n| miou | gradcam | integrated_gradients | rise | centre | random |\n" in text
    assert "\n| coffee | 0.25 | – | – | – | 0.50 |\n| the drawing | 1.00 | – | – | – | – |\n" in text
    assert "higher is better" in text
    assert text.endswith("\n## How to use\n\nSo.\n")


def test_metrics_that_ask_people_or_train_networks_are_not_measured_for_a_picture():
    names = page.measured()
    assert {"saliency_miou", "saliency_energy", "saliency_insertion", "saliency_road"} <= set(names)
    assert not {"saliency_roar", "saliency_crowd_auc", "saliency_cauc"} & set(names)
