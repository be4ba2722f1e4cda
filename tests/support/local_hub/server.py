"""Serve the endpoints that the public clients use. Other requests get status 501, and all requests are recorded.

Clients send quoted revisions (`refs%2Fpr%2F1` is one segment), so routes match the path as sent.
"""

import base64
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

import yaml
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from local_hub.openid import OpenID
from local_hub.store import KINDS, Discussion, Entry, RefusedError, Repo, Store, is_large, now

BLOCK = 1 << 16
API = "/api/{kind}/{space}/{name}"
FILES = ("/{space}/{name}", "/{kind}/{space}/{name}")


@dataclass(frozen=True)
class User:
    """User with the token that the client sends; without `write` the token is read-only.

    reads: organisations in which the user has the role "read". scopes: namespaces of a fine-grained token.
    """

    name: str
    token: str
    orgs: tuple[str, ...] = ()
    write: bool = True
    reads: tuple[str, ...] = ()
    scopes: tuple[str, ...] | None = None

    def may_write(self, namespace: str) -> bool:
        own = self.may_read(namespace) and namespace not in self.reads
        return self.write and own and (self.scopes is None or namespace in self.scopes)

    def may_read(self, namespace: str) -> bool:
        return namespace in (self.name, *self.orgs)


@dataclass(frozen=True)
class Asked:
    """An answered request with its response."""

    method: str
    path: str
    status: int
    headers: dict[str, str] = field(repr=False)

    def __str__(self) -> str:
        return f"{self.method} {self.path} {self.status}"


class Server:
    """Server over a store for some users; `app` is the ASGI application."""

    def __init__(self, store: Store, users: list[User]):
        self.store, self.users = store, users
        self.asked: list[Asked] = []
        self.openid = OpenID(self)
        routes = [self._route(*each) for each in self.endpoints()]
        self.app = Starlette(routes=routes, exception_handlers={404: unserved, 405: unserved})

    def endpoints(self) -> list[tuple[str, str, Callable]]:
        resolve = [(method, f"{place}/resolve/{{rev}}/{{path:path}}", self.resolve)
                   for place in FILES for method in ("HEAD", "GET")]  # fmt: skip
        batch = [("POST", f"{place}.git/info/lfs/objects/batch", self.lfs_batch) for place in FILES]
        return [
            ("GET", "/api/whoami-v2", self.whoami),
            ("GET", "/api/agent-harnesses", self.agent_harnesses),
            ("POST", "/api/validate-yaml", self.validate_yaml),
            ("POST", "/api/repos/create", self.create),
            ("DELETE", "/api/repos/delete", self.delete),
            ("PUT", f"{API}/settings", self.settings),
            ("GET", "/api/{kind}", self.search),
            ("GET", API, self.info),
            ("GET", f"{API}/revision/{{rev}}", self.info),
            ("GET", f"{API}/refs", self.refs),
            ("GET", f"{API}/commits/{{rev}}", self.commits),
            ("GET", f"{API}/tree/{{rev}}", self.tree),
            ("GET", f"{API}/tree/{{rev}}/{{path:path}}", self.tree),
            ("POST", f"{API}/paths-info/{{rev}}", self.paths_info),
            ("POST", f"{API}/tag/{{rev}}", self.tag),
            ("POST", f"{API}/preupload/{{rev}}", self.preupload),
            ("POST", f"{API}/commit/{{rev}}", self.commit),
            ("GET", f"{API}/discussions", self.discussions),
            ("POST", f"{API}/discussions", self.open_discussion),
            ("GET", f"{API}/discussions/{{num:int}}", self.discussion),
            ("POST", f"{API}/discussions/{{num:int}}/comment", self.comment),
            ("POST", f"{API}/discussions/{{num:int}}/status", self.status),
            ("POST", f"{API}/discussions/{{num:int}}/merge", self.merge),
            *batch,
            ("PUT", "/lfs-storage/{oid}", self.lfs_put),
            ("POST", "/lfs-verify", self.lfs_verify),
            *resolve,
            *self.openid.endpoints(),
        ]

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            return
        scope = {**scope, "path": scope["raw_path"].decode("ascii").partition("?")[0]}
        asked = Asked(scope["method"], scope["path"], 0, {})
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}

        async def noted(message):
            if message["type"] == "http.response.start":
                self.asked.append(Asked(asked.method, asked.path, message["status"], headers))
            await send(message)

        await self.app(scope, receive, noted)

    def _route(self, method: str, path: str, endpoint: Callable) -> Route:
        async def answered(request: Request) -> Response:
            try:
                return await endpoint(request)
            except RefusedError as error:
                return refused(error)

        return Route(path, answered, methods=[method])

    # User and target of a request

    def user(self, request: Request) -> User | None:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if not scheme:
            return None
        found = next((user for user in self.users if user.token == token), None)
        if found is None:
            raise RefusedError(401, "Invalid credentials in Authorization header")
        return found

    def known(self, request: Request) -> User:
        if user := self.user(request):
            return user
        raise RefusedError(401, "Invalid username or password.")

    def repo(self, request: Request) -> Repo:
        """Return the repository of the path if the user may read it; otherwise do not reveal whether it exists."""
        user, place = self.user(request), request.path_params
        kind = place.get("kind", "models")
        if kind not in KINDS:
            raise RefusedError(501, f"this Hub does not serve {kind}")
        name = f"{unquote(place['space'])}/{unquote(place['name'])}"
        found = self.store.repos.get((kind, name))
        hidden = found is not None and found.private and not (user and user.may_read(name.partition("/")[0]))
        if found is None or hidden:
            if user is None:
                raise RefusedError(401, "Invalid username or password.", "RepoNotFound")
            raise RefusedError(404, "Repository not found", "RepoNotFound")
        return found

    def writable(self, request: Request) -> Repo:
        user, repo = self.known(request), self.repo(request)
        if not user.may_write(repo.id.partition("/")[0]):
            raise RefusedError(403, f"you are not allowed to write to {repo.id} with this token")
        return repo

    def changeable(self, request: Request, revision: str, pull: bool) -> Repo:
        """Check write access: any user may open a pull request, but only its author or the owner may add to it."""
        if not pull and revision.startswith("refs/pr/"):
            repo, num = self.repo(request), revision.rpartition("/")[2]
            author = next((each.author for each in repo.discussions if str(each.num) == num), None)
            if author is not None and self.known(request).name == author:
                return repo
        if not pull:
            return self.writable(request)
        if not self.known(request).write:
            raise RefusedError(403, "this token may only read")
        return self.repo(request)

    # Accounts and repositories

    async def whoami(self, request: Request) -> Response:
        user = self.known(request)
        token = {"displayName": "test", "role": "write" if user.write else "read"}
        if user.scopes is not None:
            scoped = [{"entity": {"type": "user" if name == user.name else "org", "name": name},
                       "permissions": ["repo.content.read", "repo.write"]} for name in user.scopes]  # fmt: skip
            token |= {"role": "fineGrained", "fineGrained": {"global": [], "scoped": scoped}}
        return JSONResponse(
            {
                "type": "user", "id": user.name, "name": user.name, "fullname": user.name, "isPro": False,
                "orgs": [{"type": "org", "id": org, "name": org, "roleInOrg": "read" if org in user.reads else "write"}
                         for org in user.orgs],
                "auth": {"type": "access_token", "accessToken": token},
            }
        )  # fmt: skip

    async def agent_harnesses(self, request: Request) -> Response:
        return JSONResponse({})

    async def validate_yaml(self, request: Request) -> Response:
        content = (await request.json())["content"]
        try:
            card = card_data(content)
        except yaml.YAMLError as error:
            return JSONResponse({"errors": [{"message": str(error)}], "warnings": []}, 400)
        missing = [] if card else [{"message": "empty or missing yaml metadata in repo card"}]
        return JSONResponse({"errors": [], "warnings": missing})

    async def create(self, request: Request) -> Response:
        user, asked = self.known(request), await request.json()
        space, kind = asked.get("organization") or user.name, f"{asked.get('type') or 'model'}s"
        if not user.may_write(space):
            raise RefusedError(403, f'You don\'t have the rights to create a {kind[:-1]} under the namespace "{space}"')
        name = f"{space}/{asked['name']}"
        if (kind, name) in self.store.repos:
            answer = {"error": f"You already created this {kind[:-1]} repo", "url": self.page(request, kind, name)}
            return JSONResponse(answer, 409)
        private = asked.get("visibility") == "private" or bool(asked.get("private"))
        repo = Repo(kind, name, private, {"sdk": asked["sdk"]} if kind == "spaces" else {})
        attributes = self.store.entry_of(".gitattributes", b"*.parquet filter=lfs diff=lfs merge=lfs -text\n")
        repo.write("refs/heads/main", {".gitattributes": attributes}, "initial commit", "", user.name)
        self.store.repos[kind, name] = repo
        self.store.save(repo)
        return JSONResponse({"url": self.page(request, kind, name), "name": name, "id": name})

    async def delete(self, request: Request) -> Response:
        asked = await request.json()
        user = self.known(request)
        space, kind = asked.get("organization") or user.name, f"{asked.get('type') or 'model'}s"
        repo = self.store.repos.get((kind, f"{space}/{asked['name']}"))
        if repo is None:
            raise RefusedError(404, "Repository not found", "RepoNotFound")
        if not user.may_write(space):
            raise RefusedError(403, "you are not allowed to delete this")
        self.store.delete(repo)
        return Response(status_code=204)

    async def settings(self, request: Request) -> Response:
        repo, asked = self.writable(request), await request.json()
        if "visibility" in asked:
            repo.private = asked["visibility"] == "private"
            self.store.save(repo)
        return JSONResponse({"private": repo.private})

    async def search(self, request: Request) -> Response:
        kind, user = request.path_params["kind"], self.user(request)
        if kind not in KINDS:
            raise RefusedError(501, f"this Hub does not serve /api/{kind}")
        author, text = request.query_params.get("author"), request.query_params.get("search", "")
        spaces = {repo.id: repo.id.partition("/")[0] for repo in self.store.repos.values()}
        found = [
            self.about(repo, "main", full=False) for (of, name), repo in sorted(self.store.repos.items())
            if of == kind and author in (None, spaces[name]) and text in name
            and (not repo.private or (user and user.may_read(spaces[name])))
        ]  # fmt: skip
        return JSONResponse(found)

    async def info(self, request: Request) -> Response:
        revision = unquote(request.path_params.get("rev", "main"))
        return JSONResponse(self.about(self.repo(request), revision, "blobs" in request.query_params))

    def about(self, repo: Repo, revision: str, blobs: bool = False, full: bool = True) -> dict:
        commit, card = repo.commits[repo.commit_id(revision)], {}
        if "README.md" in commit.files:
            card = card_data(self.store.blob(commit.files["README.md"].sha256).read_text("utf-8")) or {}
        answer = {
            "_id": hashlib.md5(repo.id.encode()).hexdigest()[:24], "id": repo.id, "modelId": repo.id,
            "author": repo.id.partition("/")[0], "sha": repo.commit_id(revision), "lastModified": commit.date,
            "createdAt": repo.history("main")[-1][1].date, "private": repo.private, "gated": False, "disabled": False,
            "downloads": 0, "likes": 0, "tags": card.get("tags", []), **repo.settings,
        }  # fmt: skip
        if not full:
            return answer
        siblings = [{"rfilename": path} | (sizes(entry) if blobs else {})
                    for path, entry in sorted(commit.files.items())]  # fmt: skip
        return answer | {"siblings": siblings, "cardData": json.loads(json.dumps(card, default=str))}

    # Revisions

    async def refs(self, request: Request) -> Response:
        repo = self.repo(request)

        def named(prefix: str) -> list[dict]:
            return [{"name": ref.removeprefix(prefix), "ref": ref, "targetCommit": commit}
                    for ref, commit in repo.refs.items() if ref.startswith(prefix)]  # fmt: skip

        pulls = [each | {"name": each["ref"]} for each in named("refs/pr/")]
        more = {"pullRequests": pulls} if "include_prs" in request.query_params else {}
        return JSONResponse({"branches": named("refs/heads/"), "tags": named("refs/tags/"), "converts": [], **more})

    async def commits(self, request: Request) -> Response:
        history = self.repo(request).history(unquote(request.path_params["rev"]))
        return JSONResponse(
            [
                {"id": name, "title": each.title, "message": each.message, "date": each.date,
                 "authors": [{"user": each.author}]}
                for name, each in history
            ]
        )  # fmt: skip

    async def tag(self, request: Request) -> Response:
        repo, name = self.writable(request), (await request.json())["tag"]
        if f"refs/tags/{name}" in repo.refs:
            raise RefusedError(409, "Tag reference exists already")
        repo.refs[f"refs/tags/{name}"] = repo.commit_id(unquote(request.path_params["rev"]))
        self.store.save(repo)
        return JSONResponse({})

    # Reading

    async def tree(self, request: Request) -> Response:
        repo, revision = self.repo(request), unquote(request.path_params["rev"])
        commit = repo.commits[repo.commit_id(revision)]
        folder = unquote(request.path_params.get("path", "")).strip("/")
        recursive = request.query_params.get("recursive", "").lower() in ("1", "true")
        found, folders = [], set()
        for path, entry in sorted(commit.files.items()):
            if folder and not path.startswith(f"{folder}/"):
                continue
            parts = path.removeprefix(f"{folder}/" if folder else "").split("/")
            above = ["/".join(filter(None, [folder, *parts[:depth]])) for depth in range(1, len(parts))]
            folders |= set(above if recursive else above[:1])
            if recursive or len(parts) == 1:
                found.append(listed(path, entry))
        if folder and not found and not folders:
            raise RefusedError(404, f"{folder} does not exist on {revision}", "EntryNotFound")
        last = {"lastCommit": {"id": repo.commit_id(revision), "title": commit.title, "date": commit.date}}
        more = last if request.query_params.get("expand", "").lower() in ("1", "true") else {}
        trees = [{"type": "directory", "path": path, "oid": "0" * 40, "size": 0} for path in sorted(folders)]
        return JSONResponse([each | more for each in trees + found])

    async def paths_info(self, request: Request) -> Response:
        files = self.repo(request).files(unquote(request.path_params["rev"]))
        form = await request.form()
        paths = [str(path) for path in form.getlist("paths")]
        folders = [path for path in paths if any(file.startswith(f"{path}/") for file in files)]
        trees = [{"type": "directory", "path": path, "oid": "0" * 40, "size": 0} for path in folders]
        return JSONResponse(trees + [listed(path, files[path]) for path in paths if path in files])

    async def resolve(self, request: Request) -> Response:
        repo, revision = self.repo(request), unquote(request.path_params["rev"])
        path = unquote(request.path_params["path"])
        try:
            entry, commit = repo.entry(revision, path), repo.commit_id(revision)
        except RefusedError as error:
            here = {"x-repo-commit": repo.commit_id(revision)} if error.code == "EntryNotFound" else {}
            return refused(error, here)
        headers = {"etag": f'"{entry.etag}"', "x-repo-commit": commit, "accept-ranges": "bytes",
                   "content-type": "application/octet-stream"}  # fmt: skip
        if entry.lfs:
            headers |= {"x-linked-etag": f'"{entry.etag}"', "x-linked-size": str(entry.size)}
        return ranged(request, self.store.blob(entry.sha256), entry.size, headers)

    # Writing

    async def preupload(self, request: Request) -> Response:
        revision = unquote(request.path_params["rev"])
        repo = self.changeable(request, revision, "create_pr" in request.query_params)
        there, asked = repo.files(revision), (await request.json())["files"]
        answer = [
            {"path": file["path"], "shouldIgnore": False,
             "oid": there[file["path"]].etag if file["path"] in there else None,
             "uploadMode": "lfs" if is_large(file["path"], file["size"]) else "regular"}
            for file in asked
        ]  # fmt: skip
        return JSONResponse({"files": answer})

    async def lfs_batch(self, request: Request) -> Response:
        user = self.known(request)
        self.repo(request)
        if not user.write:
            raise RefusedError(403, "this token may only read")
        asked, home = await request.json(), f"{request.url.scheme}://{request.headers['host']}"
        objects = []
        for each in asked["objects"]:
            actions = {"upload": {"href": f"{home}/lfs-storage/{each['oid']}"},
                       "verify": {"href": f"{home}/lfs-verify"}}  # fmt: skip
            objects.append(each | ({} if self.store.has(each["oid"]) else {"actions": actions}))
        return JSONResponse({"transfer": "basic", "objects": objects})

    async def lfs_put(self, request: Request) -> Response:
        """Accept an upload like a storage service: without an account, but the content must match its hash."""
        content = await request.body()
        if hashlib.sha256(content).hexdigest() != request.path_params["oid"]:
            raise RefusedError(400, "the content does not match its hash")
        self.store.keep(content)
        return Response(headers={"etag": f'"{request.path_params["oid"]}"'})

    async def lfs_verify(self, request: Request) -> Response:
        self.known(request)
        asked = await request.json()
        if not self.store.has(asked["oid"]) or self.store.blob(asked["oid"]).stat().st_size != asked["size"]:
            raise RefusedError(404, "no such LFS object")
        return JSONResponse({})

    async def commit(self, request: Request) -> Response:
        revision, pull = unquote(request.path_params["rev"]), "create_pr" in request.query_params
        repo, user = self.changeable(request, revision, pull), self.known(request)
        lines = [json.loads(line) for line in (await request.body()).splitlines() if line.strip()]
        header = lines[0]["value"]
        parent = repo.commit_id(revision)
        if header.get("parentCommit") not in (None, parent):
            raise RefusedError(412, "A commit has happened since. Please refresh and try again.")
        files = self.applied(repo.commits[parent].files, lines[1:])
        ref = next((ref for ref in (f"refs/heads/{revision}", revision) if ref in repo.refs), None)
        if ref is None:
            raise RefusedError(400, f"{revision} is no branch")
        extra = {}
        if pull:
            num = self.opened(repo, user, header["summary"], parent)
            if header.get("description"):
                self.happened(repo, num, "comment", user, worded(header["description"]))
            ref = f"refs/pr/{num}"
            extra = {"pullRequestUrl": f"{self.page(request, repo.kind, repo.id)}/discussions/{num}"}
        commit = repo.write(ref, files, header["summary"], header.get("description", ""), user.name)
        if ref.startswith("refs/pr/"):
            event = {"subject": header["summary"], "oid": commit}
            self.happened(repo, int(ref.rpartition("/")[2]), "commit", user, event)
        self.store.save(repo)
        place = f"{self.page(request, repo.kind, repo.id)}/commit/{commit}"
        return JSONResponse({"success": True, "commitOid": commit, "commitUrl": place, **extra})

    def applied(self, files: dict[str, Entry], operations: list[dict]) -> dict[str, Entry]:
        files = dict(files)
        for operation in operations:
            key, value = operation["key"], operation["value"]
            path = value["path"]
            if key == "file":
                files[path] = self.store.small(base64.b64decode(value["content"]))
            elif key == "lfsFile":
                files[path] = self.store.large(value["oid"])
            elif key == "deletedFile":
                if files.pop(path, None) is None:
                    raise RefusedError(404, f"A file with this name doesn't exist: {path}", "EntryNotFound")
            elif key == "deletedFolder":
                files = {name: entry for name, entry in files.items() if not name.startswith(path.rstrip("/") + "/")}
            else:
                raise RefusedError(501, f"this Hub knows no operation {key}")
        return files

    # Discussions and pull requests

    def opened(self, repo: Repo, user: User, title: str, base: str | None) -> int:
        num = len(repo.discussions) + 1
        repo.discussions.append(Discussion(num, title, user.name, now(), base is not None, base=base))
        if base is not None:
            repo.refs[f"refs/pr/{num}"] = base
        return num

    def happened(self, repo: Repo, num: int, kind: str, user: User, data: dict) -> dict:
        events = repo.discussions[num - 1].events
        event = {"id": f"{num}-{len(events)}", "type": kind, "createdAt": now(), "author": {"name": user.name},
                 "data": data}  # fmt: skip
        events.append(event)
        return event

    def found(self, request: Request) -> tuple[Repo, Discussion]:
        repo, num = self.repo(request), request.path_params["num"]
        if not 1 <= num <= len(repo.discussions):
            raise RefusedError(404, "Discussion not found")
        return repo, repo.discussions[num - 1]

    async def discussions(self, request: Request) -> Response:
        asked, repo = request.query_params, self.repo(request)
        wanted = [
            each for each in reversed(repo.discussions)
            if asked.get("author") in (None, each.author)
            and asked.get("type") in (None, "all", "pull_request" if each.is_pull_request else "discussion")
            and asked.get("status") in (None, "all", "open" if each.status in ("open", "draft") else "closed")
        ]  # fmt: skip
        start, size = int(asked.get("p", 0)) * 50, 50
        page = [told(repo, each) for each in wanted[start : start + size]]
        return JSONResponse({"discussions": page, "count": len(wanted), "start": start})

    async def open_discussion(self, request: Request) -> Response:
        user, repo, asked = self.known(request), self.repo(request), await request.json()
        base = repo.commit_id("main") if asked.get("pullRequest") else None
        num = self.opened(repo, user, asked["title"], base)
        if base is not None:
            repo.discussions[num - 1].status = "draft"
        self.happened(repo, num, "comment", user, worded(asked.get("description", "")))
        self.store.save(repo)
        return JSONResponse({"num": num, "pullRequest": base is not None})

    async def discussion(self, request: Request) -> Response:
        repo, one = self.found(request)
        answer = told(repo, one) | {"events": one.events}
        if one.is_pull_request:
            changes = {"base": "refs/heads/main", **({"mergeCommitId": one.merged} if one.merged else {})}
            conflicts = [] if one.status == "merged" else repo.conflicts(one)
            answer |= {"changes": changes, "filesWithConflicts": conflicts, "diff": self.diff(repo, one)}
        return JSONResponse(answer)

    def diff(self, repo: Repo, pull: Discussion) -> str:
        before, after = repo.files(pull.base or ""), repo.files(f"refs/pr/{pull.num}")
        changed = [path for path in sorted(before | after) if before.get(path) != after.get(path)]
        return "".join(f"diff --git a/{path} b/{path}\n" for path in changed)

    async def comment(self, request: Request) -> Response:
        user, (repo, one) = self.known(request), self.found(request)
        event = self.happened(repo, one.num, "comment", user, worded((await request.json())["comment"]))
        self.store.save(repo)
        return JSONResponse({"newMessage": event})

    async def status(self, request: Request) -> Response:
        user, (repo, one) = self.known(request), self.found(request)
        if user.name != one.author:
            self.writable(request)
        one.status = (await request.json())["status"]
        event = self.happened(repo, one.num, "status-change", user, {"status": one.status})
        self.store.save(repo)
        return JSONResponse({"newStatus": event})

    async def merge(self, request: Request) -> Response:
        self.writable(request)
        user, (repo, one) = self.known(request), self.found(request)
        if not one.is_pull_request or one.status not in ("open", "draft"):
            raise RefusedError(400, "only an open pull request can be merged")
        repo.merge(one, user.name)
        self.happened(repo, one.num, "status-change", user, {"status": "merged"})
        self.store.save(repo)
        return JSONResponse({})

    def page(self, request: Request, kind: str, name: str) -> str:
        place = "" if kind == "models" else f"{kind}/"
        return f"{request.url.scheme}://{request.headers['host']}/{place}{name}"


async def unserved(request: Request, error: Exception) -> Response:
    return refused(RefusedError(501, f"this Hub does not serve {request.method} {request.scope['path']}"))


def refused(error: RefusedError, more: dict[str, str] | None = None) -> Response:
    headers = {"x-error-message": error.message} | ({"x-error-code": error.code} if error.code else {}) | (more or {})
    return JSONResponse({"error": error.message}, error.status, headers)


def card_data(text: str) -> dict | None:
    parts = text.split("---\n", 2)
    return yaml.safe_load(parts[1]) if len(parts) == 3 and not parts[0].strip() else None


def sizes(entry: Entry) -> dict:
    large = {"lfs": {"size": entry.size, "sha256": entry.sha256, "pointerSize": 130}} if entry.lfs else {}
    return {"size": entry.size, "blobId": entry.oid, **large}


def listed(path: str, entry: Entry) -> dict:
    large = {"lfs": {"oid": entry.sha256, "size": entry.size, "pointerSize": 130}} if entry.lfs else {}
    return {"type": "file", "path": path, "size": entry.size, "oid": entry.oid, **large}


def told(repo: Repo, one: Discussion) -> dict:
    return {
        "num": one.num, "title": one.title, "author": {"name": one.author}, "createdAt": one.date, "status": one.status,
        "isPullRequest": one.is_pull_request, "repo": {"name": repo.id, "type": repo.kind[:-1]},
    }  # fmt: skip


def worded(text: str) -> dict:
    return {"edited": False, "hidden": False, "latest": {"raw": text, "html": ""}}


def ranged(request: Request, path: Path, size: int, headers: dict[str, str]) -> Response:
    start, stop, status = 0, size, 200
    unit, _, asked = request.headers.get("range", "").partition("=")
    if unit.strip() == "bytes" and "," not in asked:
        first, _, last = asked.strip().partition("-")
        start = int(first) if first else max(size - int(last), 0)
        stop = min(int(last) + 1, size) if first and last else size
        status = 206
        if start >= size:
            return Response(status_code=416, headers={"content-range": f"bytes */{size}"})
        headers = headers | {"content-range": f"bytes {start}-{stop - 1}/{size}"}
    headers = headers | {"content-length": str(stop - start)}
    if request.method == "HEAD":
        return Response(status_code=status, headers=headers)
    return StreamingResponse(blocks(path, start, stop), status, headers)


async def blocks(path: Path, start: int, stop: int):
    with path.open("rb") as file:
        file.seek(start)
        while start < stop and (block := file.read(min(BLOCK, stop - start))):
            start += len(block)
            yield block
