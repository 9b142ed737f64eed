"""Embeddings as numpy arrays: their shapes, and that they are the rows that one another say."""
import json
import shutil

import numpy
import pytest

import sluice
from conftest import STORIES

TEXTS = ["Once upon a time there was", "Tom is sad.", "x", "Once upon a time there was"]


def test_last_rows(model):
    rows = model.embed(TEXTS)
    assert rows.shape == (4, 64) and rows.dtype == numpy.float32
    assert numpy.allclose(numpy.linalg.norm(rows, axis=1), 1, atol=1e-6)
    assert numpy.allclose(rows[0], rows[3], atol=1e-5)
    assert float(rows[0] @ rows[1]) < 0.999
    for text, row in zip(TEXTS, rows):
        one = model.embed(model.tokenizer.encode(text))
        assert one.shape == (64,) and numpy.allclose(one, row, atol=1e-5)


def test_means_are_of_all_rows(model):
    ids = model.tokenizer.encode("Once upon a time there was a dog")
    rows = model.embed([ids[:count + 1] for count in range(len(ids))], normalize=False)
    assert not numpy.allclose(numpy.linalg.norm(rows, axis=1), 1, atol=1e-2)
    mean = model.embed(ids, pooling="mean", normalize=False)
    assert numpy.allclose(mean, rows.mean(axis=0), atol=1e-4)
    assert numpy.allclose(model.embed(ids, pooling="cls", normalize=False), rows[0], atol=1e-5)
    few = model.embed(ids, dimensions=5)
    assert few.shape == (5,) and numpy.isclose(numpy.linalg.norm(few), 1, atol=1e-6)


@pytest.mark.parametrize("asked", [{"pooling": "max"}, {"pooling": 1}, {"dimensions": 0}, {"dimensions": 65},
                                   {"normalize": "yes"}])
def test_what_can_not_be_is_refused(model, asked):
    with pytest.raises(sluice.UserError, match=next(iter(asked))):
        model.embed("a", **asked)


def test_no_prompt_is_empty_or_too_long(model):
    with pytest.raises(sluice.UserError, match="empty"):
        model.embed([[]])
    with pytest.raises(sluice.UserError, match="context"):
        model.embed([5] * 513)
    assert model.embed([5] * 512, pooling="mean").shape == (64,)
    assert len(model.embed([])) == 0


def test_the_folder_says_how(opened, tmp_path):
    folder = shutil.copytree(STORIES, tmp_path / "model")
    (folder / "1_Pooling").mkdir()
    kinds = "sentence_transformers.models."
    (folder / "modules.json").write_text(json.dumps([{"idx": 0, "path": "", "type": kinds + "Transformer"},
                                                     {"idx": 1, "path": "1_Pooling", "type": kinds + "Pooling"}]))
    config = folder / "1_Pooling" / "config.json"
    config.write_text(json.dumps({"word_embedding_dimension": 64, "pooling_mode_mean_tokens": True}))
    with opened(folder) as model:
        ours = model.embed("Tom is sad.")
        assert numpy.allclose(ours, model.embed("Tom is sad.", pooling="mean", normalize=False), atol=1e-6)
        config.write_text(json.dumps({"pooling_mode_max_tokens": True}))
        with pytest.raises(sluice.FileError, match="max"):
            model.embed("Tom is sad.")
        assert model.embed("Tom is sad.", pooling="last").shape == (64,)
