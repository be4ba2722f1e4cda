"""Define pytest fixtures of small datasets and models to publish."""

import numpy as np
import pytest
from PIL import Image


@pytest.fixture(scope="session")
def source(tmp_path_factory):
    """Return a source of 60 pet pictures of six breeds; one GIF and one PNG with alpha become lossless PNG."""
    root, dice = tmp_path_factory.mktemp("source") / "pets", np.random.default_rng(0)
    for part in ("images", "annotations/trimaps"):
        (root / part).mkdir(parents=True)
    breeds = {"Abyssinian": 1, "beagle": 5, "Bengal": 6, "boxer": 9, "pug": 26, "Siamese": 33}
    rows = []
    for index in range(60):
        breed = list(breeds)[index % 6]
        name = f"{breed}_{index}"
        picture = Image.fromarray(dice.integers(0, 256, (3, 4, 3), dtype=np.uint8)).resize((32, 24))
        kind = {7: "GIF", 9: "PNG"}.get(index, "JPEG")
        picture.convert({"GIF": "P", "PNG": "RGBA"}.get(kind, "RGB")).save(root / f"images/{name}.jpg", kind)
        trimap = np.full((24, 32), 2, np.uint8)
        trimap[4:14, 8 : 20 + index % 7] = 1
        Image.fromarray(trimap).save(root / f"annotations/trimaps/{name}.png")
        rows.append(f"{name} {breeds[breed]} 1 1")
    (root / "annotations/list.txt").write_text("\n".join(rows))
    return root


@pytest.fixture(scope="session")
def pets(source, tmp_path_factory):
    import saliency_bench as sb

    return sb.build("pet-xai", tmp_path_factory.mktemp("built") / "pets", source, progress=False)


@pytest.fixture(scope="session")
def closed(source, tmp_path_factory):
    """Return the pets with a licence that does not allow redistribution of the images."""
    import saliency_bench as sb
    from saliency_bench.hub_builders import pet_xai

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pet_xai, "REDISTRIBUTE", False)
        return sb.build("pet-xai", tmp_path_factory.mktemp("built") / "closed", source, progress=False)


@pytest.fixture(scope="session")
def model(pets, tmp_path_factory):
    """Return a checkpoint as written by `saliency-bench train`."""
    from transformers import ResNetConfig

    import saliency_bench as sb

    out = tmp_path_factory.mktemp("models") / "resnet-18-pet-xai"
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1], layer_type="basic")
    return sb.train(dataset=str(pets), model=config, out=out, epochs=1, size=32, progress=False)
