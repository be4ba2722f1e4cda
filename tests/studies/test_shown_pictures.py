"""Tests of images on pages: they are upright and have 8 bits, are created once, and are served as files."""

import tracemalloc
from io import BytesIO

import numpy as np
import pytest
from datasets import Dataset, Features, Value
from datasets import Image as ImageFeature
from pages import client_of, joined, study_of
from PIL import Image

from saliency_bench.data.annotations import checksum
from saliency_bench.spaces.annotate.app import create_app
from saliency_bench.studies import shown_pictures
from saliency_bench.studies.images import StudyImages
from saliency_bench.studies.shown_pictures import shown, size_of
from saliency_bench.utils.pictures import UnreadableError

PIXELS = np.random.default_rng(0).integers(0, 256, (30, 50, 3), dtype=np.uint8)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SALIENCY_BENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def encoded(image, kind="png", **options):
    buffer = BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def turned(kind="jpeg", pixels=PIXELS):
    """Write a photograph of an upright phone. The stored size is 30 x 50, and the displayed size is 50 x 30."""
    image = Image.fromarray(pixels)
    exif = image.getexif()
    exif[0x0112] = 6
    return encoded(image, kind, exif=exif)


@pytest.mark.parametrize(("data", "size"), [
    (turned(), (50, 30)), (encoded(Image.fromarray(PIXELS[..., 0])), (30, 50)),
    (encoded(Image.fromarray(PIXELS).convert("RGBA")), (30, 50)),
    (encoded(Image.fromarray(PIXELS).convert("P")), (30, 50)),
    (encoded(Image.fromarray(PIXELS).convert("CMYK"), "jpeg"), (30, 50)),
    (encoded(Image.fromarray(PIXELS[..., 0].astype(np.uint16) * 40)), (30, 50)),
    (turned("png", PIXELS[..., 0].astype(np.uint16) * 40), (50, 30)),
], ids=["turned", "grey", "alpha", "palette", "cmyk", "16-bit", "16-bit turned"])  # fmt: skip
@pytest.mark.parametrize("lossless", [2**20, 100])
def test_unusual_images_become_upright_rgb_files(data, size, lossless, monkeypatch):
    monkeypatch.setattr(shown_pictures, "LOSSLESS", lossless)
    made = shown(data)
    with Image.open(made.path) as image:
        assert (image.mode, image.size, len(image.getexif())) == ("RGB", (size[1], size[0]), 0)
        assert image.format == ("PNG" if lossless > 1500 else "JPEG")
    assert (made.height, made.width) == size == size_of(data), "the size follows from the header"
    assert made.sha256 == checksum({"bytes": data})


@pytest.mark.parametrize("kind", ["jpeg", "png"])
def test_upright_rgb_file_is_served_unchanged(kind):
    data = encoded(Image.fromarray(PIXELS), kind)
    assert (shown(data).path.read_bytes(), shown(data).media) == (data, f"image/{kind}")


def test_large_16_bit_image_takes_little_memory():
    """Test a small file with 60 million pixels. Each pixel may take a few bytes of memory, but not 32."""
    values = np.arange(2000, dtype=np.uint16)[:, None].repeat(1000, axis=1)
    data = encoded(Image.fromarray(values))
    tracemalloc.start()
    try:
        made = shown(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (made.height, made.width) == values.shape
    assert peak < 18 * values.size


def test_16_bit_image_is_scaled_to_its_value_range():
    values = np.linspace(30_000, 31_000, 10_000).reshape(100, 100).astype(np.uint16)
    values[0, 0] = 65_535  # a bright marker in a corner, as in X-rays, does not make other pixels black
    pixels = np.asarray(Image.open(shown(encoded(Image.fromarray(values))).path))
    assert (pixels[..., 0].min(), pixels[50, :, 0].mean().round()) == (0, pytest.approx(128, abs=2))
    flat = np.full((4, 4), 7, np.uint16)
    assert np.asarray(Image.open(shown(encoded(Image.fromarray(flat))).path)).max() <= 255


@pytest.mark.parametrize("data", [b"", b"no picture", encoded(Image.fromarray(PIXELS))[:200]])
def test_invalid_image_raises_unreadable_error(data, cache):
    with pytest.raises(UnreadableError):
        shown(data)
    assert not list(cache.rglob("*.png"))


def test_shown_image_is_cached_until_its_file_is_lost(monkeypatch):
    first = shown(turned())
    with monkeypatch.context() as patch:
        patch.setattr(shown_pictures, "_made", None)  # the image must not be created again
        assert shown(turned()) == first
    first.path.unlink()
    assert shown(turned()).path.is_file()


@pytest.fixture
def rows():
    pictures = [turned(), encoded(Image.fromarray(PIXELS)), b"damaged"]
    features = Features({"image_id": Value("string"), "image": ImageFeature(decode=False)})
    cells = [{"bytes": data, "path": None} for data in pictures]
    return Dataset.from_dict({"image_id": ["phone.jpg", "plain.png", "damaged.jpg"], "image": cells}, features=features)


def test_prepare_reports_unreadable_images(rows, cache):
    assert StudyImages(rows).prepare(progress=False) == {"damaged.jpg": "not an image"}
    assert len(list(cache.rglob("*.json"))) == 2


def test_matching_etag_returns_304(rows, tmp_path):
    client = client_of(create_app(study_of(tmp_path, rows)))
    key = joined(client)
    client.get("/api/state", headers=key)
    first = client.get("/api/image", params={"unit": "phone.jpg"}, headers=key)
    assert (first.status_code, first.headers.get("content-encoding")) == (200, None)
    assert Image.open(BytesIO(first.content)).size == (30, 50)
    again = client.get(
        "/api/image", params={"unit": "phone.jpg"}, headers=key | {"If-None-Match": first.headers["etag"]}
    )
    assert (again.status_code, again.content) == (304, b"")
    other = client.get("/api/image", params={"unit": "phone.jpg"}, headers={"If-None-Match": first.headers["etag"]})
    assert other.status_code == 401, "a cached image needs a key, too"
