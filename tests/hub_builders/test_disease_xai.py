"""Tests of LIDC-IDRI: the readers' XML against slow second implementations, and matching DICOM series."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from built_samples import built_by
from PIL import Image
from refusals import refused

from saliency_bench.hub_builders import _lidc, disease_xai
from saliency_bench.hub_builders._examples import chest, dicom, lidc_xml, outline

SHARED = Path(__file__).parents[3] / "shared" / "data"
REAL, SLICES, CT = SHARED / "lidc-idri", SHARED / "lidc-idri-slices-derived", SHARED / "ct-dicom-not-lidc"
SERIES = "1.3.6.1.4.1.14519.5.2.1.6279.6001.111111"
SIZE = 160


def uid(number):
    return f"{SERIES}.{number}"


def contour(number, rows, columns, inclusion=True):
    return (-100.0 + 2.5 * number, uid(number), inclusion, outline(rows, columns))


def nodule(name, *contours):
    return ("unblindedReadNodule", name, list(contours))


SESSIONS = [
    [nodule("1", *(contour(n, (70, 79), (40, 49)) for n in (4, 5, 6)), contour(5, (73, 75), (43, 45), False)),
     ("nonNodule", "n1", [(-90.0, uid(4), True, [(110, 80)])])],
    [nodule("A", *(contour(n, (72, 81), (40, 49)) for n in (5, 6)))],
    [nodule("x", contour(5, (74, 83), (40, 49))), nodule("small", (-87.5, uid(5), True, [(115, 70)]))],
    [],
]  # fmt: skip


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "LIDC-IDRI/LIDC-IDRI-0007/01-01-2000-NA/3000566-NA"
    for number in range(10):
        path, place = folder / f"1-{10 - number:03d}.dcm", (-50, -50, -100 + 2.5 * number)
        dicom(path, chest(SIZE, SIZE, number), place, uid(number), SERIES, "LIDC-IDRI-0007")
    (tmp_path / "tcia-lidc-xml/157").mkdir(parents=True)
    (tmp_path / "tcia-lidc-xml/157/158.xml").write_text(lidc_xml(SERIES, SESSIONS))
    return tmp_path


built = partial(built_by, disease_xai)


def literal(points):
    """Return pixels whose centre lies strictly inside: an odd number of edges to the right, and on no edge."""
    inside = set()
    edges = list(zip(points, [*points[1:], points[0]], strict=True))
    columns, rows = zip(*points, strict=True)
    for y in range(min(rows), max(rows) + 1):
        for x in range(min(columns), max(columns) + 1):
            odd = False
            for (x1, y1), (x2, y2) in edges:
                between = min(x1, x2) <= x <= max(x1, x2) and min(y1, y2) <= y <= max(y1, y2)
                if between and (x2 - x1) * (y - y1) == (y2 - y1) * (x - x1):
                    break
                if (y1 > y) != (y2 > y) and x < x1 + (y - y1) * (x2 - x1) / (y2 - y1):
                    odd = not odd
            else:
                if odd:
                    inside.add((y, x))
    return inside


def test_contour_pixels_are_excluded():
    points = tuple(outline((5, 7), (2, 4)))
    assert sorted(map(tuple, _lidc.enclosed(points).tolist())) == [(r, c) for r in (5, 6, 7) for c in (2, 3, 4)]
    assert len(_lidc.enclosed(((3, 3),))) == len(_lidc.enclosed(((3, 3), (4, 3), (3, 3)))) == 0


@pytest.mark.skipif(not REAL.is_dir(), reason="the real samples are not here")
def test_enclosed_pixels_of_real_contours_match_literal_rule():
    compared, holes, points, readings = 0, 0, 0, 0
    for path in sorted(REAL.rglob("*.xml")):
        series = _lidc.series_of(path)
        assert (series is None) == (path.parent.name == "186")
        if series is None:
            continue
        reading = _lidc.reading_of(path)
        assert reading.series == series
        for mark in reading.marks:
            points += mark.is_point
            for contour in mark.contours:
                if not contour.is_point and compared < 120:
                    assert set(map(tuple, _lidc.enclosed(contour.points).tolist())) == literal(contour.points)
                    compared += 1
                holes += not contour.inclusion
        readings += not reading.faults
    assert (compared, readings) == (120, 12)
    assert holes >= 2
    assert points > 300


@pytest.mark.skipif(not SLICES.is_dir(), reason="the real samples are not here")
def test_agreement_of_four_real_readers_matches_counting():
    seen = 0
    for nodule in sorted(SLICES.glob("*/nodule-*")):
        files = [sorted((nodule / f"mask-{k}").iterdir()) for k in range(4)]
        masks = [np.stack([np.asarray(Image.open(path)) > 127 for path in paths]) for paths in files]
        marked = [mask for mask in masks if mask.any()]
        volumes = [(reader, np.flatnonzero(mask)) for reader, mask in enumerate(marked)]
        found = _lidc.nodules_of(volumes)
        assert len(found) == 1  # overlapping outlines are one nodule
        expected = np.sum(marked, axis=0) >= len(marked) / 2
        agreed = np.zeros(expected.size, bool)
        agreed[_lidc.agreed(list(found[0].values()))] = True
        assert (agreed == expected.ravel()).all()
        assert expected.any()
        seen += 1
    assert seen == 6


def test_overlapping_marks_and_chains_form_one_nodule():
    def voxels(*numbers):
        return np.array(numbers)

    volumes = [(0, voxels(1, 2)), (0, voxels(90)), (1, voxels(2, 3)), (2, voxels(3, 4)), (1, voxels(50)), (3, voxels())]
    found = [{reader: v.tolist() for reader, v in one.items()} for one in _lidc.nodules_of(volumes)]
    assert found == [{0: [1, 2], 1: [2, 3], 2: [3, 4]}, {0: [90]}, {1: [50]}, {3: []}]
    volumes = [(0, voxels(1, 2)), (1, voxels(5, 6)), (2, voxels(6, 7)), (3, voxels(2, 3, 4, 5))]
    (joined,) = _lidc.nodules_of(volumes)  # the last mark joins the first one with the two others
    assert set(joined) == {0, 1, 2, 3}
    parts = _lidc.nodules_of([(0, voxels(1)), (0, voxels(3)), (1, voxels(1, 2, 3))])
    assert [{reader: v.tolist() for reader, v in one.items()} for one in parts] == [{0: [1, 3], 1: [1, 2, 3]}]
    same = _lidc.nodules_of([(0, voxels(1)), (0, voxels(1))])
    assert len(same) == 2  # only outlines of different readers are merged


def test_agreed_voxels_are_marked_by_at_least_half():
    a, b, c, d = (np.array(one) for one in ([1, 2, 3], [2, 3], [3, 4], [3, 5]))
    assert (_lidc.agreed([a]).tolist(), _lidc.agreed([a, b]).tolist()) == ([1, 2, 3], [1, 2, 3])
    assert (_lidc.agreed([a, b, c]).tolist(), _lidc.agreed([a, b, c, d]).tolist()) == ([2, 3], [2, 3])


def test_nodule_and_surrounding_crops_match_reader_marks(source):
    samples, log = built(source, centred=True, crop_mm=21.0)
    assert [*samples] == ["LIDC-IDRI-0007-111111-nodule-1", "LIDC-IDRI-0007-111111-beside-1"]
    one, other = samples.values()
    assert (one["readers"], one["patient"], one["group"]) == (3, "LIDC-IDRI-0007", "LIDC-IDRI-0007")
    assert one["slice_uid"] == other["slice_uid"] == uid(5)  # the middle of 4, 5, 6
    assert one["image"].shape == (224, 224, 3)
    # In slice 5, reader 1 has rows 70 to 79 with a hole, 2 has 72 to 81, and 3 has 74 to 83; two of three are needed.
    counts = np.zeros((SIZE, SIZE), int)
    for first, last in ((70, 79), (72, 81), (74, 83)):
        counts[first : last + 1, 40:50] += 1
    counts[73:76, 43:46] -= 1
    agreed = counts >= 2
    rows, columns = np.nonzero(agreed)
    top, left = round((rows.min() + rows.max()) / 2 - 15), round((columns.min() + columns.max()) / 2 - 15)
    expected = np.asarray(Image.fromarray(agreed[top : top + 30, left : left + 30]).resize((224, 224), 0))
    assert (one["mask"] == expected).all()
    assert other.get("mask") is None
    assert (other["label"], other["readers"]) == ("no nodule", 0)
    assert log.left_out == []


def test_ct_window_maps_units_to_grey_values(source):
    samples, _ = built(source, centred=True)
    grey = samples["LIDC-IDRI-0007-111111-nodule-1"]["image"][..., 0]
    lung = round((-820 + 600 + 750) / 1500 * 255)
    assert abs(np.median(grey) - lung) <= 3
    greys = disease_xai.windowed(np.array([-2000, -1350, -600, 150, 900.0]), -600, 1500)
    assert greys.tolist() == [0, 0, 128, 255, 255]


def test_surrounding_crops_avoid_every_mark(source):
    reading = _lidc.reading_of(source / "tcia-lidc-xml/157/158.xml")
    slices = disease_xai.slices_of(source / "LIDC-IDRI/LIDC-IDRI-0007/01-01-2000-NA/3000566-NA", SERIES)[0]
    boxes = disease_xai.marked(reading, slices[5].place, slices, (0.7, 0.7))
    assert len(boxes) == 9  # including the hole, the point of a small nodule and the locus of a non-nodule
    units = chest(SIZE, SIZE)
    found = [disease_xai.surrounding(units, boxes, (60, 30, 20.0), seed) for seed in range(60)]
    for top, left, side in filter(None, found):
        assert all(top >= b or top + side <= t or left >= r or left + side <= f for t, f, b, r in boxes)
        inside = units[round(top) : round(top + side), round(left) : round(left + side)]
        assert np.mean((inside > -950) & (inside < -400)) >= 0.25
    assert sum(box is not None for box in found) > 50
    assert disease_xai.surrounding(units, [(0, 0, SIZE, SIZE)], (60, 30, 20.0), 0) is None


def test_nodule_position_in_the_crop_varies(source):
    places = []
    for seed in range(12):
        samples, _ = built(source, seed=seed, crop_mm=40.0)
        rows, columns = np.nonzero(samples["LIDC-IDRI-0007-111111-nodule-1"]["mask"])
        places.append((rows.mean(), columns.mean()))
        assert 20 < rows.min() < rows.max() < 203
    assert np.ptp([place[0] for place in places]) > 30


def test_min_readers_filters_and_metadata_names_patients(source):
    samples, log = built(source, min_readers=4)
    assert (samples, log.left_out[0]["reason"]) == ({}, "marked by fewer than 4 readers")
    refused("min_readers must be 1 to 4", built, source, min_readers=5)
    (source / "metadata.csv").write_text(f"Series UID,Collection,Subject ID\n{SERIES},LIDC-IDRI,LIDC-IDRI-0099\n")
    assert next(iter(built(source)[0])).startswith("LIDC-IDRI-0099")


def test_truncated_reading_is_reported(source):
    path = source / "tcia-lidc-xml/157/158.xml"
    path.write_bytes(path.read_bytes()[:-40])  # the header, and so the series, can be read
    samples, log = built(source)
    assert (samples, log.left_out[0]["id"]) == ({}, "tcia-lidc-xml/157/158.xml")
    assert log.left_out[0]["reason"].startswith("158.xml is not usable XML (")


def test_invalid_readings_and_series_are_reported(source):
    xml = source / "tcia-lidc-xml/157"
    (xml / "160.xml").write_text(lidc_xml("1.2.3", [], "IdriReadMessage", "http://www.nih.gov/idri"))
    (xml / "161.xml").write_text(lidc_xml("1.2.3", SESSIONS))
    (xml / "162.xml").write_text("<!DOCTYPE a [<!ENTITY b 'bb'>]>" + lidc_xml(SERIES, SESSIONS).partition("?>")[2])
    (xml / "163.xml").write_text("<html/>")
    (xml / "164.xml").write_text(lidc_xml(SERIES, SESSIONS))
    folder = source / "LIDC-IDRI/LIDC-IDRI-0007/01-01-2000-NA/3000566-NA"
    (folder / "1-007.dcm").unlink()  # slice 3
    (folder / "1-001.dcm").write_bytes(b"no dicom")
    (source / "broken").mkdir()
    (source / "broken/1.dcm").write_bytes(b"")
    samples, log = built(source, crop_mm=21.0)
    assert len(samples) == 2
    assert [entry["reason"] for entry in log.left_out][:5] == [
        "the folder contains no readable DICOM file", "the marks belong to a chest X-ray, not to a CT scan",
        "no DICOM series has the UID in 161.xml", "162.xml is not usable XML (it declares entities)",
        "163.xml is not an LIDC-IDRI reading; its root element is html"]  # fmt: skip
    first, second, *others = (remark["text"] for remark in log.remarks)
    assert first.startswith("1-001.dcm: not a readable DICOM file")
    assert second == "1 slices of the series are probably missing"
    assert "this file is skipped, because a different XML file for the same series was read before it" in others


@pytest.mark.parametrize(
    ("tags", "reason"),
    [({"PixelData": None}, "the DICOM file has no pixel data"), ({"PixelSpacing": None}, "not a readable DICOM file"),
     ({"Rows": 9999, "Columns": 9999}, "more than 64 million pixels"), ({"RescaleSlope": "nan"}, "a readable DICOM")],
)  # fmt: skip
def test_damaged_middle_slice_is_reported(source, tags, reason):
    folder = source / "LIDC-IDRI/LIDC-IDRI-0007/01-01-2000-NA/3000566-NA"
    dicom(folder / "1-005.dcm", chest(SIZE, SIZE), (-50, -50, -87.5), uid(5), SERIES, "LIDC-IDRI-0007", **tags)
    samples, log = built(source)
    assert samples == {}
    assert reason in log.left_out[0]["reason"] or "the DICOM file does not" in log.left_out[0]["reason"]


@pytest.mark.skipif(not CT.is_dir(), reason="the real samples are not here")
def test_real_ct_series_is_read():
    from saliency_bench.hub_builders._volumes import gaps, series_in, slices_of, units_of

    ((folder, head),) = series_in(CT)
    slices, faults = slices_of(folder, str(head.SeriesInstanceUID))
    assert faults == []
    assert [one.place for one in slices] == [-20.5, -19.25, -18.0, -16.75, -15.5]
    assert (gaps(slices), gaps(slices[:2] + slices[3:])) == (0, 1)
    units, spacing, flips = units_of(slices[0].path)
    assert (units.shape, spacing, flips) == ((512, 512), (0.474609, 0.474609), (False, False))
    assert -3024 <= units.min() < -1000 < 1000 < units.max()


def test_missing_parts_are_rejected(source, tmp_path):
    (source / "tcia-lidc-xml").rename(tmp_path / "gone")
    refused(r"\bXML\b", built, source / "LIDC-IDRI")
    refused(r"DICOM.*Cancer Imaging Archive", built, tmp_path / "gone")
