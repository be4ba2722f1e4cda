"""Provide the OpenID Connect endpoints with which an app on a Space signs users in.

The user in `signed_in` immediately grants all requests of the app. The access token is the token of the account.
"""

import base64
import secrets
import time
from urllib.parse import parse_qs, urlencode

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from local_hub.store import RefusedError

CLIENT, SECRET = "app-of-a-test", "sEcReTofAnApPoFaTeSt0123456789abcd"
SCOPES = "openid profile read-repos write-discussions"
GRANT = "authorization_code"


class OpenID:
    """OpenID endpoints.

    server: the Hub with the users. signed_in: account name in the browser; None rejects the sign-in."""

    def __init__(self, server):
        self.server, self.signed_in, self._key = server, None, None
        self._codes = {}

    def endpoints(self):
        return [
            ("GET", "/.well-known/openid-configuration", self.configuration),
            ("GET", "/oauth/jwks", self.keys),
            ("GET", "/oauth/authorize", self.authorize),
            ("POST", "/oauth/token", self.token),
            ("GET", "/oauth/userinfo", self.userinfo),
        ]

    @property
    def key(self):
        """Return the key, created on first use because few tests sign in."""
        from joserfc.jwk import RSAKey

        self._key = self._key or RSAKey.generate_key(2048, {"kid": "test", "use": "sig", "alg": "RS256"})
        return self._key

    async def configuration(self, request: Request) -> Response:
        home = home_of(request)
        return JSONResponse({
            "issuer": home, "jwks_uri": f"{home}/oauth/jwks", "authorization_endpoint": f"{home}/oauth/authorize",
            "token_endpoint": f"{home}/oauth/token", "userinfo_endpoint": f"{home}/oauth/userinfo",
            "response_types_supported": ["code"], "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["RS256"], "scopes_supported": SCOPES.split(),
        })  # fmt: skip

    async def keys(self, request: Request) -> Response:
        return JSONResponse({"keys": [self.key.as_dict(private=False)]})

    async def authorize(self, request: Request) -> Response:
        asked = request.query_params
        if asked.get("client_id") != CLIENT or asked.get("response_type") != "code":
            raise RefusedError(400, "unknown app")
        back = {"state": asked.get("state", "")}
        if self.signed_in is None:
            back |= {"error": "access_denied"}
        else:
            code = secrets.token_hex(16)
            self._codes[code] = (self.signed_in, asked.get("nonce"), asked["redirect_uri"])
            back |= {"code": code}
        address = asked["redirect_uri"]
        return RedirectResponse(address + ("&" if "?" in address else "?") + urlencode(back), 302)

    async def token(self, request: Request) -> Response:
        from joserfc import jwt

        given = {name: values[0] for name, values in parse_qs((await request.body()).decode()).items()}
        scheme, _, packed = request.headers.get("authorization", "").partition(" ")
        app = base64.b64decode(packed).decode() if scheme == "Basic" else ""
        if app != f"{CLIENT}:{SECRET}" or given.get("grant_type") != GRANT:
            raise RefusedError(401, "invalid_client")
        name, nonce, address = self._codes.pop(given.get("code"), (None, None, None))
        if name is None or given.get("redirect_uri") != address:
            raise RefusedError(400, "invalid_grant")
        now = int(time.time())
        claims = {"iss": home_of(request), "aud": CLIENT, "iat": now, "exp": now + 3600, "nonce": nonce, **about(name)}
        signed = jwt.encode({"alg": "RS256", "kid": "test"}, claims, self.key)
        user = next(user for user in self.server.users if user.name == name)
        return JSONResponse({"access_token": user.token, "token_type": "bearer", "expires_in": 3600, "scope": SCOPES,
                             "id_token": signed})  # fmt: skip

    async def userinfo(self, request: Request) -> Response:
        return JSONResponse(about(self.server.known(request).name))


def home_of(request: Request) -> str:
    return f"{request.url.scheme}://{request.headers['host']}"


def about(name: str) -> dict[str, str]:
    return {"sub": name, "name": name, "preferred_username": name, "profile": f"/{name}", "picture": ""}


def environment(home: str) -> dict[str, str]:
    """Return the environment variables that the Hub sets for a Space with `hf_oauth: true` in its card."""
    return {"SYSTEM": "spaces", "SPACE_ID": "saliency-bench/leaderboard", "OAUTH_CLIENT_ID": CLIENT,
            "OAUTH_CLIENT_SECRET": SECRET, "OAUTH_SCOPES": SCOPES, "OPENID_PROVIDER_URL": home}  # fmt: skip
