"""Tests of the reader of masks, pixel by pixel against masks drawn with NumPy, in all common formats."""

from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image

from saliency_bench.errors import UserError
from saliency_bench.utils.mask_values import spelled, words_of
from saliency_bench.utils.masks import UnclearMaskError, read_mask
from saliency_bench.utils.messages import complain_once
from saliency_bench.utils.pictures import UnreadableError, turned

SIZE = (20, 30)
BOX = np.zeros(SIZE, bool)
BOX[4:11, 6:20] = True
EDGE = BOX & ~np.roll(BOX, 1, 0)  # the first row of the box
ONES, FULL = BOX.astype(np.uint8), BOX * np.uint8(255)
NOISE = np.random.default_rng(0).integers(0, 255, (*SIZE, 3), np.uint8)
SOFT = np.where(BOX, 200, np.arange(30)).astype(np.uint8)
RED, GREEN, WHITE = (255, 0, 0), (0, 255, 0), (255, 255, 255)
VOC = [(0, 0, 0), (128, 0, 0), *[(0, 0, 0)] * 253, (224, 224, 192)]  # index 1 is darker than the void outline


def grey(values):
    return Image.fromarray(values)


def palette(values, colours):
    image = Image.fromarray(np.asarray(values, np.uint8), "P")
    image.putpalette([part for colour in colours for part in colour])
    return image


def coloured(inside, outside=(0, 0, 0)):
    return Image.fromarray(np.where(BOX[..., None], np.uint8(inside), np.uint8(outside)))


def with_alpha(colour, alpha=FULL):
    colour = np.broadcast_to(np.uint8(colour), (*SIZE, 3))
    return Image.fromarray(np.dstack([colour, alpha]))


def stored(image, form="PNG", **options):
    buffer = BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


TOLD = {  # masks in which the object is unambiguous
    "0 and 255": grey(FULL),
    "0 and 1": grey(ONES),
    "one bit": stored(grey(BOX)),
    "16 bits": stored(grey(ONES * np.uint16(65535))),
    "16 bits, 0 and 1": stored(grey(ONES.astype(np.uint16))),
    "32 bits": stored(grey(ONES.astype(np.int32)), "TIFF"),
    "floats": stored(grey(ONES.astype(np.float32)), "TIFF"),
    "floats, 0 and 0.7": grey(ONES * np.float32(0.7)),
    "GIF": stored(grey(FULL), "GIF"),
    "WEBP": stored(grey(FULL), "WEBP", lossless=True),
    "three equal channels": coloured(WHITE),
    "CMYK": coloured(WHITE).convert("CMYK"),
    "red on black": coloured(RED),
    "opaque": with_alpha(np.repeat(FULL[..., None], 3, 2), np.full(SIZE, 255, np.uint8)),
    "grey with an alpha that agrees": Image.merge("LA", [grey(FULL)] * 2),
    "white, the object in alpha": with_alpha(WHITE),
    "black, the object in alpha": with_alpha((0, 0, 0)),
    "grey, the object in alpha": Image.merge("LA", [Image.new("L", (30, 20), 9), grey(FULL)]),
    "one colour, one of its indices transparent": stored(palette(1 - ONES, [RED, RED]), transparency=1),
    "a palette that begins with black": palette(ONES, [(0, 0, 0), RED]),
    "a palette that begins with white": palette(1 - ONES, [WHITE, (0, 0, 0)]),
    "a palette without black": palette(ONES, [WHITE, GREEN]),
    "a palette of 16 colours": stored(palette(ONES * 9, [(i, i, i) for i in range(16)]), bits=4),
    "a palette with alpha": palette(ONES, [(0, 0, 0), RED]).convert("PA"),
    "a bool array": BOX,
    "an array (1, H, W)": FULL[None],
    "an array (H, W, 1)": FULL[..., None],
    "an array of colours": np.asarray(coloured(RED)),
    "a tensor": torch.tensor(ONES),
    "a tensor of half precision": torch.tensor(ONES).bfloat16(),
    "lists": ONES.tolist(),
    "an image that is not decoded": {"bytes": stored(grey(FULL)), "path": None},
}


@pytest.mark.parametrize("kind", TOLD)
def test_masks_of_two_values_define_the_object(kind):
    inside = read_mask(TOLD[kind], SIZE)
    assert inside.dtype == bool
    np.testing.assert_array_equal(inside, BOX)


@pytest.mark.parametrize(
    ("mask", "expected"),
    [(np.zeros(SIZE, np.uint8), False), (np.full(SIZE, 255, np.uint8), True), (np.ones(SIZE, np.uint8), True),
     (stored(grey(np.full(SIZE, 65535, np.uint16))), True), (np.ones(SIZE, bool), True),
     (palette(np.zeros(SIZE), [(0, 0, 0)]), False), (coloured((0, 0, 0)), False)],
)  # fmt: skip
def test_single_valued_mask_is_empty_or_full(mask, expected):
    np.testing.assert_array_equal(read_mask(mask, SIZE), np.full(SIZE, expected))


TRIMAP = np.where(BOX, 1, 2).astype(np.uint8) + EDGE * np.uint8(2)  # 1 pet, 2 background, 3 border
VOID = palette(np.where(EDGE, 255, ONES), VOC)
OPPOSITE = with_alpha(255 - np.repeat(FULL[..., None], 3, 2))
WIDER = with_alpha(np.repeat(FULL[..., None], 3, 2), np.where(BOX | np.roll(BOX, 3, 1), 255, 0).astype(np.uint8))
TINTED = np.hypot(*(np.indices((48, 40)) - 20)) < 9
NAMED = {  # mask, --foreground, object
    "an Oxford trimap": (TRIMAP, "1", BOX & ~EDGE),
    "an Oxford trimap with its border": (TRIMAP, "1 3", BOX),
    "a class inside a void outline": (VOID, "1", BOX & ~EDGE),
    "its colour": (VOID, "#800000", BOX & ~EDGE),
    "anything but 0": (VOID, "nonzero", BOX),
    "a colour by its numbers": (coloured(RED, WHITE), "255,0,0", BOX),
    "a colour by its name": (coloured(RED, WHITE), "red", BOX),
    "two colours": (coloured(RED, WHITE), "red white", np.ones(SIZE, bool)),
    "a number of 16 bits": (stored(grey(ONES * np.uint16(300) + np.uint16(7000))), "7300", BOX),
    "a threshold": (SOFT, "128+", BOX),
    "a number beside what is none": (np.where(BOX, 1, np.nan), "1", BOX),
    "a threshold of floats": (SOFT / np.float32(255), "0.5+", BOX),
    "a threshold of alpha": (with_alpha(WHITE, SOFT), "128+", BOX),
    "a threshold of JPEG": (stored(grey(np.repeat(np.repeat(FULL[::5, ::5], 16, 0), 16, 1)), "JPEG"), "128+",
                            np.repeat(np.repeat(BOX[::5, ::5], 16, 0), 16, 1)),
    "a threshold of tinted WebP": (stored(grey(TINTED * np.uint8(255)), "WEBP", quality=60), "128+", TINTED),
    "alpha of a cut-out photograph": (with_alpha(NOISE), "alpha", BOX),
    "alpha where colours say the opposite": (OPPOSITE, "alpha", BOX),
    "a value that is not there": (TRIMAP, "9", np.zeros(SIZE, bool)),
}  # fmt: skip


@pytest.mark.parametrize("kind", NAMED)
def test_foreground_option_selects_the_object(kind):
    mask, foreground, expected = NAMED[kind]
    np.testing.assert_array_equal(read_mask(mask, expected.shape, foreground=foreground), expected)


REFUSED = {
    "more than two values; choose the object with --foreground (1, 2, 3; in Python mask_values=)": TRIMAP,
    "more than two values; .* (0, 1, 255;": VOID,
    "more than two values; .* threshold such as 100+ (0 to 200;": SOFT,
    "more than two values; .* threshold such as 100+ (0 to 200; in": with_alpha(WHITE, SOFT),
    "more than two values; .* or alpha (many colours;": with_alpha(NOISE),
    "more than two values; .* (0, 128, 255;": ONES * np.uint8(128) + EDGE * np.uint8(127),
    "values that are not numbers; .* (0, nan;": np.where(BOX, np.nan, 0),
    "values that are not numbers; .* such as 100+ (0 to nan;": np.where(BOX, np.nan, np.linspace(0, 200, 30)),
    "two values, neither of them 0; .* (1, 2;": np.where(BOX, np.uint8(1), np.uint8(2)),
    "two values, neither of them 0; .* (#ff0000, #ffffff;": coloured(RED, WHITE),
    "negative values; .* (-1, 0;": ONES.astype(int) - 1,
    "a single value that is not the background; .* (2;": np.full(SIZE, 2, np.uint8),
    "a single value that is not the background; .* (0;": palette(np.zeros(SIZE), [WHITE]),
    "colour and the alpha channel of the mask disagree; choose the object with --foreground": OPPOSITE,
    "colour and the alpha channel of the mask disagree": WIDER,  # some opaque pixels have the background's colour
    "JPEG mask with blurred values; save masks as PNG, or set a threshold": stored(grey(FULL), "JPEG"),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_ambiguous_mask_is_rejected_with_values_and_option(reason):
    escaped = reason.replace("(", r"\(").replace(")", r"\)").replace("+", r"\+")
    with pytest.raises(UnclearMaskError, match=escaped):
        read_mask(REFUSED[reason], SIZE)


@pytest.mark.parametrize(
    ("mask", "foreground", "words"),
    [(coloured(RED), "9", "of colours cannot be compared with a number; set --foreground to a colour"),
     (stored(grey(ONES.astype(np.uint16))), "red", "of numbers has no colours"),
     (np.where(BOX, 1, np.nan), "nonzero", r"values that are not numbers; .* \(1, nan;"),
     (FULL, "alpha", "whose alpha is constant"),
     (with_alpha(NOISE, SOFT), "alpha", "more than two values"),
     (stored(grey(FULL), "JPEG"), "255", "JPEG mask"),
     (stored(grey(SOFT), "WEBP", quality=30), "nonzero", "WEBP mask with blurred values"),
     (stored(grey(SOFT), "JPEG2000", irreversible=True), "nonzero", "JPEG2000 mask with blurred values"),
     (b"no picture", "", "the mask cannot be read: not an image"),
     ([grey(FULL), grey(FULL)], "", "a list of 2 images, but a sample has one mask"),
     ([[1], [1, 2]], "", "not an array of numbers"),
     (FULL[:10], "", "the mask is 30 x 10, but its image is 30 x 20")],
)  # fmt: skip
def test_unusable_masks_are_rejected_with_reason(mask, foreground, words):
    with pytest.raises(UnreadableError, match=words):
        read_mask(mask, SIZE, foreground=foreground)


def test_lossless_webp_and_jpeg2000_masks_are_read():
    three = np.where(BOX, np.uint8(200), np.uint8(100)) * (np.arange(30) > 3).astype(np.uint8)
    exact = stored(Image.fromarray(three).convert("RGB"), "WEBP", lossless=True)
    np.testing.assert_array_equal(read_mask(exact, SIZE, foreground="nonzero"), three > 0)
    np.testing.assert_array_equal(read_mask(stored(grey(FULL), "JPEG2000"), SIZE), FULL > 0)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_mask_is_rotated_like_its_image(orientation, caplog):
    upright, exif = turned(BOX, orientation), Image.Exif()
    exif[0x0112] = orientation
    complain_once.cache_clear()
    for mask in (FULL, stored(grey(FULL), exif=exif)):  # as stored, with or without an orientation of the mask file
        np.testing.assert_array_equal(read_mask(mask, upright.shape, orientation), upright)
    sizes_tell = orientation in (1, 5, 6, 7, 8)
    assert sizes_tell != ("both have the same size" in caplog.text)
    if sizes_tell:  # drawn on the upright image
        np.testing.assert_array_equal(read_mask(upright * np.uint8(255), upright.shape, orientation), upright)
    np.testing.assert_array_equal(read_mask(stored(grey(FULL), exif=exif), upright.shape), upright)


def test_foreground_values_are_parsed_and_normalised():
    assert words_of(None) == words_of("") == words_of([]) == ()
    assert words_of(1) == words_of("1") == words_of(np.uint8(1)) == words_of(1.0) == ("1",)
    assert words_of([1, "3", 0.5]) == ("1", "3", "0.5")
    assert words_of("1 red") == ("1", "red")
    assert spelled("3 red 1 1.0") == spelled("1 3 #ff0000") == spelled("255,0,0 3 1") == "1 255,0,0 3"
    for wrong in ("70000", "-1", "reddish", "1,2", "1,2,999", "nan", "inf", "1e9", "+", True, {"a": 1}):
        with pytest.raises(
            UserError, match="is not valid; use a value from 0 to 65535, a value and all greater values"
        ):
            words_of(wrong)
