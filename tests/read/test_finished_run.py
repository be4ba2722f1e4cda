"""Test that a loaded run equals the result of `run`, and test its export to pandas, Markdown and LaTeX."""

import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
from refusals import refused

import saliency_bench as sb

METRICS = ["saliency_miou", "saliency_deletion:steps=4"]


@pytest.fixture(scope="module")
def runs(shapes, resnet, tmp_path_factory):
    """Return runs with the same settings and different seeds."""
    folder = tmp_path_factory.mktemp("runs")
    return [
        sb.run(dataset=str(shapes), model=str(resnet), explainers=["gradcam", "smoothgrad:samples=2", "random"],
               metrics=METRICS, limit=30, seed=seed, keep_maps=True, device="cpu", progress=False,
               out=folder / str(seed))
        for seed in (0, 1)
    ]  # fmt: skip


def test_loaded_run_equals_returned_run(runs, monkeypatch):
    run = runs[0]
    monkeypatch.chdir(run.folder.parent)
    loaded = sb.load_run(run.folder.name)
    assert (loaded.folder, loaded.summary, loaded.complete) == (run.folder, run.summary, True)
    assert str(loaded) == str(run)
    assert loaded.records().to_pandas().equals(run.records().to_pandas())
    assert loaded.cells == run.cells
    assert loaded.report.is_file()


def test_scores_are_read_when_first_used(runs, tmp_path):
    """A run must not combine its summary with the scores of another run that was later written to its folder."""
    folder = shutil.copytree(runs[0].folder, tmp_path / "run")
    returned, later, loaded = replace(runs[0], folder=folder), replace(runs[0], folder=folder), sb.load_run(folder)
    for cell in returned.cells:
        assert np.array_equal(returned.scores.values[cell.cell_id], loaded.scores.values[cell.cell_id], equal_nan=True)
    assert loaded.by_correct().equals(returned.by_correct())
    shutil.copytree(runs[1].folder, folder, dirs_exist_ok=True)
    for run in (returned, later, loaded):
        rule = "gradcam:saliency_miou>=0"
        calls = (run.records, run.predictions, run.map_values, run.maps, run.by_correct)
        further = ((run.compare, runs[1]), (run.check, rule), (sb.check, run, rule), (sb.report, run),
                   (sb.load_maps, run), (sb.seed_study, [run, runs[1]]), (sb.analyse, run, "rank"))  # fmt: skip
        for call, *inputs in (*((call,) for call in calls), *further):
            refused("has changed since this run was loaded; load the run again", call, *inputs)
        assert len({run, runs[0]}) == 2
        assert str(run) == str(runs[0]).replace(str(runs[0].folder), str(folder))  # needs no file


def test_missing_and_exchanged_files_are_rejected(runs, tmp_path, capsys):
    folder = shutil.copytree(runs[0].folder, tmp_path / "run")
    run = sb.load_run(folder)
    shutil.copy(runs[1].folder / "run.json", folder)
    refused("run.json belongs to a different run than .*summary.json", sb.load_run, folder)
    shutil.copy(runs[0].folder / "run.json", folder)
    shutil.copy(runs[1].folder / "predictions.parquet", folder)
    refused("predictions.parquet has changed since the run wrote it", run.by_correct)
    refused("predictions.parquet has changed since the run wrote it", sb.load_run, folder)
    (folder / "predictions.parquet").unlink()
    refused("has no predictions.parquet; start the run again", run.by_correct)
    (folder / "reliability.parquet").unlink()
    refused("has no reliability.parquet; start the run again", run.map_values)
    (folder / "records.parquet").write_bytes(b"PAR1")
    refused("records.parquet is damaged", run.records)
    refused("a run must be given as its folder or as the result of `run`; got NoneType", sb.load_run, None)


def test_lost_maps_are_reported(runs, tmp_path, capsys):
    folder = shutil.copytree(runs[0].folder, tmp_path / "run")
    maps = sb.load_maps(folder)["random"]
    for path in maps.folder.glob("*.parquet"):
        path.unlink()
    assert len(maps) == 0
    assert "has no maps for 30 of 30 samples" in capsys.readouterr().err


def test_reading_results_prints_nothing(runs, capfd):
    for table in (runs[0].records(), runs[0].predictions()):
        assert len(table.to_pandas()) == len(table) > 0
    predictions = runs[0].predictions().to_pandas()
    assert len(predictions) == 30
    assert runs[0].predictions()["logits"][0][0] == predictions["logits"][0][0]
    assert set(maps := runs[0].maps()) == {"gradcam", "smoothgrad:samples=2", "random"}
    assert maps["gradcam"][predictions["image_id"][0]].shape == (32, 32)
    assert capfd.readouterr() == ("", "")


def test_to_pandas_matches_means_of_records(runs):
    table = runs[0].to_pandas()
    records = runs[0].records().to_pandas()
    records = records[records["part"].isna()]
    assert len(table) == 6
    for row in table.itertuples():
        name, *_ = row.metric.partition(":")
        of_cell = records[(records["explainer"] == row.explainer.partition(":")[0]) & (records["metric"] == name)]
        assert row.value == pytest.approx(of_cell["value"].mean(), abs=1e-12)
        assert row.n == of_cell["value"].count()
        assert row.low <= row.value <= row.high
        assert row.higher_is_better == (name == "saliency_miou")
        assert row.baseline == (row.explainer == "random")
    assert table["rank_low"].isna().all()  # too few samples
    assert {str(table[name].dtype) for name in ("value", "low", "high", "rank_low")} == {"float64"}


def test_markdown_and_latex_tables_match_data_frame(runs):
    """Parse both tables strictly and compare their numbers with the data frame."""
    frame, printed = runs[0].to_pandas().set_index(["explainer", "metric"]), str(runs[0]).splitlines()
    names = ["explainer", "saliency_miou ↑", "saliency_deletion:steps=4 ↓"]
    markdown, latex = runs[0].to_markdown(digits=2), runs[0].to_latex(digits=2)
    body = re.search(r"\\begin\{tabular\}\{lrr\}\n(.*)\n\\end\{tabular\}", latex, re.DOTALL)[1]
    tex = [line.removesuffix(r" \\").split(" & ") for line in body.splitlines() if not line.endswith("rule")]
    assert [line for line in body.splitlines() if line.endswith("rule")] == [
        r"\toprule", r"\midrule", r"\midrule", r"\bottomrule"]  # the second row is above the baseline # fmt: skip
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in markdown.splitlines() if line[:1] == "|"]
    assert rows[0] == names == re.split(r"\s{2,}", printed[0])
    assert rows[1] == ["---", "---:", "---:"]
    assert tex[0] == ["explainer", r"saliency\_miou $\uparrow$", r"saliency\_deletion:steps=4 $\downarrow$"]
    for line, text, plain in zip(rows[2:], tex[1:], printed[2:5], strict=True):
        assert plain.split()[0] == line[0] == text[0].replace(r"\_", "_")
        for metric, in_markdown, in_tex in zip(names[1:], line[1:], text[1:], strict=True):
            cell = frame.loc[line[0], metric.split()[0]]
            expected = f"{cell.value:.2f} [{cell.low:.2f}, {cell.high:.2f}]"
            assert re.sub(r"<sup>\w+</sup>", "", in_markdown) == expected
            assert re.sub(r"\\rlap\{.*\}", "", in_tex) == re.sub(r"(\[.*\])", r"{\\scriptsize \1}", expected)
    assert "n=" not in latex + markdown
    assert "mean over 30 images" in latex.lower()
    assert (n := int(frame["n"].min())) == 30 or f"Over {n} of 30 images." in latex
    labels = {"gradcam": "Grad-CAM$^{+}$", "saliency_miou": "50 %"}
    bare = runs[0].to_latex(intervals=False, labels=labels, caption="A & B")
    assert r"\caption{A \& B}" in bare
    assert r"explainer & 50 \% $\uparrow$" in bare
    assert "Grad-CAM$^{+}$ & " in bare
    assert "[" not in bare


@pytest.mark.parametrize(("options", "message"), [
    ({"digits": -1}, "digits must be a whole number"), ({"digits": 2.5}, "digits must be a whole number"),
    ({"labels": {"gradcan": "G"}}, "did you mean gradcam?"),
    ({"labels": {"gradcam": "random"}}, "two rows are called random"),
])  # fmt: skip
def test_invalid_table_options_are_rejected(runs, options, message):
    for write in (runs[0].to_latex, runs[0].to_markdown):
        refused(re.escape(message), write, **options)


def test_analysis_of_similar_runs_names_their_folders(runs):
    for what, wanted in (("rank", runs), ("correlation", runs), ("rank", runs[:1])):
        labels = {row[0] for row in sb.analyse(wanted, what).tables[0].rows}
        name = runs[0].dataset_id
        assert labels == ({f"{name} (0)", f"{name} (1)"} if len(wanted) == 2 else {name})


def test_compare_returns_second_minus_first(runs, capsys):
    compared = runs[0].compare(runs[1])
    assert f"{runs[1].folder} differs from {runs[0].folder} in seed" in capsys.readouterr().err
    assert compared.equals(runs[0].compare(str(runs[1].folder)))
    first, second = (run.to_pandas().set_index(["explainer", "metric"])["value"] for run in runs)
    for row in compared.itertuples():
        # With another seed, the limit selects other samples, so only common samples are compared.
        assert row.n < 30 or row.mean == pytest.approx(
            second[row.explainer, row.metric] - first[row.explainer, row.metric]
        )
    same = runs[0].compare(sb.load_run(runs[0].folder))
    assert np.array_equal(same["mean"], np.zeros(6))
    assert np.array_equal(same["equal"], np.ones(6))


@pytest.mark.slow
def test_to_pandas_separates_versions_of_an_explainer(runs, shapes, resnet, tmp_path):
    def brightness_of(power):
        def brightness(classifier, images, target):
            return images.mean(dim=1) ** power

        return brightness

    settings = {"dataset": str(shapes), "model": str(resnet), "metrics": ["saliency_miou"], "limit": 4,
                "device": "cpu", "progress": False}  # fmt: skip
    old = sb.run(**settings, explainers=[brightness_of(1)], out=tmp_path / "old")
    new = sb.run(**settings, explainers=[brightness_of(2)], out=tmp_path / "new")
    for power in (1, 2):
        both = sb.run(**settings, explainers=[brightness_of(power)], out=tmp_path / "both")
    table = both.to_pandas()
    assert list(table["explainer_version"].sort_values()) == sorted(
        str(sb.load_explainer(brightness_of(power)).version) for power in (1, 2)
    )
    wide = table.pivot(index=["explainer", "explainer_version"], columns=["metric", "metric_version"], values="value")
    assert wide.shape == (2, 1)
    assert set(table["cell_id"]) == set(both.records().to_pandas()["cell_id"])
    assert len(both.compare(new)) == 1

    first, second = old.cells[0].explainer_version, new.cells[0].explainer_version
    assert refused(".", old.compare, new) == (
        f"{old.folder} and {new.folder} share no pair of explainer and metric: "
        f"brightness has version {first} in the first run and {second} in the second"
    )
    refused(r"is not the folder of a finished run \(no summary.json\)", old.compare, tmp_path)
    refused(r"share no pair of explainer and metric$", old.compare, runs[0])
