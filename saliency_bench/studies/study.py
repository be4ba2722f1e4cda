"""A study in a store: people, assignments, answers and reviews."""

import secrets
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from io import BytesIO
from itertools import count
from typing import Any

import numpy as np
from PIL import Image
from sqlalchemy import Connection, Select, and_, func, insert, select

from saliency_bench.errors import UserError
from saliency_bench.studies.database import Database, check_text, lately, now, plain_json
from saliency_bench.studies.study_tables import answers, assignments, corrections, invites, parameters, people, reviews
from saliency_bench.utils.pictures import decode
from saliency_bench.utils.seeds import seed_of

LARGEST_PAYLOAD = 2**20  # maximum length of JSON in characters
LONGEST = 86_400.0  # maximum time of an answer in seconds
LONGEST_COMMENT = 2000  # maximum length in characters
ROLES = ("annotator", "reviewer", "owner")
MOST_PARAMETERS = 30  # maximum number of URL parameters
LEASE_HOURS = 1.0  # time after which images of an inactive person are also assigned to others
VERDICTS = ("accept", "reject")
CORRECTED = "correct"  # verdict of a reviewer who drew a correction


@dataclass(frozen=True)
class Person:
    """A participant, known by a pseudonym.

    Attributes:
        name: The pseudonym.
        role: One of `ROLES`.
        key: Secret that identifies the participant. The store contains only its SHA-256.
    """

    name: str
    role: str
    key: str = field(default="", repr=False)


@dataclass(frozen=True)
class Assignment:
    """A unit that is assigned to a person.

    Attributes:
        person: The pseudonym.
        unit: The unit.
        position: Position in the person's order, starting at 0.
        created: Time of the assignment.
    """

    person: str
    unit: str
    position: int
    created: str


@dataclass(frozen=True)
class Answer:
    """A stored answer.

    Attributes:
        id: Number of the answer.
        person: The pseudonym.
        unit: Unit that was answered.
        revision: 1, 2, ... for this person and unit.
        payload: Content of the answer.
        mask: Mask as PNG, decoded by `pixels`.
        image_sha256: SHA-256 of the displayed image.
        seconds: Time in seconds that the person spent on the answer.
        created: Time when the answer was stored.
        corrected_by: Reviewer who corrected the payload and the mask, or None.
    """

    id: int
    unit: str
    person: str
    revision: int
    payload: Any
    mask: bytes | None
    image_sha256: str | None
    seconds: float
    created: str
    corrected_by: str | None = None

    @property
    def pixels(self) -> np.ndarray | None:
        """The mask, bool (H, W), of the same size as the image, or None."""
        return None if self.mask is None else np.asarray(decode(self.mask).convert("L")) > 0


@dataclass(frozen=True)
class Review:
    """A review of an answer. It contains the verdict "accept", "reject" or "correct", and a comment."""

    answer: int
    reviewer: str
    verdict: str
    comment: str
    created: str


@dataclass(frozen=True)
class Correction:
    """A reviewer's correction of an answer.

    Attributes:
        answer: Id of the corrected answer, which is one revision.
        reviewer: Pseudonym of the reviewer.
        payload: Content, as in an `Answer`.
        mask: Mask, as in an `Answer`.
        seconds: Time in seconds that the reviewer spent on the correction.
        created: Time when the correction was stored.
    """

    answer: int
    reviewer: str
    payload: Any
    mask: bytes | None
    seconds: float
    created: str


@dataclass(frozen=True)
class Study:
    """A study, as returned by `Store.study`.

    Methods can be called from any thread and from several servers at the same time.
    """

    store: Database
    id: int
    kind: str
    name: str
    dataset: str
    configuration: dict[str, Any]
    seed: int

    # people

    def join(self, request: str | None = None, role: str = "annotator") -> Person:
        """Add a person to the study, and return the person.

        The key of the returned `Person` is derived from the request, so repeating a request gives the same key. A
        request must contain 128 random bits.

        Args:
            request: Id that the page created, or None to create an id. Calling `join` again with the same id returns
                the same person.
            role: One of `ROLES`.
        """
        request = check_text("request", secrets.token_urlsafe(24) if request is None else request, 200)
        if len(request) < 16:
            raise UserError("a request to join must be a random string of at least 16 characters")
        if role not in ROLES:
            raise UserError(f"role must be one of {', '.join(ROLES)}, not {role}")
        key = sha256(f"{self.id} {role} {request}".encode()).hexdigest()
        with self.store.writing() as connection:
            if known := self.person(key):
                return Person(known.name, known.role, key)
            taken = set(connection.scalars(select(people.c.name).where(people.c.study == self.id)))
            name = next(pseudonym for attempt in count() if (pseudonym := _pseudonym(key, attempt)) not in taken)
            values = {"study": self.id, "name": name, "role": role, "created": now()}
            hashes = {"key_sha256": _hash(key), "request": _hash(request + role + str(self.id))}
            connection.execute(insert(people).values(**values, **hashes))
        return Person(name, role, key)

    def invite(self, count: int) -> list[str]:
        """Return a request to join for each of `count` invited people. Afterwards, only invited people can join."""
        tokens = [secrets.token_urlsafe(24) for _ in range(count)]
        rows = [{"study": self.id, "request": _hash(token), "created": now()} for token in tokens]
        with self.store.writing() as connection:
            if rows:
                connection.execute(insert(invites), rows)
        return tokens

    def may_join(self, request: object) -> bool:
        """Return whether a request belongs to an invited person. If no invitations exist, everyone may join."""
        of_study = select(invites.c.id).where(invites.c.study == self.id)
        with self.store.reading() as connection:
            if connection.scalar(of_study.limit(1)) is None:
                return True
            return connection.scalar(of_study.where(invites.c.request == _hash(str(request)))) is not None

    def keep_parameters(self, person: str, given: object) -> None:
        """Store the URL parameters in the link that a person opened. Identical parameters are stored only once.

        Only the first `MOST_PARAMETERS` parameters are read, and only short, printable strings are stored.
        """
        pairs = list(given.items())[:MOST_PARAMETERS] if isinstance(given, dict) else []
        values = {
            name: value
            for name, value in pairs
            if isinstance(value, str) and name.isprintable() and value.isprintable() and len(name + value) <= 300
        }
        if not values:
            return
        request = _hash(f"{self.id} {person} {plain_json(values)}")
        with self.store.writing() as connection:
            if connection.scalar(select(parameters.c.id).where(parameters.c.request == request)) is None:
                row = {"study": self.id, "person": person, "request": request, "given": values, "created": now()}
                connection.execute(insert(parameters).values(**row))

    def parameters(self) -> dict[str, dict[str, str]]:
        """Return {person: URL parameters}. For each name, the last value counts."""
        rows = select(parameters.c.person, parameters.c.given).where(parameters.c.study == self.id)
        values: dict[str, dict[str, str]] = {}
        with self.store.reading() as connection:
            for person, of_visit in connection.execute(rows.order_by(parameters.c.id)):
                values.setdefault(person, {}).update(of_visit)
        return values

    def person(self, key: str) -> Person | None:
        """Return the person with this key, or None if the key is unknown."""
        query = select(people.c.name, people.c.role).where(
            people.c.study == self.id, people.c.key_sha256 == _hash(str(key))
        )
        with self.store.reading() as connection:
            row = connection.execute(query).first()
        return None if row is None else Person(row.name, row.role)

    def people(self, role: str | None = None) -> list[str]:
        """Return people's pseudonyms in the order in which they joined."""
        rows = select(people.c.name).where(people.c.study == self.id).order_by(people.c.id)
        with self.store.reading() as connection:
            return list(connection.scalars(rows if role is None else rows.where(people.c.role == role)))

    # assignments

    def assign(self, person: str, units: Iterable[str]) -> list[Assignment]:
        """Append units to a person's assignments. Existing assignments keep their positions."""
        with self.store.writing() as connection:
            self._append(connection, person, units)
            return self.assignments(person)

    def give(self, person: str, choose: Callable[[list[Assignment]], Iterable[str]]) -> list[Assignment]:
        """Return a person's assignments. If there are none, first assign the units that `choose` selects.

        `choose` receives all assignments of the study. Both steps run in one transaction.
        """
        with self.store.writing() as connection:
            everyone = self.assignments()
            if not any(assignment.person == person for assignment in everyone):
                self._append(connection, person, choose(everyone))
            return self.assignments(person)

    def hold(
        self,
        person: str,
        units: Sequence[str],
        *,
        open_units: int,
        done: Collection[tuple[str, str]],
        lease_hours: float = LEASE_HOURS,
    ) -> list[str]:
        """Give a person a lease on the first units that nobody else has leased, and return these units.

        Args:
            person: The pseudonym.
            units: Candidate units.
            open_units: Maximum number of units to lease.
            done: (person, unit) pairs whose lease has already ended.
            lease_hours: Duration of a lease in hours.
        """
        first, last = lately(lease_hours)
        with self.store.writing() as connection:
            taken = {
                entry.unit
                for entry in self.assignments()
                if entry.person != person and first <= entry.created <= last and (entry.person, entry.unit) not in done
            }
            chosen = [unit for unit in units if unit not in taken][:open_units]
            self._append(connection, person, chosen)
        return chosen

    def assignments(self, person: str | None = None) -> list[Assignment]:
        """Return the assignments of one person (in the person's order) or of all people."""
        columns = assignments.c.person, assignments.c.unit, assignments.c.position, assignments.c.created
        rows = select(*columns).where(assignments.c.study == self.id)
        rows = rows if person is None else rows.where(assignments.c.person == person)
        ordered = rows.order_by(assignments.c.person, assignments.c.position)
        with self.store.reading() as connection:
            return [Assignment(*row) for row in connection.execute(ordered)]

    def _append(self, connection: Connection, person: str, units: Iterable[str]) -> None:
        assigned = self.assignments(person)
        given, first = {assignment.unit for assignment in assigned}, len(assigned)
        new = [check_text("unit", unit) for unit in dict.fromkeys(units) if unit not in given]
        self.append_new(connection, person, new, first)

    def append_new(self, connection: Connection, person: str, units: Iterable[str], first: int) -> None:
        """Within a transaction, append new units to a person's assignments, starting at position `first`."""
        rows = [
            {"study": self.id, "person": person, "unit": unit, "position": first + index, "created": now()}
            for index, unit in enumerate(units)
        ]
        if rows:
            connection.execute(insert(assignments), rows)

    def active(self, lease_hours: float = LEASE_HOURS) -> set[str]:
        """Return the people who received an assignment or gave an answer in the last `lease_hours`."""
        times = lately(lease_hours)
        with self.store.reading() as connection:
            return {
                person
                for table in (assignments, answers)
                for person in connection.scalars(
                    select(table.c.person).where(table.c.study == self.id, table.c.created.between(*times)).distinct()
                )
            }

    # answers

    def record(
        self,
        person: str,
        unit: str,
        request: str,
        payload: Any,
        *,
        mask: np.ndarray | None = None,
        image_sha256: str | None = None,
        seconds: object = 0.0,
    ) -> Answer:
        """Store an answer and return it. A repeated request is stored only once.

        Args:
            person: The pseudonym.
            unit: Unit that is answered.
            request: Id that the page created for this answer.
            payload: Content of the answer as JSON.
            mask: Mask, bool (H, W), of the same size as the image. It is stored as PNG.
            image_sha256: SHA-256 of the displayed image.
            seconds: Time in seconds that the person spent on the answer, at most one day.

        Raises:
            UserError: The request was already used for a different person or unit, or a value is invalid.
        """
        values = {
            "study": self.id,
            "unit": check_text("unit", unit),
            "person": check_text("person", person, 200),
            "request": check_text("request", request, 200),
            "payload": payload,
            "mask": None if mask is None else _encoded(mask),
            "image_sha256": image_sha256,
            "seconds": _seconds(seconds),
        }
        if len(plain_json(payload)) > LARGEST_PAYLOAD:
            raise UserError(f"an answer can contain at most {LARGEST_PAYLOAD:,} characters of JSON")
        mine = and_(answers.c.study == self.id, answers.c.unit == unit, answers.c.person == person)
        with self.store.writing() as connection:
            row = connection.execute(select(answers).where(answers.c.request == request)).mappings().first()
            if row is None:
                last = connection.scalar(select(func.max(answers.c.revision)).where(mine)) or 0
                connection.execute(insert(answers).values(**values, revision=last + 1, created=now()))
                row = connection.execute(select(answers).where(answers.c.request == request)).mappings().one()
        if (row["study"], row["unit"], row["person"]) != (self.id, unit, person):
            raise UserError("this request was used for a different answer; create a new id for each answer")
        return _answer(row)

    def answers(
        self, person: str | None = None, unit: str | None = None, *, last: bool = True, masks: bool = True
    ) -> list[Answer]:
        """Return answers in the order in which they were stored.

        Args:
            person: Return only answers given by this person.
            unit: Return only answers to this unit.
            last: Whether to return only the last revision for each pair of a person and a unit.
            masks: Whether to load masks. Answers without masks load much faster.
        """
        names = ["id", "unit", "person", "revision", "payload", "image_sha256", "seconds", "created"]
        rows = select(*(answers.c[name] for name in names + ["mask"] * masks)).where(answers.c.study == self.id)
        rows = rows if person is None else rows.where(answers.c.person == person)
        rows = rows if unit is None else rows.where(answers.c.unit == unit)
        if last:
            rows = rows.where(answers.c.id.in_(self._last()))
        with self.store.reading() as connection:
            return [_answer(row) for row in connection.execute(rows.order_by(answers.c.id)).mappings()]

    def answered(self, person: str) -> list[str]:
        """Return the units that a person has answered, in the order of the first answer to each."""
        rows = select(answers.c.unit).where(answers.c.study == self.id, answers.c.person == person)
        with self.store.reading() as connection:
            return list(dict.fromkeys(connection.scalars(rows.order_by(answers.c.id))))

    def _last(self) -> Select[Any]:
        """Return a query for the last revision for each pair of a person and a unit."""
        newest = select(func.max(answers.c.id)).where(answers.c.study == self.id)
        return newest.group_by(answers.c.unit, answers.c.person)

    # reviews

    def review(self, answer: int, reviewer: str, verdict: str, request: str, comment: str = "") -> Review:
        """Store the verdict "accept" or "reject" for an answer. A repeated request is stored only once.

        Raises:
            UserError: The answer does not exist in this study or was corrected in the meantime, or the verdict is a
                rejection without a comment.
        """
        if (
            type(answer) is not int or not 0 < answer < 2**31
        ):  # rejects True, which equals 1, and numbers that are too large for the database
            raise UserError("answer must be an integer, the id of an answer")
        if verdict not in VERDICTS:
            raise UserError(f"verdict must be one of {', '.join(VERDICTS)}, not {verdict}")
        if len(comment) > LONGEST_COMMENT or "\0" in comment:
            raise UserError(f"a comment must be a string of at most {LONGEST_COMMENT} characters")
        if verdict == "reject" and not comment.strip():
            raise UserError("a rejection needs a comment that explains what should be changed")
        check_text("request", request, 200)
        with self.store.writing() as connection:
            return self._add_review(connection, answer, reviewer, verdict, request, comment)

    def _add_review(
        self, connection: Connection, answer: int, reviewer: str, verdict: str, request: str, comment: str
    ) -> Review:
        """Store a review, unless it is already stored, and return it."""
        row = connection.execute(select(reviews).where(reviews.c.request == request)).mappings().first()
        if row is None:
            self._check_newest(connection, answer)
            values = {"answer": answer, "reviewer": reviewer, "verdict": verdict, "comment": comment}
            connection.execute(insert(reviews).values(**values, request=request, created=now()))
            row = connection.execute(select(reviews).where(reviews.c.request == request)).mappings().one()
        if (row["answer"], row["reviewer"]) != (answer, reviewer):
            raise UserError("this request was used for a different review; create a new id for each review")
        return Review(row["answer"], row["reviewer"], row["verdict"], row["comment"], row["created"])

    def correct(
        self,
        answer: int,
        reviewer: str,
        request: str,
        payload: Any,
        *,
        mask: np.ndarray | None = None,
        seconds: object = 0.0,
    ) -> None:
        """Store a reviewer's correction of an answer, with the verdict "correct".

        A repeated request is stored only once.

        Raises:
            UserError: The answer does not exist in this study, or its author has corrected it in the meantime.
        """
        check_text("request", request, 200)
        values = {"payload": payload, "mask": None if mask is None else _encoded(mask), "seconds": _seconds(seconds)}
        with self.store.writing() as connection:
            self._add_review(connection, answer, reviewer, CORRECTED, request, "")
            if connection.scalar(select(corrections.c.id).where(corrections.c.request == request)) is None:
                names = {"answer": answer, "reviewer": reviewer, "request": request, "created": now()}
                connection.execute(insert(corrections).values(**names, **values))

    def corrections(self) -> dict[int, Correction]:
        """Return {id of an answer: its last correction}."""
        names = ("answer", "reviewer", "payload", "mask", "seconds", "created")
        rows = select(*(corrections.c[name] for name in names)).join(answers, answers.c.id == corrections.c.answer)
        with self.store.reading() as connection:
            ordered = connection.execute(rows.where(answers.c.study == self.id).order_by(corrections.c.id))
            return {row.answer: Correction(*row) for row in ordered}

    def _check_newest(self, connection: Connection, answer: int) -> None:
        """Raise UserError if an answer was corrected or belongs to a different study."""
        reviewed = connection.execute(
            select(answers.c.unit, answers.c.person).where(answers.c.study == self.id, answers.c.id == answer)
        ).first()
        if reviewed is None:
            raise UserError(f"study {self.name} has no answer {answer}")
        same = and_(answers.c.study == self.id, answers.c.unit == reviewed.unit, answers.c.person == reviewed.person)
        if connection.scalar(select(func.max(answers.c.id)).where(same)) != answer:
            raise UserError("this answer was corrected in the meantime; review the new answer")

    def reviewers(self) -> dict[int, list[set[str]]]:
        """Return {id of an answer: list of sets of people}. The first set contains the reviewers of the answer.

        Each further set contains the reviewers of a correction, including its author.
        """
        columns = reviews.c.answer, reviews.c.reviewer, reviews.c.verdict
        rows = select(*columns).join(answers, answers.c.id == reviews.c.answer).where(answers.c.study == self.id)
        names: dict[int, list[set[str]]] = {}
        with self.store.reading() as connection:
            for answer, reviewer, verdict in connection.execute(rows.order_by(reviews.c.id)):
                rounds = names.setdefault(answer, [set()])
                if verdict == CORRECTED:
                    rounds.append(set())
                rounds[-1].add(reviewer)
        return names

    def reviews(self) -> dict[int, Review]:
        """Return {id of an answer: its last review}."""
        columns = (reviews.c[name] for name in ("answer", "reviewer", "verdict", "comment", "created"))
        rows = select(*columns).join(answers, answers.c.id == reviews.c.answer).where(answers.c.study == self.id)
        with self.store.reading() as connection:
            return {row.answer: Review(*row) for row in connection.execute(rows.order_by(reviews.c.id))}


def _pseudonym(key: str, attempt: int = 0) -> str:
    """Return a pseudonym such as "p-7kq3xwab", which reveals neither the person's identity nor the number of people.

    The pseudonym is derived from the key, so a person who takes part on two servers with the same browser has the same
    pseudonym on both. It contains 40 bits of a hash, which reveal nothing about the key.
    """
    letters = "abcdefghjkmnpqrstuvwxyz23456789"  # no characters that look alike
    number = seed_of(key, "pseudonym", attempt)
    return "p-" + "".join(letters[number // len(letters) ** digit % len(letters)] for digit in range(8))


def _hash(text: str) -> str:
    return sha256(text.encode(errors="surrogatepass")).hexdigest()


def _encoded(mask: np.ndarray) -> bytes:
    """Encode a mask as PNG with one bit per pixel. This is eight times faster than one byte per pixel."""
    if mask.dtype != bool or mask.ndim != 2 or 0 in mask.shape:
        raise UserError(f"a mask must be a bool array (H, W), not {mask.dtype} {mask.shape}")
    buffer = BytesIO()
    Image.fromarray(mask).save(buffer, "png")
    return buffer.getvalue()


def _seconds(value: object) -> float:
    """Convert a value to a valid number of seconds. Invalid values are replaced, so that the answer is not lost."""
    if not isinstance(value, int | float) or (isinstance(value, float) and not np.isfinite(value)):
        return 0.0
    return float(min(max(value, 0.0), LONGEST))


def _answer(row: Any) -> Answer:
    names = ("id", "unit", "person", "revision", "payload", "image_sha256", "seconds", "created")
    return Answer(mask=row.get("mask"), **{name: row[name] for name in names})
