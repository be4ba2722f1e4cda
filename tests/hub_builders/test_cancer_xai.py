"""Tests of NIfTI volumes with flipped, permuted or oblique axes, and DICOM series in any order.

All slices must be upright.
"""

from functools import partial

import numpy as np
import pytest
from built_samples import built_by
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from saliency_bench.hub_builders import _examples, cancer_xai
from saliency_bench.hub_builders._examples import dicom, nifti
from saliency_bench.hub_builders._volumes import AIR, Nifti, units_of
from saliency_bench.utils.pictures import UnreadableError

SHAPE = (30, 40, 9)  # right, front, head


def body():
    """Return a volume [right, front, head] of different values that increase along each axis."""
    right, front, head = np.indices(SHAPE)
    return (-150 + 4 * right + 3 * front + 11 * head).astype(np.int16)


def label():
    values = np.zeros(SHAPE, np.uint8)
    values[5:20, 5:25, 2:8] = 1
    values[8:14, 20:24, 3:6] = 2
    return values


@pytest.fixture
def source(tmp_path):
    for case, axes in (("pancreas_001", "RAS"), ("pancreas_004", "LPS"), ("pancreas_005", "SRA")):
        nifti(tmp_path / f"Task07_Pancreas/imagesTr/{case}.nii.gz", body(), axes)
        nifti(tmp_path / f"Task07_Pancreas/labelsTr/{case}.nii.gz", label(), axes)
    for number in range(9):
        pixels = body()[::-1, ::-1, number].T.astype(float)  # DICOM: columns increase to the left, rows to the back
        path = tmp_path / f"Pancreas-CT/PANCREAS_0001/study/series/1-{(number * 5) % 9}.dcm"
        dicom(path, pixels, (0, 0, 2.0 * number), f"1.2.{number}", "1.2", "PANCREAS_0001")
    return tmp_path


built = partial(built_by, cancer_xai)


@pytest.mark.parametrize("axes", ["LPS", "RPI", "SRA", "IPL"])
def test_nifti_slices_are_upright_for_any_affine(tmp_path, axes):
    nifti(tmp_path / "v.nii.gz", body(), axes, tilt=0.3)
    volume = Nifti(tmp_path / "v.nii.gz")
    assert len(volume) == 9
    for number in (0, 4, 8):
        plane = volume.slice(number)
        assert plane.shape == (40, 30)
        for row, column in ((0, 0), (39, 29), (10, 3)):  # row 0 is in front, column 0 at the right
            assert plane[row, column] == body()[29 - column, 39 - row, number]


@given(st.floats(0.1, 5), st.floats(-2000, 2000))
def test_nifti_slope_and_intercept_are_applied(tmp_path_factory, slope, inter):
    path = tmp_path_factory.mktemp("scaled") / "v.nii"
    nifti(path, body()[:3, :4, :2], slope=slope, inter=inter)
    stored = body()[:3, :4, :2].astype(float)
    assert np.allclose(Nifti(path).slice(1), (stored * slope + inter)[::-1, ::-1, 1].T, rtol=1e-4, atol=0.05) or (
        # nibabel stores values scaled to the type
        np.allclose(Nifti(path).slice(1), stored[::-1, ::-1, 1].T, atol=slope)
    )


def test_tumour_and_normal_slices_match_source_pixels(source):
    samples, log = built(source)
    labels = {name: sample["label"] for name, sample in samples.items()}
    assert labels == {f"pancreas_00{n}": "tumour" for n in (1, 4, 5)} | {"PANCREAS_0001": "normal"}
    assert log.left_out == log.remarks == []
    for name, sample in samples.items():
        number = sample["slice_index"]
        plane = body()[::-1, ::-1, number].T.astype(float)
        grey = np.clip(np.rint((plane + 160) * (255 / 400)), 0, 255).astype(np.uint8)
        assert (sample["image"][..., 0] == np.asarray(Image.fromarray(grey).resize((224, 224), 2))).all()
        if name.startswith("pancreas"):
            assert 3 <= number <= 5
            mask = Image.fromarray(label()[::-1, ::-1, number].T == 2).resize((224, 224), 0)
            assert (sample["mask"] == np.asarray(mask)).all()
        else:
            assert sample.get("mask") is None


def test_slices_are_sampled_by_seed_for_any_axis_order(source):
    drawn = [built(source, seed=seed)[0] for seed in range(8)]
    for case in ("pancreas_001", "pancreas_004", "pancreas_005"):
        assert {samples[case]["slice_index"] for samples in drawn} == {3, 4, 5}


def test_flipped_series_is_read_and_transposed_is_left_out(source):
    folder = source / "Pancreas-CT/PANCREAS_0001/study/series"
    before = built(source)[0]["PANCREAS_0001"]["image"]
    for path in folder.iterdir():
        path.unlink()

    def rewritten(*cosines):
        for number in range(9):
            name, pixels = str(number), body()[..., number].T.astype(float)
            dicom(folder / f"{name}.dcm", pixels, (0, 0, 2.0 * number), f"1.2.{name}", "1.2", "PANCREAS_0001",
                  ImageOrientationPatient=list(cosines))  # fmt: skip
        return built(source)

    assert (rewritten(-1, 0, 0, 0, -1, 0)[0]["PANCREAS_0001"]["image"] == before).all()
    samples, log = rewritten(0, 1, 0, 1, 0, 0)
    assert "PANCREAS_0001" not in samples
    assert "not an axial slice" in str([log.left_out, log.remarks])


def test_padding_and_nan_become_air(tmp_path):
    pixels = np.full((4, 4), 50.0)
    pixels[0] = 2000 - 1024
    dicom(tmp_path / "p.dcm", pixels, (0, 0, 0), "1", "2", "3", PixelPaddingValue=2000)
    units = units_of(tmp_path / "p.dcm")[0]
    assert (units[0] == AIR).all()
    assert (units[1:] == 50).all()
    values = body().astype(np.float32)
    values[0, 0, 0] = np.nan
    nifti(tmp_path / "v.nii.gz", values)
    assert Nifti(tmp_path / "v.nii.gz").slice(0)[39, 29] == -1000


def test_invalid_cases_are_reported_with_a_reason(source):
    images, labels = source / "Task07_Pancreas/imagesTr", source / "Task07_Pancreas/labelsTr"
    for number in (10, 11, 12, 13, 16):
        nifti(images / f"pancreas_0{number}.nii.gz", body())
    for number, values in {11: label()[:, :, :5], 12: np.minimum(label(), 1), 14: label(), 15: label(),
                           13: label() + np.uint8(1) * (label() > 1) * 5 + label()}.items():  # fmt: skip
        nifti(labels / f"pancreas_0{number}.nii.gz", values)
    (images / "pancreas_014.nii.gz").write_bytes((images / "pancreas_001.nii.gz").read_bytes()[:-900])
    (images / "._pancreas_001.nii.gz").write_bytes(b"mac")
    (images / "readme.txt").write_text("hello")
    (source / "Pancreas-CT/PANCREAS_0002").mkdir()
    (source / "Pancreas-CT/PANCREAS_0002/1.dcm").write_bytes(b"")
    samples, log = built(source)
    assert len(samples) == 4
    reasons = {entry["id"]: entry["reason"] for entry in log.left_out}
    assert reasons["pancreas_010"] == reasons["pancreas_016"] == "no label in labelsTr/"
    assert reasons["pancreas_011"] == "the mask and the image differ in size"
    assert reasons["pancreas_012"].startswith("no slice can be drawn")
    assert "pancreas_013" in reasons
    assert reasons["pancreas_014"].startswith("not a readable NIfTI file")
    assert reasons["pancreas_015"] == "imagesTr/ contains no image for this label"
    assert "imagesTr/readme.txt" in reasons
    assert reasons["PANCREAS_0002"] == "the folder contains no readable DICOM file"


def test_missing_slices_are_reported(tmp_path):
    root = _examples.write("cancer-xai", tmp_path, 2)
    (root / "Pancreas-CT/PANCREAS_0001/study/series/1-002.dcm").unlink()
    samples, log = built(root)
    assert {"pancreas_000", "PANCREAS_0001"} == set(samples)
    assert [remark["text"] for remark in log.remarks] == ["1 slices of the series are probably missing"]


@pytest.mark.parametrize("number", [0.0, float("nan")])
def test_nifti_without_usable_affine_is_rejected(tmp_path, number):
    nifti(tmp_path / "v.nii", body())
    content = bytearray((tmp_path / "v.nii").read_bytes())
    content[252:256] = (0).to_bytes(2, "little") + (2).to_bytes(2, "little")  # qform_code, sform_code
    content[280:328] = np.full(12, number, "<f4").tobytes()
    (tmp_path / "v.nii").write_bytes(content)
    with pytest.raises(UnreadableError, match=r"affine|NIfTI"):
        Nifti(tmp_path / "v.nii")
