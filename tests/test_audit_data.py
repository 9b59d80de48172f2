"""A user's own pictures and tables are read, and what is damaged is refused by name."""

import io
import zipfile

import numpy as np
import pytest
from PIL import Image

from scoreveil.audit.data.images import Images
from scoreveil.files.inputs import column_number, read_inputs

RNG = np.random.default_rng(0)


def picture(pixels, kind="PNG"):
    written = io.BytesIO()
    Image.fromarray(pixels).save(written, kind)
    return written.getvalue()


def test_a_folder_and_a_zip_of_pictures_are_the_same_images(tmp_path):
    folder = tmp_path / "shapes"
    for name, side in (("round", 40), ("square", 32)):
        (folder / name).mkdir(parents=True)
        for n in range(3):
            (folder / name / f"{n}.png").write_bytes(picture(RNG.integers(0, 256, (side, side), dtype=np.uint8)))
    (folder / "square" / "notes.txt").write_text("no picture")
    (folder / "square" / ".hidden.png").write_bytes(b"no picture")
    with zipfile.ZipFile(tmp_path / "shapes.zip", "w") as archive:
        for file in folder.rglob("*.png"):
            archive.write(file, file.relative_to(tmp_path))
    images = Images.from_pictures(folder)
    assert images.pixels.shape == (6, 1, 32, 32)
    assert (images.labels.tolist(), images.class_names) == ([0, 0, 0, 1, 1, 1], ("round", "square"))
    assert Images.from_pictures(tmp_path / "shapes.zip").digest == images.digest
    (folder / "round" / "colour.png").write_bytes(picture(np.zeros((9, 9, 3), np.uint8)))
    assert Images.from_pictures(folder).pixels.shape == (7, 3, 32, 32)
    inputs = read_inputs(folder)
    assert (inputs.x.shape, inputs.y.tolist()) == ((7, 3, 32, 32), [0, 0, 0, 0, 1, 1, 1])
    with pytest.raises(ValueError, match="of pictures, got no such file"):
        read_inputs(tmp_path / "none")


def test_an_unreadable_picture_or_zip_is_refused_by_name(tmp_path):
    good = picture(RNG.integers(0, 256, (32, 32, 3), dtype=np.uint8))
    for name in ("a", "b"):
        (tmp_path / "folder" / name).mkdir(parents=True)
        (tmp_path / "folder" / name / "0.png").write_bytes(good)
    for content in (good[:-300], b"", b"no picture", picture(np.zeros((8, 8), np.uint16))):
        (tmp_path / "folder" / "b" / "1.png").write_bytes(content)
        with pytest.raises(ValueError, match=r"b.1\.png"):
            Images.from_pictures(tmp_path / "folder")
    with zipfile.ZipFile(tmp_path / "z.zip", "w") as archive:
        archive.writestr("a/0.png", good)
        archive.writestr("b/0.png", good)
    whole = (tmp_path / "z.zip").read_bytes()
    for content in (whole[:-30], whole[:200] + b"\0\0\0" + whole[203:], b""):
        (tmp_path / "z.zip").write_bytes(content)
        with pytest.raises(ValueError, match=r"z\.zip"):
            Images.from_pictures(tmp_path / "z.zip")
    with zipfile.ZipFile(tmp_path / "z.zip", "w") as archive:
        archive.writestr("a/0.png", good)
    with pytest.raises(ValueError, match=r"2 directories or more, .*z\.zip, got 1"):
        Images.from_pictures(tmp_path / "z.zip")


def test_the_digest_is_of_pixels_and_labels_alone():
    pixels, labels = RNG.random((6, 1, 8, 8), dtype=np.float32), np.arange(6) % 2
    images = Images(pixels, labels, "a", 2)
    assert images.digest == Images(pixels.copy(), labels.copy(), "b", 2).digest
    assert images.digest != Images(1 - pixels, labels, "a", 2).digest
    assert images.digest != Images(pixels, 1 - labels, "a", 2).digest
    assert images.digest != Images(pixels.reshape(6, 1, 4, 16), labels, "a", 2).digest


def test_a_table_is_read_with_the_names_of_its_columns(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("\ufeffage, y ,size\n30,1,2.5\n40,0,1e-3\n\n", encoding="utf-8")
    table = read_inputs(path)
    assert table.x.tolist() == [[30, 2.5], [40, 1e-3]]
    assert table.y.tolist() == [1, 0]
    assert table.columns == ("age", "size")
    assert column_number("size", table.columns, 2) == column_number("1", table.columns, 2) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a column y"),
        ("age,size\n1,2\n", "a column y"),
        ("age,y\n1,2\n1\n", "row 3: expected 2 columns, got 1"),
        ("age,y\n1,2\nsecret,1\n", "row 3: expected numbers"),
        ("age,y\n1,0.5\n", "whole numbers"),
    ],
)
def test_what_is_no_table_is_refused_without_quoting_it(tmp_path, text, message):
    path = tmp_path / "table.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        read_inputs(path)
    assert "secret" not in str(caught.value)
    with pytest.raises(ValueError, match=r"among age, size, or its number from 0 to 1, got 'income'"):
        column_number("income", ("age", "size"), 2)
