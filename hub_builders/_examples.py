"""Small sources in the raw layout of each dataset, drawn by the package: what a folder must look like.

For the tests and for the page of samples; the pictures are those of shapes-xai or phantoms, no one's data.
"""

import csv
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from saliency_bench.hub_builders._source import library
from saliency_bench.hub_builders.shapes_xai import drawn

SIDE = 64
SERIES = "1.3.6.1.4.1.14519.5.2.1.6279.6001.{}"


def write(name: str, folder: Path, count: int = 6, side: int = SIDE) -> Path:
    """A source of the dataset `name` ("gender-xai", "gender-xai release" ...) with `count` samples or a few more."""
    WRITERS[name](folder, count, side)
    return folder


def _picture(path: Path, index: int, side: int) -> np.ndarray:
    """Save drawing `index` of shapes-xai; its mask, bool (side, side)."""
    sample = drawn(index, side)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(sample["image"]).save(path, quality=95)
    return sample["mask"]


def _text(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")


def _save(path: Path, values: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values).save(path)


def pet(root: Path, count: int, side: int) -> None:
    rows = ["#Image CLASS-ID SPECIES BREED ID"]
    for index in range(count):
        name, number = (("Abyssinian", 1), ("beagle", 5), ("pug", 26))[index % 3]
        mask = _picture(root / f"images/{name}_{index}.jpg", index, side)
        _save(root / f"annotations/trimaps/{name}_{index}.png", np.where(mask, 1, 2).astype(np.uint8))
        box = "".join(f"<{corner}>{value}</{corner}>" for corner, value in zip(BOX, (1, 1, 9, 9), strict=True))
        _text(root / f"annotations/xmls/{name}_{index}.xml", f"<a><object><bndbox>{box}</bndbox></object></a>")
        rows.append(f"{name}_{index} {number} 1 1")
    _text(root / "annotations/list.txt", "\n".join(rows) + "\n")


def voc(root: Path, count: int, side: int) -> None:
    base = root / "VOCdevkit/VOC2012"
    names = [f"2007_{index:06d}" for index in range(count)]
    for index, name in enumerate(names):
        mask = _picture(base / f"JPEGImages/{name}.jpg", index + 8, side)
        values = Image.fromarray(np.where(mask, index % 20 + 1, 0).astype(np.uint8))
        values.putpalette([(89 * n) % 256 for n in range(768)])
        (base / "SegmentationClass").mkdir(exist_ok=True)
        values.save(base / f"SegmentationClass/{name}.png")
    _text(base / "ImageSets/Segmentation/train.txt", "\n".join(names[::2]) + "\n")
    _text(base / "ImageSets/Segmentation/val.txt", "\n".join(names[1::2]) + "\n")


def coco(root: Path, count: int, side: int, split: str = "train2017") -> None:
    images: list[dict] = []
    objects: list[dict] = []
    captions: list[dict] = []
    encode = library("pycocotools.mask").encode
    for index in range(count):
        key, name = index + 1, f"{index + 1:012d}.jpg"
        mask = _picture(root / split / name, index + 16, side)
        packed = encode(np.asfortranarray(mask.astype(np.uint8)))
        segmentation = {"size": packed["size"], "counts": packed["counts"].decode()}
        images.append({"id": key, "file_name": name, "height": side, "width": side})
        for category in (1, 18):
            objects.append({"id": 10 * key + category, "image_id": key, "category_id": category, "iscrowd": 0,
                            "area": float(mask.sum()), "segmentation": segmentation})  # fmt: skip
        captions.append({"image_id": key, "caption": ("A man stands there.", "a woman with a dog")[index % 2]})
    known = {"images": images, "categories": [{"id": 1, "name": "person"}, {"id": 18, "name": "dog"}]}
    _text(root / f"annotations/instances_{split}.json", known | {"annotations": objects})
    _text(root / f"annotations/captions_{split}.json", known | {"annotations": captions})


def gender(root: Path, count: int, side: int) -> None:
    coco(root, count, side)
    _save(root / "masks/000000000001.png", drawn(16, side)["mask"].astype(np.uint8) * 255)


def release(root: Path, count: int, side: int, classes: Sequence[str] = ("men", "women")) -> None:
    rows: dict[str, list[tuple[str, str]]] = {name: [] for name in classes}
    for index in range(count):
        name = classes[index % 2]
        mask = _picture(root / f"image/{name}/{index:04d}.jpg", index + 24, side)
        large = np.asarray(Image.fromarray(mask).resize((224, 224), Image.Resampling.NEAREST))
        rows[name].append((f"{index:04d}.jpg", json.dumps(large.astype(int).tolist(), separators=(",", ":"))))
    (root / "attention_label").mkdir()
    for name, listed in rows.items():
        with (root / f"attention_label/{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("img_idx", "attention"), *listed])


def places(root: Path, count: int, side: int) -> None:
    nature = ["m/mountain", "p/pond", "w/waterfall", "f/field/wild", "f/forest/broadleaf", "r/rainforest"]
    twelve = [*nature, "h/house", "b/bridge", "c/campus", "t/tower", "s/street", "d/driveway"]
    for index in range(max(count, 12)):
        mask = _picture(root / f"data_256/{twelve[index % 12]}/{index:08d}.jpg", index + 32, side)
        name = twelve[index % 12][2:].replace("/", "_")
        _save(root / f"masks/train_{name}_{index:08d}.png", mask.astype(np.uint8) * 255)


def sixray(root: Path, count: int, side: int) -> None:
    rows: list[tuple[str, ...]] = [("name", "Gun", "Knife", "Wrench", "Pliers", "Scissors")]
    for index in range(2 * count):
        name = f"{'PN'[index >= count]}{index:05d}"
        mask = _picture(root / f"JPEGImage/{name}.jpg", index + 48, side)
        rows.append((name, "1" if index < count else "-1", *["-1"] * 4))
        down, across = np.flatnonzero(mask.any(1)) + 1, np.flatnonzero(mask.any(0)) + 1
        box = zip(BOX, (across[0], down[0], across[-1], down[-1]), strict=True)
        corners = "".join(f"<{corner}>{value}</{corner}>" for corner, value in box)
        found = f"<object><name>Gun</name><bndbox>{corners}</bndbox></object>" if index < count else ""
        _text(root / f"Annotation/{name}.xml", f"<annotation>{found}</annotation>")
    _text(root / "ImageSet/10/train.csv", "".join(",".join(row) + "\n" for row in rows))


def lidc(root: Path, count: int, side: int) -> None:
    size = max(2 * side, 128)
    for patient in range(-(-count // 2)):
        series = SERIES.format(7000 + patient)
        uids = [f"{series}.{number}" for number in range(7)]
        top = round(0.35 * size) + 4 * patient
        where = ((top, top + size // 12), (round(0.22 * size), round(0.22 * size) + size // 12))
        for number, uid in enumerate(uids):
            units = chest(size, size, patient)
            if 2 <= number <= 4:
                rows, columns = (np.arange(first, last + 1) for first, last in where)
                units[np.ix_(rows, columns)] = 60
            path = root / f"LIDC-IDRI/LIDC-IDRI-{patient + 1:04d}/study/series/1-{number:03d}.dcm"
            spacing = [110 / size] * 2
            dicom(path, units, (0, 0, 2.5 * number), uid, series, f"LIDC-IDRI-{patient + 1:04d}", PixelSpacing=spacing)
        marks = [(2.5 * n, uids[n], True, outline(*where)) for n in (2, 3, 4)]
        sessions = [[("unblindedReadNodule", "1", marks)], [("unblindedReadNodule", "a", marks[:2])], [], []]
        _text(root / f"tcia-lidc-xml/157/{patient:03d}.xml", lidc_xml(series, sessions))
    table = "".join(f"{SERIES.format(7000 + n)},LIDC-IDRI-{n + 1:04d}\n" for n in range(-(-count // 2)))
    _text(root / "LIDC-IDRI_MetaData.csv", "Series UID,Patient Id\n" + table)


def pancreas(root: Path, count: int, side: int) -> None:
    for case in range(count):
        plane = chest(side, side, case)
        plane[plane < -500] = -80
        world = np.repeat(plane[::-1, ::-1].T[..., None], 5, axis=2)
        if case % 2:
            for number in range(5):
                path = root / f"Pancreas-CT/PANCREAS_{case:04d}/study/series/1-{number:03d}.dcm"
                dicom(path, plane, (0, 0, 1.0 * number), f"1.2.{case}.{number}", f"1.2.{case}", f"PANCREAS_{case:04d}")
            continue
        label = np.zeros(world.shape, np.uint8)
        label[side // 3 : side // 2, side // 3 : side // 2, 1:4] = 1
        label[side // 3 : side // 3 + side // 8, side // 3 : side // 3 + side // 10, 1:4] = 2
        world[label == 2] -= 60
        axes = ("RAS", "LPS", "SRA")[case // 2 % 3]
        nifti(root / f"Task07_Pancreas/imagesTr/pancreas_{case:03d}.nii.gz", world.astype(np.int16), axes)
        nifti(root / f"Task07_Pancreas/labelsTr/pancreas_{case:03d}.nii.gz", label, axes)


def actx(root: Path, count: int, side: int) -> None:
    told: dict[str, dict] = {}
    (root / "ACT-X/visual/val").mkdir(parents=True)
    for index in range(count):
        mask = _picture(root / f"images/{index:09d}.jpg", index + 72, side)
        answer = ("ironing", "skating, ice")[index % 2]
        told[f"v{index}"] = {"iid": f"{index:09d}", "ans": answer, "exp": ["Because of what he holds."]}
        np.save(root / f"ACT-X/visual/val/v{index}.npy", np.stack([mask, mask, np.roll(mask, 2, 0)]).astype(np.float32))
    _text(root / "ACT-X/textual/exp_val_split.json", told)


def ebam(root: Path, count: int, side: int) -> None:
    coco(root, max(count, 12), side)
    for category in ("a/abbey", "b/beach"):
        for index in range(12):
            scene = Image.fromarray(drawn(8 * index + (category == "b/beach"), 128)["image_without_object"])
            (root / "images/train" / category).mkdir(parents=True, exist_ok=True)
            scene.save(root / f"images/train/{category}/{index:08d}.jpg")


def food(root: Path, count: int, side: int) -> None:
    from saliency_bench.hub_builders.food_101 import CLASSES

    names = [f"{label}/{1000 + place}" for place, label in enumerate(CLASSES)]
    for index, name in enumerate(names):
        _picture(root / f"food-101/images/{name}.jpg", index, side)
    _text(root / "food-101/meta/test.txt", "\n".join(names) + "\n")


def imagenet(root: Path, count: int, side: int) -> None:
    wnids = ("n01440764", "n01443537", "n02012849", "n03126707")
    rows = ["ImageId,PredictionString"]
    for index in range(count):
        name = f"ILSVRC2012_val_{index + 1:08d}"
        mask = _picture(root / f"ILSVRC/Data/CLS-LOC/val/{name}.JPEG", index + 80, side)
        down, across = np.flatnonzero(mask.any(1)) + 1, np.flatnonzero(mask.any(0)) + 1
        rows.append(f"{name},{wnids[index % 4]} {across[0]} {down[0]} {across[-1]} {down[-1]} ")
    _text(root / "LOC_val_solution.csv", "\n".join(rows) + "\n")
    names = ("tench, Tinca tinca", "goldfish, Carassius auratus", "crane", "crane")
    _text(root / "LOC_synset_mapping.txt", "\n".join(map(" ".join, zip(wnids, names, strict=True))) + "\n")


def openimages(root: Path, count: int, side: int) -> None:
    def node(label: str, *below: dict) -> dict:
        return {"LabelName": label} | ({"Subcategory": list(below)} if below else {})

    tree = node("/m/0bl9f", node("/m/0jbk", node("/m/bird", node("/m/owl")), node("/m/cat")), node("/m/car"))
    _text(root / "bbox_labels_600_hierarchy.json", tree)
    _text(root / "class-descriptions-boxable.csv", "/m/0jbk,Animal\n/m/bird,Bird\n/m/owl,Owl\n/m/cat,Cat\n/m/car,Car\n")
    rows = ["ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax"]
    for index in range(count):
        name = f"{index:016x}"
        mask = _picture(root / f"validation/{name}.jpg", index + 96, side)
        down, across = np.flatnonzero(mask.any(1)) / side, np.flatnonzero(mask.any(0)) / side
        box = f"{across[0]},{across[-1]},{down[0]},{down[-1]}"
        kinds = (("/m/owl", "/m/bird"), ("/m/cat", "/m/car"))[index % 2]
        rows += [f"{name},xclick,{kind},1,{box}" for kind in kinds]
    _text(root / "validation-annotations-bbox.csv", "\n".join(rows) + "\n")


BOX = ("xmin", "ymin", "xmax", "ymax")


def dicom(
    path: Path, units: np.ndarray, place: tuple[float, float, float], uid: str, series: str, patient: str, **tags
):
    """One CT slice as scanners write it: unsigned pixels, intercept -1024. `tags` replace tags; None takes one out."""
    pydicom = library("pydicom")
    meta = pydicom.dataset.FileMetaDataset()
    meta.MediaStorageSOPClassUID = "1.2.840.10008.5.1.4.1.1.2"
    meta.MediaStorageSOPInstanceUID = uid
    meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    data = pydicom.dataset.FileDataset(str(path), {}, file_meta=meta, preamble=b"\0" * 128)
    values = np.clip(units + 1024, 0, 65535).astype(np.uint16)
    known = {
        "SOPClassUID": meta.MediaStorageSOPClassUID,
        "SOPInstanceUID": uid,
        "SeriesInstanceUID": series,
        "PatientID": patient,
        "Modality": "CT",
        "ImagePositionPatient": list(place),
        "ImageOrientationPatient": [1, 0, 0, 0, 1, 0],
        "PixelSpacing": [0.7, 0.7],
        "Rows": values.shape[0],
        "Columns": values.shape[1],
        "SamplesPerPixel": 1,
        "PhotometricInterpretation": "MONOCHROME2",
        "BitsAllocated": 16,
        "BitsStored": 16,
        "HighBit": 15,
        "PixelRepresentation": 0,
        "RescaleSlope": 1,
        "RescaleIntercept": -1024,
        "PixelData": values.tobytes(),
    }
    for key, value in (known | tags).items():
        if value is not None:
            setattr(data, key, value)
    path.parent.mkdir(parents=True, exist_ok=True)
    data.save_as(path)


def chest(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Hounsfield units of a phantom: air, a body of soft tissue, two lungs with vessels."""
    rows, columns = np.mgrid[:height, :width]
    y, x = (rows + 0.5) / height - 0.5, (columns + 0.5) / width - 0.5
    units = np.full((height, width), -1000.0)
    units[(x / 0.46) ** 2 + (y / 0.4) ** 2 < 1] = 40
    for side in (-0.22, 0.22):
        units[((x - side) / 0.17) ** 2 + (y / 0.3) ** 2 < 1] = -820
    noise = np.random.default_rng(seed)
    for _ in range(40):
        top, left = noise.random(2) - 0.5
        vessel = (x - left) ** 2 + (y - top) ** 2 < 0.006**2
        units[vessel & (units == -820)] = 20
    return units + noise.normal(0, 15, units.shape)


def outline(rows: Sequence[int], columns: Sequence[int]) -> list[tuple[int, int]]:
    """The contour (column, row) just outside a rectangle of pixels [first, last], as readers draw it."""
    top, bottom, left, right = rows[0] - 1, rows[1] + 1, columns[0] - 1, columns[1] + 1
    upper = [(c, top) for c in range(left, right)] + [(right, r) for r in range(top, bottom)]
    return upper + [(c, bottom) for c in range(right, left, -1)] + [(left, r) for r in range(bottom, top, -1)]


def lidc_xml(
    series: str, sessions: Sequence[Sequence[tuple]], root: str = "LidcReadMessage", space: str = "http://www.nih.gov"
) -> str:
    """Readings: each session is a list of (kind, name, [(z, uid, inclusion, points)]); kind is that of the element."""

    def roi(edge, z, uid, inclusion, points):
        edges = "".join(f"<{edge}><xCoord>{x}</xCoord><yCoord>{y}</yCoord></{edge}>" for x, y in points)
        if edge == "locus":
            return f"<imageZposition>{z}</imageZposition><imageSOP_UID>{uid}</imageSOP_UID>{edges}"
        return (
            f"<roi><imageZposition>{z}</imageZposition><imageSOP_UID>{uid}</imageSOP_UID>"
            f"<inclusion>{str(inclusion).upper()}</inclusion>{edges}</roi>"
        )

    def mark(kind, name, contours):
        edge = "locus" if kind == "nonNodule" else "edgeMap"
        key = "nonNoduleID" if kind == "nonNodule" else "noduleID"
        return f"<{kind}><{key}>{name}</{key}>{''.join(roi(edge, *one) for one in contours)}</{kind}>"

    read = ("".join(mark(*one) for one in marks) for marks in sessions)
    readings = "".join(f"<readingSession><annotationVersion>3</annotationVersion>{m}</readingSession>" for m in read)
    head = f"<ResponseHeader><SeriesInstanceUid>{series}</SeriesInstanceUid></ResponseHeader>"
    return f'<?xml version="1.0" encoding="UTF-8"?><{root} xmlns="{space}">{head}{readings}</{root}>'


def nifti(path: Path, world: np.ndarray, axes: str = "RAS", spacing: float = 1.0, tilt: float = 0.0, **header) -> None:
    """A volume given as world[right, front, head], stored with other axes, such as "LPS" or "SRA", and an affine that
    says so; `tilt` turns it about the first axis (radians). `header`: slope, inter."""
    nibabel = library("nibabel")
    plain = nibabel.orientations.axcodes2ornt("RAS")
    turn = nibabel.orientations.ornt_transform(plain, nibabel.orientations.axcodes2ornt(tuple(axes)))
    data = nibabel.orientations.apply_orientation(world, turn)
    affine = np.diag([spacing, spacing, spacing, 1.0]) @ nibabel.orientations.inv_ornt_aff(turn, world.shape)
    rotation = np.eye(4)
    rotation[1:3, 1:3] = [[np.cos(tilt), -np.sin(tilt)], [np.sin(tilt), np.cos(tilt)]]
    file = nibabel.Nifti1Image(data, rotation @ affine)
    if "slope" in header:
        file.header.set_slope_inter(header["slope"], header["inter"])
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(file, path)


def nifti_plain(path: Path, data: np.ndarray) -> None:
    nibabel = library("nibabel")
    nibabel.save(nibabel.Nifti1Image(data, np.eye(4)), path)


WRITERS: dict[str, Callable[[Path, int, int], None]] = {
    "pet-xai": pet,
    "object-xai": voc,
    "gender-xai": gender,
    "gender-xai release": release,
    "environment-xai": places,
    "environment-xai release": lambda root, count, side: release(root, count, side, ("nature", "urban")),
    "security-xai": sixray,
    "disease-xai": lidc,
    "cancer-xai": pancreas,
    "action-xai": actx,
    "ebam-xai": ebam,
    "voc-val": voc,
    "coco-val": lambda root, count, side: coco(root, count, side, "val2017"),
    "food-101": food,
    "imagenet-val": imagenet,
    "openimages-animals": openimages,
}
