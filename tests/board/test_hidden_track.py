"""Tests of the hidden track, whose masks are private to the owner of the board, and of attempts to get around it."""

import csv
import json
import shutil
from datetime import UTC, date, datetime, timedelta
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
from huggingface_hub import CommitOperationAdd
from local_hub import FOUNDER, VISITOR
from PIL import Image
from refusals import refused
from submissions import FINGERPRINT, IDS, know, submission, write

import saliency_bench as sb
from saliency_bench.board import hidden, recompute
from saliency_bench.board.known import HIDDEN, Attempt, HiddenScore, Known, Recomputed, Status, content_of, write_known
from saliency_bench.board.published_maps import as_published
from saliency_bench.board.recompute import _attempts, vouch
from saliency_bench.board.review import merge, review
from saliency_bench.board.view.archive import Archive
from saliency_bench.board.view.board_page import Page
from saliency_bench.board.view.row_groups import chosen
from saliency_bench.board.view.state import View
from saliency_bench.cli import main
from saliency_bench.data.build_report import REPORT, read_report
from saliency_bench.data.hidden_masks import SHOWN, hide_masks, join_masks, keep_masks
from saliency_bench.data.loading import find, fingerprint
from saliency_bench.data.output_folder import move_into_place
from saliency_bench.errors import UserError
from saliency_bench.hub.upload import publish
from saliency_bench.publishing.datasets import check_never_shown, dataset_publication, masks_publication

OWNER = "saliency-bench"
BOARD, PUBLIC, PRIVATE = "saliency-bench/results", "saliency-bench/things", "saliency-bench/things-masks"


@pytest.fixture(scope="module")
def own_data(shapes, tmp_path_factory):
    """Write the images of shapes-xai as a user's class folders with masks; the first image has no mask."""
    root = tmp_path_factory.mktemp("own")
    names = None
    for split in ("train", "test"):
        rows = sb.load_dataset(shapes, split).select(range(30))
        names = rows.features["label"].names
        for index, row in enumerate(rows):
            for kind, picture in (("images", row["image"]), ("masks", row["mask"])):
                folder = root / kind / split / names[row["label"]]
                folder.mkdir(parents=True, exist_ok=True)
                if index or kind == "images":
                    picture.save(folder / f"{split}{index}.png")
    return sb.build("folder", root / "built", images=str(root / "images"), masks=str(root / "masks"), progress=False)


def hiding(own_data, tmp_path, hide="test"):
    (tmp_path / "work").mkdir()
    return dataset_publication(own_data, "saliency-bench", tmp_path / "work", "things", "cc-by-4.0", hide=hide)


def maps_like(rows, seed=0):
    draw = np.random.default_rng(seed)
    return {row["image_id"]: draw.normal(size=(32, 32)).astype(np.float32) for row in rows}


@pytest.mark.slow
def test_hidden_track_from_publication_to_ranks(here, own_data, resnet, tmp_path, monkeypatch, capsys):
    def as_user(user):
        monkeypatch.setenv("HF_TOKEN", user.token)

    def sent(maps, name, user, **changes):
        """Submit the maps of a method, merge them as the owner, and return the folder on the board."""
        as_user(user)
        place = tmp_path / f"{user.name}-{name}"
        sb.template(PUBLIC, str(resnet), place, device="cpu", progress=False)
        (place / "maps").mkdir()
        with (place / "samples.csv").open() as file:
            files = {row["image_id"]: row["file"] for row in csv.DictReader(file)}
        for image_id, values in maps.items():
            np.save(place / "maps" / files[image_id], values)
        own_metrics = ["saliency_miou", "saliency_insertion:steps=4"]
        plan = sb.submit(place, name=name, metrics=own_metrics, device="cpu", progress=False, with_maps=True, **changes)
        as_user(FOUNDER)
        verdict = review(BOARD, int(plan.pull_request.rpartition("/")[2]))
        assert verdict.problems == []
        merge(verdict)
        return plan.submission.result.folder

    as_user(FOUNDER)
    words = ["push", "dataset", str(own_data), "--name", "things", "--namespace", "saliency-bench", "--with-images",
             "cc-by-4.0", "--hide-masks", "test"]  # fmt: skip
    assert (main([*words, "--dry-run"]), main(words)) == (0, 0)
    assert here.repo("datasets", PRIVATE).private
    assert not here.repo("datasets", PUBLIC).private
    assert main(words[:-2]) == 2  # without hiding the masks, by mistake
    assert "things hides the masks of 29 images that saliency-bench/things would show" in capsys.readouterr().err
    rows = sb.load_dataset(PUBLIC)
    assert set(rows["mask"]) == {None}
    assert main(words) == 0  # changes nothing
    assert len(here.repo("datasets", PUBLIC).history("main")) == 2

    # The owner submits baselines, which list the dataset as hidden.
    given = {"model": str(resnet), "device": "cpu", "progress": False}
    run = sb.run(
        dataset=PUBLIC, explainers=["random", "centre"], metrics=["saliency_miou"], out=tmp_path / "run", **given
    )
    assert "hides the masks" in capsys.readouterr().err
    folder = sb.submit(run).submission.result.folder
    merge(review(BOARD, 1))
    refused("are hidden; set --hidden", vouch, BOARD, folder, **given)
    status, _ = vouch(BOARD, folder, hidden=PRIVATE, **given)
    assert {cell.by for cell in status.cells.values()} == {"explainer"}

    # Another user cannot read the masks and is scored once a day, for any name of the method.
    as_user(VISITOR)
    refused(PRIVATE, hidden.kept_masks, PRIVATE, here.api(VISITOR))
    first = sent(maps_like(rows), "mine", VISITOR)
    status, lines = vouch(BOARD, first, **given)
    rows_of = {row.cell.explainer: row for row in sb.load_results(BOARD).rows if row.cell.metric == "saliency_miou"}
    assert {name: row.status for name, row in rows_of.items()} == dict.fromkeys(["random", "centre", "mine"], HIDDEN)
    mine, ours = rows_of["mine"], status.cells[rows_of["mine"].cell.cell_id]
    assert (mine.attempts, mine.best, ours.samples, ours.by) == (1, False, 29, "maps")
    assert mine.value == ours.score.value == pytest.approx(round(mine.value * 29) / 29, abs=1e-6)
    assert mine.low <= mine.value <= mine.high
    exact = scored_here(own_data, maps_like(rows), resnet, tmp_path)
    assert exact != pytest.approx(mine.value, abs=1e-5)
    assert abs(exact - mine.value) <= 0.5 / 29 + 1e-6

    status, lines = vouch(BOARD, sent(maps_like(rows, seed=1), "renamed", VISITOR), **given)
    assert "visitor has used 1 attempt in 7 days (limit: 1 per day" in "\n".join(lines)
    assert {cell.score for cell in status.cells.values()} == {None}  # by insertion, which needs no masks
    assert status.attempts == []
    third = sent({name: 2 * values for name, values in maps_like(rows).items()}, "taken", FOUNDER)
    status, _ = vouch(BOARD, third, **given)
    assert status.suspicions == {
        "taken": [f"the maps are identical to the maps of mine by visitor, scored on {date.today()}"]
    }

    # Masks that others may have are not used for scores, and public datasets cannot become hidden.
    here.api().update_repo_settings(PRIVATE, repo_type="dataset", private=False)
    refused("is public, so the masks are not hidden", vouch, BOARD, first, **given)
    with pytest.raises(UserError, match="exists and is public"):
        publish(masks_publication(hiding(own_data, tmp_path), own_data, "test", tmp_path / "kept"), private=True,
                api=here.api())  # fmt: skip


def scored_here(own_data, maps, resnet, tmp_path):
    run = sb.run(dataset=str(own_data), model=str(resnet), explainers=[], maps={"mine": {
        image_id: as_published(values) for image_id, values in maps.items()
    }}, metrics=["saliency_miou"], out=tmp_path / "exact", device="cpu", progress=False)  # fmt: skip
    return run.cells[0].value


def test_published_files_do_not_depend_on_masks(own_data, tmp_path):
    """Test that the published bytes do not depend on the masks: other masks or fewer masks give the same bytes."""
    (tmp_path / "first").mkdir()
    plan = hiding(own_data, tmp_path / "first")
    root = own_data.parent
    for split in ("train", "test"):
        for path in sorted((root / "masks" / split).rglob("*.png")):
            other = tmp_path / "masks" / path.relative_to(root / "masks")
            other.parent.mkdir(parents=True, exist_ok=True)
            turned = Image.open(path).convert("L")
            if split == "train":
                turned.save(other)
            elif path.stem != "test7":
                turned.rotate(90).point(lambda value: 255 - value).save(other)
    again = sb.build("folder", tmp_path / "built", images=str(root / "images"), masks=str(tmp_path / "masks"),
                     progress=False)  # fmt: skip
    (tmp_path / "second").mkdir()
    other = hiding(again, tmp_path / "second")
    assert set(plan.files) == set(other.files) == {
        "data/train-00000-of-00001.parquet", "data/test-00000-of-00001.parquet", "README.md", REPORT}  # fmt: skip
    for path, content in plan.files.items():
        both = [each if isinstance(each, bytes) else each.read_bytes() for each in (content, other.files[path])]
        assert both[0] == both[1], path
    assert "The masks of `test` are hidden" in plan.files["README.md"].decode()
    table = pq.read_table(plan.files["data/test-00000-of-00001.parquet"])
    assert all(table[name].null_count == len(table) for name in set(table.column_names) - set(SHOWN))
    assert json.loads(plan.files[REPORT])["counts"]["masks"] == 29


def test_columns_about_masks_are_hidden(shapes, tmp_path):
    left_out = [{"id": sb.load_dataset(shapes, split)["image_id"][0], "what": what, "reason": "damaged"}
                for split in ("train", "test") for what in ("mask", "image")]  # fmt: skip
    report = hide_masks(shapes, before := read_report(shapes) | {"left_out": left_out}, "test", tmp_path)
    assert report["left_out"] == [entry for entry in left_out if entry != left_out[2]]
    assert report["counts"]["masks_left_out"] == 1
    part = before["splits"]["test"]
    assert report["counts"]["masks"] == before["counts"]["masks"] - part["masks"]
    shown = sb.load_dataset(shapes, "test")["scene"]
    names = sb.load_dataset(shapes, "test").features["scene"].names
    for index, name in enumerate(names):
        assert report["counts"]["scene"][name] == before["counts"]["scene"][name] - list(shown).count(index)
    assert set(report["splits"]["test"]["class_shares"]["scene"].values()) == {0}
    assert report["counts"]["label"] == before["counts"]["label"]
    assert report["splits"]["train"] == before["splits"]["train"]
    assert (tmp_path / report["splits"]["train"]["files"][0]["path"]).is_file()


def test_template_says_that_maps_are_sent(own_data, resnet, tmp_path, capsys):
    report = hide_masks(own_data, read_report(own_data), "test", folder := fresh(tmp_path))
    (folder / REPORT).write_text(json.dumps(report))
    readmes, published = {}, shutil.copytree(folder, tmp_path / "published")
    for name, data in (("hidden", published), ("shown", own_data)):
        out = tmp_path / name
        assert main(["template", str(data), str(resnet), "--limit", "2", "--device", "cpu", "--out", str(out)]) == 0
        assert f"submit {out} --name my-method --with-maps --dry-run\n" in capsys.readouterr().out
        readmes[name] = (out / "README.md").read_text()
        assert readmes[name].count("submit . --name my-method --with-maps") == 2
    assert "The masks of this split are hidden" in readmes["hidden"]
    assert "--partial" not in readmes["hidden"]
    assert "--partial" in readmes["shown"]
    assert 'keeps the status "checked"' in readmes["shown"]


def test_hidden_masks_are_joined_only_to_their_images(own_data, tmp_path):
    report = keep_masks(own_data, read_report(own_data), "test", kept := fresh(tmp_path))
    (kept / REPORT).write_text(json.dumps(report))
    assert set(report["splits"]) == {"test"}
    assert not any(name == "image" for name in pq.read_schema(next((kept / "annotations").iterdir())).names)
    shown = sb.load_dataset(own_data).remove_columns("mask")
    for order in (range(30), range(30)[::-1]):
        whole = sb.load_dataset(own_data).select(order)
        assert fingerprint(join_masks(shown.select(order), kept, "test")) == fingerprint(whole)
    refused("are for 30 images, but the published split has 29", join_masks, shown.select(range(29)), kept, "test")
    turned = shown.map(lambda row: {"image": row["image"].rotate(90)})
    refused("differs from the image that the hidden masks were drawn on", join_masks, turned, kept, "test")
    (kept / REPORT).write_text(json.dumps(report | {"masks_of": PUBLIC}))
    assert len(join_masks(shown, kept, "test", PUBLIC.upper())) == 30
    with pytest.raises(UserError, match=f"belong to {PUBLIC}, so they cannot be used to score maps for mallory/things"):
        join_masks(shown, kept, "test", "mallory/things")  # a copy with other labels and separate attempts
    refused("contains no masks of the split train", join_masks, shown, kept, "train")


def fresh(tmp_path):
    (tmp_path / "fresh").mkdir()
    return tmp_path / "fresh"


def test_masks_that_cannot_be_hidden_are_refused(own_data, shapes, tmp_path):
    about = {"name": "things", "with_images": "cc-by-4.0", "hide": "test"}
    for given, words in (({"hide": "tset"}, "did you mean|known"), ({"with_images": None}, "--with-images LICENCE")):
        refused(words, dataset_publication, own_data, "saliency-bench", tmp_path, **about | given)
    words = "anyone can build shapes-xai with its masks"
    refused(words, dataset_publication, shapes, "saliency-bench", tmp_path, hide="test")


def test_published_masks_cannot_be_hidden(here, own_data, monkeypatch):
    api = here.api(FOUNDER)
    check_never_shown(PUBLIC, "test", api)  # the repository does not exist
    api.create_repo(PUBLIC, repo_type="dataset")
    check_never_shown(PUBLIC, "test", api)  # still without masks
    report = json.dumps(read_report(own_data) | {"hidden_masks": "test"}).encode()
    _, shown, _ = (
        api.create_commit(PUBLIC, [CommitOperationAdd(REPORT, content)], repo_type="dataset", commit_message="x").oid
        for content in (report, json.dumps(read_report(own_data)).encode(), report)
    )
    refused("was published without hiding the masks of test", check_never_shown, PUBLIC, "test", api)

    def squashed(*args, revision, **more):
        found = commits(*args, revision=revision, **more)
        return found[:1] if revision == "refs/heads/main" else found

    commits = api.list_repo_commits
    monkeypatch.setattr(api, "list_repo_commits", squashed)
    check_never_shown(PUBLIC, "test", api)
    api.create_tag(PUBLIC, tag="v1", revision=shown, repo_type="dataset")
    refused("was published without hiding the masks of test", check_never_shown, PUBLIC, "test", api)
    assert find(PUBLIC).hidden_masks == "test"


@pytest.fixture
def push(monkeypatch, capsys):
    """Return a function that pushes a dataset as the founder, and returns the exit code and the errors."""
    monkeypatch.setenv("HF_TOKEN", FOUNDER.token)

    def push(folder, name, *more, namespace=OWNER):
        words = ["--namespace", namespace, "--name", name, "--with-images", "cc-by-4.0", *more]
        return main(["push", "dataset", str(folder), *words]), capsys.readouterr().err

    return push


@pytest.mark.slow
def test_hidden_masks_are_not_published_elsewhere(here, own_data, push, tmp_path):
    """Push hidden masks under another name, namespace or split.

    They stay hidden, and other masks cannot replace them.
    """
    folder = tmp_path / "mine"
    shutil.copytree(own_data, folder)

    assert push(folder, "things", "--hide-masks", "test")[0] == 0
    for name, more, given in (("other", [], {}), ("things", [], {"namespace": "founder"}),
                              ("other", ["--hide-masks", "train"], {}), ("other", ["--dry-run"], {})):  # fmt: skip
        code, shown = push(folder, name, *more, **given)
        assert (code, shown.count("\n")) == (2, 1)
        assert f"{PUBLIC} hides the masks of test, which " in shown
        assert f"add --hide-masks test; if this is no longer the case, delete {folder}/published.json" in shown
    assert {repo for _, repo in here.store.repos} == {PUBLIC, PRIVATE}
    # A build that replaces the folder has the same masks.
    move_into_place(shutil.copytree(own_data, tmp_path / "again"), folder)
    assert "hides the masks of test" in push(folder, "other")[1]

    # Another dataset has a name that ends like the name of a repository of hidden masks.
    here.api(FOUNDER).delete_repo(PRIVATE, repo_type="dataset")
    (folder / "published.json").unlink()
    assert push(folder, "pets-masks")[0] == 0
    assert "with the masks of test, so others may already have them" in push(folder, "pets", "--hide-masks", "test")[1]
    (folder / "published.json").unlink()
    before = here.files("datasets", f"{OWNER}/pets-masks")
    code, shown = push(folder, "pets", "--hide-masks", "test")
    assert (code, here.files("datasets", f"{OWNER}/pets-masks")) == (2, before)
    here.api(FOUNDER).update_repo_settings(f"{OWNER}/pets-masks", repo_type="dataset", private=True)
    code, shown = push(folder, "pets", "--hide-masks", "test")
    assert (code, here.files("datasets", f"{OWNER}/pets-masks")) == (2, before)
    assert "contains no masks_of, not masks_of saliency-bench/pets; choose a different --name" in shown
    assert "pets" not in {repo.rpartition("/")[2] for _, repo in here.store.repos}
    (folder / "published.json").write_text("[]")
    assert "published.json is not valid; delete it" in push(folder, "pets")[1]


@pytest.mark.slow
def test_copies_and_new_builds_keep_masks_hidden(here, own_data, push, tmp_path):
    """Test folders that lack the `published.json` of the folder with the hidden masks."""
    hiding = ("--hide-masks", "test")
    first, copied = (shutil.copytree(own_data, tmp_path / name) for name in ("first", "copied"))
    (copied / "published.json").unlink(missing_ok=True)
    assert push(first, "things", *hiding)[0] == 0
    other_split = {kind: str(shutil.copytree(own_data.parent / kind / "test", tmp_path / kind / "train").parent)
                   for kind in ("images", "masks")}  # fmt: skip
    built = sb.build("folder", tmp_path / "built", **other_split, progress=False)
    for folder, namespace in ((copied, OWNER), (copied, "founder"), (built, OWNER)):
        for more in ((), ("--dry-run",)):
            code, shown = push(folder, "other", *more, namespace=namespace)
            assert (code, shown.count("\n")) == (2, 1)
            assert f"{PUBLIC} hides the masks of 29 images that {namespace}/other would show, such as t" in shown
            assert f"if their masks no longer need to be hidden, delete {PRIVATE}" in shown
    assert {repo for _, repo in here.store.repos} == {PUBLIC, PRIVATE}
    assert push(copied, "things", *hiding)[0] == 0  # the same command again
    here.api(FOUNDER).delete_repo(PRIVATE, repo_type="dataset")
    (copied / "published.json").unlink()
    assert push(copied, "other")[0] == 0


def test_public_repository_gets_no_masks(here, own_data, tmp_path, monkeypatch):
    plan = masks_publication(hiding(own_data, tmp_path), own_data, "test", fresh(tmp_path))
    api = here.api(FOUNDER)
    create = api.create_repo
    monkeypatch.setattr(api, "create_repo", lambda repo, **given: create(repo, **given | {"private": False}))
    refused("is public, not private, so nothing was sent", publish, plan, private=True, api=api)
    assert not [path for path in here.files("datasets", PRIVATE) if path.endswith(".parquet")]


# Rounding of scores


def cell(value, low, high, n, limits=(0, 1)):
    return SimpleNamespace(value=value, low=low, high=high, n=n, clusters=n, limits=limits)


@pytest.mark.parametrize(("given", "value", "ends"), [
    (cell(0.4349, 0.4012, 0.4688, 500), 0.43, (0.40, 0.47)),
    (cell(0.43, 0.29, 0.58, 500), 0.43, (0.29, 0.58)),  # already on a step
    (cell(0.4349, 0.4012, 0.4688, 10), 0.4, (0.4, 0.6)),  # one image changes it by up to 0.1, and a step is 0.2
    (cell(0.999, 0.991, 1.0, 500), 1.0, (0.99, 1.0)),
    (cell(-0.9871, -1, -0.9, 1000, (-1, 1)), -0.98, (-1.0, -0.9)),  # steps of 0.02
    (cell(0.5, None, None, 8), 0.5, (None, None)),
])  # fmt: skip
def test_scores_are_rounded_and_intervals_outwards(given, value, ends):
    shown = hidden.rounded(given)
    assert (shown.value, shown.low, shown.high) == (value, *ends)


def test_partial_submission_gets_no_hidden_score():
    cells = [SimpleNamespace(cell_id=name) for name in "abc"]
    ways = {"explainer": cells[:1], "explainer with hidden masks": cells[1:2], "maps with hidden masks": cells[2:]}
    further = {}
    recompute._take_out_parts(ways, 0, further)
    assert (len(ways), further) == (3, {})
    recompute._take_out_parts(ways, 28, further)
    assert (ways, set(further)) == ({"explainer": cells[:1]}, {"b", "c"})
    assert "all images of the split, but 28 are missing" in further["b"]


def attempts(*days, submitter="ada", maps="0f"):
    return [Attempt(submitter=submitter, fingerprint=FINGERPRINT, method="m", date=day.isoformat(), maps=maps)
            for day in days]  # fmt: skip


def test_attempts_are_limited_per_day_and_week():
    today = date(2026, 11, 25)
    ago = [today - timedelta(days=days) for days in range(9)]
    assert hidden.refusal([], today) is None
    assert "on or after 2026-11-26" in hidden.refusal(attempts(today), today)
    assert hidden.refusal(attempts(ago[1], ago[2]), today) is None
    assert "on or after 2026-11-29" in hidden.refusal(attempts(ago[3], ago[1], ago[2]), today)
    assert hidden.refusal(attempts(ago[7], ago[8], ago[1], ago[2]), today) is None
    assert hidden.refusal(attempts(*[today + timedelta(days=3650)] * 3), today) is None, "the clock was ahead"
    assert "on or after 2026-11-27" in hidden.refusal(attempts(ago[5], ago[5], ago[5]), today)  # longer than a day


def test_attempts_are_counted_per_account_and_dataset():
    today = date(2026, 11, 25)
    statuses = [SimpleNamespace(attempts=attempts(today, submitter=name)) for name in ("Ada", "eve", "ada")]
    assert len(hidden.attempts_of(statuses, "ADA", FINGERPRINT)) == 2
    assert hidden.attempts_of(statuses, "ada", "0" * 64) == []


def test_missing_or_foreign_maps_are_not_scored():
    maps = dict.fromkeys(["a", "b"], np.zeros((2, 2)))
    assert hidden.problem_of("mine", maps, ["a", "b"]) is None
    assert hidden.problem_of("mine", maps, ["a", "b", "c"]).startswith("mine has no map for 1 image, such as c")
    assert hidden.problem_of("mine", maps, ["a"]) == (
        "mine has maps for 1 image that are not in the dataset, such as b"
    )


def test_scaled_and_shifted_maps_are_recognised():
    draw = np.random.default_rng(0)
    maps = {name: draw.normal(size=(4, 4)).astype(np.float32) for name in "ab"}
    same = {name: 4 * maps[name] + 2 for name in "ba"}
    assert hidden.sketch_of(maps) == hidden.sketch_of(same)
    assert hidden.sketch_of(maps) != hidden.sketch_of({"a": maps["b"], "b": maps["a"]})
    assert hidden.sketch_of({"a": np.zeros((2, 2))}) == hidden.sketch_of({"a": np.ones((2, 2))})
    attempt = attempts(date(2026, 11, 25), submitter="eve")[0]
    before = SimpleNamespace(attempts=attempts(date(2026, 11, 20)))
    assert hidden.copies_of(attempt, [before]) == [
        "the maps are identical to the maps of m by ada, scored on 2026-11-20"
    ]
    assert hidden.copies_of(attempts(date(2026, 11, 25))[0], [before]) == []


def test_nearly_equal_maps_are_marked_as_copies():
    """Submit the maps of another account with a little noise. They are marked as copies."""
    draw = np.random.default_rng(0)
    maps = {f"image {number}": np.kron(draw.normal(size=(5, 5)), np.ones((7, 7))) for number in range(40)}

    def lines(changed, first="ada", fingerprint=FINGERPRINT):
        before = SimpleNamespace(attempts=attempts(date(2026, 11, 20), submitter=first, maps=hidden.sketch_of(maps)))
        (attempt,) = attempts(date(2026, 11, 25), submitter="eve", maps=hidden.sketch_of(changed))
        return hidden.copies_of(attempt.model_copy(update={"fingerprint": fingerprint}), [before, before])

    def mixed(noise):
        return {name: values + noise * draw.normal(size=values.shape) for name, values in maps.items()}

    assert lines(mixed(0.3)) == ["the maps are nearly identical to the maps of m by ada, scored on 2026-11-20"]
    assert lines({name: np.sign(values) * abs(values) ** 1.1 for name, values in maps.items()}) != []
    sides = {name: values > (values.min() + values.max()) / 2 for name, values in maps.items()}
    noise = {name: draw.random(values.shape) for name, values in maps.items()}
    ramp = np.linspace(0, 0.4, 35 * 35).reshape(35, 35)
    assert lines({name: side.astype(float) for name, side in sides.items()}) != []
    assert lines({name: np.where(sides[name], 1, ramp) for name in maps}) != []
    assert lines({name: np.where(sides[name], 0.6 + 0.4 * noise[name], 0.4 * noise[name]) for name in maps}) != []
    assert lines({name: np.exp(3 * values) for name, values in maps.items()}) != []
    assert lines(mixed(0.3), first="Eve") == lines(mixed(0.3), fingerprint="0" * 64) == []
    assert lines(mixed(5)) == lines({name: -values for name, values in maps.items()}) == []
    for correlation in (0.0, 0.6, 0.9):
        other = {name: np.kron(draw.normal(size=(5, 5)), np.ones((7, 7))) for name in maps}
        blend = {name: correlation * maps[name] + (1 - correlation**2) ** 0.5 * other[name] for name in maps}
        both = hidden.sketch_of(maps), hidden.sketch_of(blend)
        assert (hidden._correlation(*both), lines(blend)) == (pytest.approx(correlation, abs=0.15), [])


NONE = np.full(60, np.nan)


def hide(root):
    """Return a board on which the owner lists a dataset whose masks are hidden."""
    path = know(root)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"hidden": "ada/pets-masks"}))


def test_own_scores_by_hidden_masks_are_refused(tmp_path):
    hide(tmp_path)
    write(tmp_path, {"mine@1": np.where(np.arange(60) == 3, 0.9, np.nan)}, "eve")
    write(tmp_path, {"fine@1": NONE, "fine@1 saliency_insertion": np.full(60, 0.5)}, "ada")
    board = sb.load_results(tmp_path)
    assert [refused.line for refused in board.refused] == [
        f"{board.refused[0].folder}/records.parquet contains scores of saliency_miou, but the masks of this dataset "
        "are hidden; submit maps without scores"
    ]
    assert {(row.cell.metric, row.value, row.status) for row in board.rows} == {
        ("saliency_miou", None, "checked"), ("saliency_insertion", 0.5, "checked")}  # fmt: skip


def score(root, folder, value, half, day=date(2026, 11, 25), name="m"):
    """Return a board on which the owner has used the hidden masks to score the maps of a submission."""
    result = json.loads((folder / "result.json").read_text())
    shown = HiddenScore(value=value, low=value - half, high=value + half, n=60, clusters=60)
    recomputed = Recomputed(samples=60, largest=0, by="maps", score=shown)
    return write_known(root, Status(
        content=content_of(folder), folder=folder.relative_to(root).as_posix(), saliency_bench="0",
        date=day.isoformat(), device="cpu", cells={cell["cell_id"]: recomputed for cell in result["cells"]},
        attempts=attempts(day, submitter=result["submitter"])))  # fmt: skip


def test_hidden_ranks_follow_from_intervals(tmp_path):
    hide(tmp_path)
    given = {"a@1": 0.8, "b@1": 0.7, "c@1": 0.5, "random": 0.3}
    for number, (name, value) in enumerate(given.items()):
        score(tmp_path, write(tmp_path, {name: NONE}, f"user{number}"), value, 0.06)
    score(tmp_path, write(tmp_path, {"d@1": NONE}, "user0"), 0.31, 0.06)
    write(tmp_path, {"waits@1": NONE}, "user0")
    rows = {row.cell.explainer: row for row in sb.load_results(tmp_path).rows}
    assert {name: row.rank for name, row in rows.items()} == {
        "a": (1, 2), "b": (1, 2), "c": (3, 3), "random": (4, 5), "d": (4, 5), "waits": None}  # fmt: skip
    assert {name: (rows[name].status, rows[name].value, rows[name].attempts) for name in ("a", "b", "waits")} == {
        "a": (HIDDEN, 0.8, 2), "b": (HIDDEN, 0.7, 1), "waits": ("checked", None, None)}  # fmt: skip
    assert (rows["c"].beats, rows["d"].not_beaten) == (("random",), ("random",))
    assert not any(row.best or row.same_as or row.rank_if_true for row in rows.values())
    shown = chosen(Archive.load(tmp_path).rows, View())
    # user-defined methods are not listed separately
    assert [row.explainer for row in shown][:5] == ["a", "b", "c", "d", "random"]
    page = Page(Archive.load(tmp_path))
    opened = page.show(f"row={shown[0].key}")["body"]
    assert "ranks are based on intervals" in opened
    assert "user0 has used 2 attempts with these masks" in " ".join(opened.split())
    assert "Scores of individual samples with hidden masks are not published" in opened
    assert "compare-" not in opened
    assert "has no scores for individual samples" in page.show(f"row={shown[0].key}&other={shown[1].key}")["body"]
    table = " ".join(page.show("as_list=yes")["body"].split())
    assert '<span class="lb-value">0.80</span> <span class="lb-interval">[0.74, 0.86]</span>' in table
    assert "scored by the board, hidden masks; 2 attempts</span>" in table
    assert table.count("lb-heading") == 1  # the waiting submission is listed with the others
    assert shown[-1].explainer == "waits"
    assert 'title="the board has not recomputed the scores">no score yet<' in table


def test_methods_beyond_the_limit_wait_with_a_reason(tmp_path):
    handed_in = submission({"mine@maps-1": NONE, "more@maps-2": NONE}, "eve").checked
    maps = {
        name: {image_id: np.full((2, 2), number) for image_id in IDS} for number, name in enumerate(("mine", "more"))
    }
    ways, further = {"maps with hidden masks": handed_in.cells}, {}
    done, problem = _attempts(handed_in, ways, maps, Known(), "c" * 64, further)
    assert ([attempt.method for attempt in done], problem) == (["mine"], "")
    assert [cell.explainer for cell in ways["maps with hidden masks"]] == ["mine"]
    assert "eve has used 1 attempt in 7 days" in further[handed_in.cells[1].cell_id]
    assert done[0].maps == hidden.sketch_of(maps["mine"])
    del maps["mine"][IDS[0]]
    ways = {"maps with hidden masks": handed_in.cells}
    assert _attempts(handed_in, ways, maps, Known(), "c" * 64, {})[1].startswith("mine has no map for 1 image")


def test_package_explainers_count_as_attempts(monkeypatch):
    """Count every seed, option and network as an attempt, because unlimited attempts would reveal the masks."""
    today = datetime.now(UTC).date()

    def tried(names, statuses=(), submitter="eve", owner="", content="c" * 64):
        """Return (attempts that are recorded, methods that are scored, reasons why other methods are not scored)."""
        checked = submission(dict.fromkeys(names, NONE), submitter).checked
        ways, further = {"explainer with hidden masks": checked.cells}, {}
        done, problem = _attempts(checked, ways, {}, Known(statuses=statuses), content, further, owner)
        assert problem == ""
        scored = [cell.explainer_text for cell in ways.get("explainer with hidden masks", ())]
        return [attempt.method for attempt in done], scored, set(further.values())

    whole = ["gradcam", "random", "smoothgrad:samples=3"]
    waits = "smoothgrad:samples=3"
    methods, scored, why = tried(whole)
    assert (methods, scored) == (["explainers of the package"], ["gradcam", "random"])
    assert "eve has used 1 attempt in 7 days" in why.pop()
    methods, scored, _ = tried([waits])
    assert (methods, scored) == ([f"explainers of the package: {waits}"], [waits])

    def status(day, content):
        about = attempts(day, submitter="eve", maps="")[0].model_copy(update={"method": "explainers of the package"})
        return Status(content=content, folder="a/b/c", saliency_bench="0", date=day.isoformat(), device="cpu",
                      attempts=[about])  # fmt: skip

    before = [status(today, "c" * 64)]
    assert tried(["gradcam"], before)[1] == ["gradcam"]  # exactly these files
    assert tried(["gradcam"], before, content="d" * 64)[1] == []  # another seed, and so another submission
    assert tried(["gradcam"], before, content="d" * 64, owner="Eve") == ([], ["gradcam"], set())
    assert tried(["gradcam"], before, "Mallory", content="d" * 64)[1] == ["gradcam"]
    assert hidden.copies_of(before[0].attempts[0], [status(today, "e" * 64)]) == []
    monkeypatch.setattr(hidden, "MOST_METRICS", 1)
    assert tried(["gradcam", "random", "random saliency_pointing_game"])[1] == ["gradcam", "random"]
