"""Tests of names of images written by programs, and of the images they refer to."""

import pytest

from saliency_bench.utils.picture_names import PictureNames

PICTURES = ["a/1.jpg", "b/1.jpg", "b/2.png", "b/my photo (3).jpg", "0a1b2c3d-4.png", "4.png", "ü%5.png"]


@pytest.mark.parametrize(("given", "pictures"), [
    ("a/1.jpg", ["a/1.jpg"]),
    ("1.jpg", ["a/1.jpg", "b/1.jpg"]),
    ("images/b/1.jpg", ["b/1.jpg"]),
    ("images\\b\\1.jpg", ["b/1.jpg"]),
    ("./a/1.JPG", ["a/1.jpg"]),
    ("C:\\data\\b\\2.png", ["b/2.png"]),
    ("/home/someone/2.png", ["b/2.png"]),
    ("s3://bucket/deep/2.png", ["b/2.png"]),
    ("https://example.org/x/2.png?token=a/4.png#top", ["b/2.png"]),
    ("/data/local-files/?d=photos/2.png", ["b/2.png"]),
    ("/data/local-files/?d=photos%2Fb%2F2.png", ["b/2.png"]),
    ("/data/upload/3/ab12cd34-2.png", ["b/2.png"]),
    ("b/my%20photo%20%283%29.jpg", ["b/my photo (3).jpg"]),
    ("images/ab12cd34-my_photo_3.jpg", ["b/my photo (3).jpg"]),
    ("0a1b2c3d-4.png", ["0a1b2c3d-4.png"]),
    ("ab12cd34-4.png", ["4.png"]),
    ("ü%5.png", ["ü%5.png"]),
    ("u\u0308%5.png", ["ü%5.png"]),  # as macOS stores it
    ("ab12cd34-u\u03085.png", ["ü%5.png"]),
    ("%C3%BC%255.png", ["ü%5.png"]),
    ("ab12cd3-2.png", []),
    ("3.png", []),
    ("", []),
    ("..", []),
    ("http://[", []),
])  # fmt: skip
def test_name_refers_to_expected_pictures(given, pictures):
    assert PictureNames(PICTURES).meant(given) == pictures


def test_exact_path_wins_over_other_matches():
    names = PictureNames(["val/1.jpg", "2.jpg", "3.jpg"])
    given = ["train/1.jpg", "val/1.jpg", "a/2.jpg", "b/2.jpg", "x/3.jpg"]
    meant = names.resolved(given)
    assert [meant[name].picture for name in given] == ["", "val/1.jpg", "", "", "3.jpg"]
    assert [meant[name].lacks for name in given[:4]] == ["no image", "", *["no image of its own"] * 2]


@pytest.mark.parametrize(("given", "pictures", "picture"), [
    (["dog/1.jpg"], ["cat/1.jpg", "dog/2.jpg"], ""),  # dog/1.jpg is missing, or in a file that is not read
    (["dog/1.jpg", "cat/2.jpg"], ["cat/1.jpg", "cat/2.jpg"], ""),
    (["C:\\x\\dog\\1.jpg"], ["cat/1.jpg", "dog/2.jpg"], ""),
    (["dog/1.jpg"], ["1.jpg", "dog/2.jpg"], ""),
    (["train/images/1.jpg"], ["valid/images/1.jpg", "train/images/2.jpg"], ""),
    (["/data/upload/3/0a1b2c3d-1.jpg"], ["7/1.jpg", "3/2.jpg"], "7/1.jpg"),  # of project 3
    (["/x/cat/1.jpg"], ["train/cat/1.jpg", "train/dog/1.jpg"], "train/cat/1.jpg"),
    (["1.jpg", "cat/2.jpg"], ["cat/1.jpg", "cat/2.jpg"], "cat/1.jpg"),
    (["train/1.jpg"], ["train/cat/1.jpg", "valid/cat/1.jpg"], "train/cat/1.jpg"),
])  # fmt: skip
def test_folder_names_decide_which_picture_matches(given, pictures, picture):
    assert PictureNames(pictures).resolved(given)[given[0]].picture == picture
