"""JSON files of a checkpoint."""

from pathlib import Path

import pytest

from rlinf.core.errors import CheckpointError
from rlinf.models.checkpoints.json_files import read_json


@pytest.mark.parametrize(("text", "told"), [("[1]", "expected a mapping, found list"), ("{", "can't be read")])
def test_what_is_no_mapping_is_told_with_the_file(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "config.json"
    assert read_json(file) == {}
    file.write_text(text)
    with pytest.raises(CheckpointError, match=told) as caught:
        read_json(file)
    assert str(file) in str(caught.value)
