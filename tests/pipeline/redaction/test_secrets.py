"""Secrets are never recorded, written or printed, neither by name nor by value, and nothing else is masked."""

import json
import os
import sqlite3
import threading
import time
import zipfile
from base64 import b64encode
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path
from urllib.parse import quote

import pytest
from omegaconf import OmegaConf

from pipeline.config.names import flatten
from pipeline.redaction import MASK, GuardedStream, is_secret_name, learn, learn_arguments, redact, redact_overrides
from tests import commands
from tests.conftest import ROOT, outputs_in
from tests.pipeline.experiments import SMALL, Patch, experiment

pytestmark = pytest.mark.slow

SECRET_NAMES = """
password passwd pwd pass passphrase pass_phrase token secret api_key apikey api-key API_KEY apiKey APIKey
access_key private_key credential credentials auth bearer cookie connection_string ConnectionString dsn client_secret
aws_secret_access_key AWS_SECRET_ACCESS_KEY GITHUB_TOKEN HF_TOKEN WANDB_API_KEY tags.api_key my.dbPassword hfToken
githubtoken dbpassword userPassword SECRET_KEY X-Api-Key x-auth-token refresh_token accessToken
basic_auth AccountKey OPENAI_KEY password2 secret_value PGPASSWORD MYSQL_PWD
DJANGO_SECRET AZURE_STORAGE_CONNECTION_STRING PASSWORD_1 pgpass KAGGLE_KEY
SMTP_PASS MAIL_PASS2 STRIPE_KEY MYKEY KEY PASS DB_PWD FOO_PASSWD SORT_KEY GCP_CREDENTIALS DB_AUTH A_TOKEN_3 TOKEN2
""".split()  # noqa: SIM905

ORDINARY_NAMES = """
tokenizer num_tokens passes authors author secretary authority max_token pad_token eos_token_id token_type compass
bypass password_file secret_name keyboard monkey key sort_key public_key primary_key cache_key sessions patch passed
design tokens signatures tokens_per_second token_embedding TOKENIZERS_PARALLELISM SSH_AUTH_SOCK XAUTHORITY num_pass
low_pass forward_pass data.dir seed path pattern accuracy train.epochs tracking.uri train/images_per_second
token_ratio token_heads keep_token_ratio n_pass pin_memory
""".split()  # noqa: SIM905

IN_TEXT = {
    "Authorization: Basic aGVpbnJpY2g6eA==": "aGVpbnJpY2g6eA",
    "curl -H 'X-Api-Key: 1234-abcd' http://host": "1234-abcd", "Cookie: sid=31d4d96e; theme=dark": "31d4d96e",
    "sent with Bearer abc123def": "abc123def", "AccountName=x;AccountKey=Zm9vYmFy/9==;EndpointSuffix=y": "Zm9vYmFy",
    "Server=db;User Id=sa;Pwd=s3cret!;": "s3cret!", "redis://:hunter2@host:6379": "hunter2",
    "data.files=https://host/a.csv?se=2026&sig=aB%2Bc9": "aB%2Bc9",
    "'s3://b/a?X-Amz-Signature=4f2a71&X-Amz-Expires=60'": "4f2a71", '{"auth": {"apiKey": "abc def"}}': "abc def",
    'api_key = "in code"': "in code", "db_password: unquoted": "unquoted",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIB\n-----END RSA PRIVATE KEY-----": "MIIEpAIB",
}  # fmt: skip

S = "tulip9Rose7x"
INSIDE = (
    "tracking.note=token={}",
    "tracking.note='see token={} there'",
    'note="a, password: {}"',
    "a=b=c=token={}",
    "url=http://h/?token={}&x=1",
    "http://h/?token={}",
    "http://h/#access_token={}&y=2",
    "data.url=https://h/p?api_key={}",
    "next=http%3A%2F%2Fh%2F%3Ftoken%3D{}%26x%3D1",
    "x=token%253D{}",
    "postgres%3A%2F%2Fme%3A{}%40h",
    'x.config={{"token": "{}"}}',
    """x.config='{{"a": {{"token": "{}"}}}}'""",
    "+x={{a: 1, token: {}}}",
    "+x=[{{api_key: {}}}]",
    "RuntimeError(ValueError('bad password={}'))",
    "RuntimeError('outer', ValueError(\"password='{}'\"))",
    "ValueError: password: {}",
    "KeyError: wrong password: {}",
    "conn='Server=h;Pwd={};Timeout=3'",
    "DRIVER={{x}};UID=me;PWD={}",
    "host=h user=me password={}",
    "tool --password {} --x",
    "tool --password={} --x",
    "['tool', '--password', '{}', 'x']",
    "run --api-key {}",
    "curl -u me:{} http://h",
    "curl --user 'me:{}' http://h",
    "password: |\n  first\n  {}\n",
    'password="line1\n{}\n"',
    "credentials:\n- a\n- {}\n",
    "a:\n  token: {}\n",
    "auth={{u: {}}}",
    '{{"credentials": {{"a": "{}"}}}}',
    "<password>{}</password>",
    '<x password="{}"/>',
    "token -> {}",
    'token="ab\\"{}"',
    "password=ab,{}",
    "password=ab&{}",
    "the password: {}",
    "password=none-{}",
    "password=$e{}",
)
"""Texts with a secret inside of a larger value."""

ORDINARY_TEXTS = """
without a password: https://docs.ray.io/en/latest/ray-security/index.html
listen on all network interfaces without a password: docs/how-to/clusters.md
the token: a word of the vocabulary; every secret: nobody knows
--password is not given, and --token must be
token_auth=<it> password=${oc.env:X} PWD=/root/data
data.features={cookies_enabled: category} "cookies": "category"
MLFLOW_TRACKING_PASSWORD=mlflow
seed=42 tokenizer=bpe num_tokens=512 passes=3 keep_token=0.1 noise_sig=[1,2.5]
epoch 3/30  loss 0.0425  accuracy 0.9907  val_loss 0.0120
model pass 3: loss 0.5
def f(password: str, token: str = None) -> Session:
self.token = tokenizer.next()
session = tf.Session()
api_key = os.environ['X']
e.g. password=…, token=<value>, secret=${oc.env:X}
http://host:5000/a@b and me@example.org
Basic training of models
sqlite:////home/you/pipeline/outputs/mlflow.db
task-abcdefghijklmnopqrstuvwxyz
the user root of postgres in /root/data is true
""".strip().splitlines()


@pytest.fixture(autouse=True)
def nothing_learned(monkeypatch: Patch) -> None:
    monkeypatch.setattr("pipeline.redaction.learned", set())


@pytest.mark.smoke
def test_names_of_secrets_are_recognized_in_every_style_and_ordinary_names_are_not() -> None:
    assert [name for name in SECRET_NAMES if not is_secret_name(name)] == []
    assert [name for name in ORDINARY_NAMES if is_secret_name(name)] == []


def test_no_setting_of_the_project_has_the_name_of_a_secret() -> None:
    for given in ((), ("train=fit", "data=synthetic", "strategy=multi_worker", "model=mobilenet_v2", "optimizer=sgd")):
        document = OmegaConf.to_container(experiment(*given).document)
        assert isinstance(document, dict)
        assert [name for name, _ in flatten(document) if is_secret_name(name)] == []


@pytest.mark.smoke
def test_a_mapping_is_masked_by_name_at_every_depth() -> None:
    given = {"tags": {"api_key": "x", "note": "y"}, "a": [{"pwd": 1234567, "on": True, "token": None}]}
    masked = {"tags": {"api_key": "***", "note": "y"}, "a": [{"pwd": "***", "on": True, "token": None}]}
    assert redact({**given, "auth": {"u": ["v"]}}) == {**masked, "auth": {"u": ["***"]}}
    numbers = {"keep_token": 0.25, "noise_sig": [1, 2.5], "api_token": 64}
    assert redact(numbers) == numbers, "not secrets, and runs differ in them"
    assert redact({"token": 12345678, "password": "x"}) == {"token": "***", "password": "***"}
    words = ("tracking.tags.api_key=%s", "seed=1", "token=")
    assert redact_overrides([words[0] % "a b", *words[1:]]) == [words[0] % "***", *words[1:]]


def test_values_after_the_name_of_a_secret_are_masked_in_texts() -> None:
    for text, secret in IN_TEXT.items():
        assert secret not in redact(text), text
        assert redact(redact(text)) == redact(text)


def test_secrets_are_masked_inside_of_larger_values() -> None:
    nested = json.dumps({"a": json.dumps({"b": json.dumps({"token": S})})})
    for text in (*(form.format(S) for form in INSIDE), nested):
        for masked in (redact(text), redact([text])[0], redact({"x": {text: 1}}), *redact_overrides([text])):
            assert S not in str(masked), text
            assert MASK in str(masked), text
        assert redact(redact(text)) == redact(text)
    assert redact({"argv": ["tool", "--token", S, "x"]}) == {"argv": ["tool", "--token", MASK, "x"]}
    learn({"password": S})
    assert S not in redact(b64encode(S.encode()).decode())


def test_the_search_for_secrets_takes_linear_time() -> None:
    """This also holds for texts that a pattern could match in very many ways."""
    began = time.perf_counter()
    for part in (
        "a=",
        'q"',
        'x: "',
        "%3d",
        "x-",
        "x={a",
        "\\",
        "http://",
        "<a>",
        "a:\n- ",
        "a=b;b ,",
        "token=a, b",
        "the ",
    ):
        redact(part * 5000)
    assert time.perf_counter() - began < 30


def test_ordinary_texts_stay_readable(monkeypatch: Patch) -> None:
    common = {"USER": "root", "A_TOKEN": "true", "B_SECRET": "root", "C_PWD": "1234"}
    for name, value in {**common, "PWD": "/root/data", "XDG_SESSION_ID": "sqlite"}.items():
        monkeypatch.setenv(name, value)
    learn({"password": "short", "token": 42, "auth": "you", "cookies_enabled": "category"})
    assert [redact(text) for text in ORDINARY_TEXTS] == ORDINARY_TEXTS
    assert redact_overrides(["data.features.cookies=number"]) == ["data.features.cookies=number"]
    assert redact(kinds := {"cookies_enabled": "category", "auth": ["yes", True]}) == kinds


def test_a_known_value_is_masked_anywhere_and_in_any_encoding(monkeypatch: Patch) -> None:
    for name, value in {
        "MY_SERVICE_TOKEN": "tulip/and+rose=7", "DATABASE_URL": "postgres://heinrich:p%40ss!word@host/db",
        "Api_Key": "rose_77", "MAIL_PWD": "p(w)d[7", "TLS_KEY": "a first line of it\nand a second line",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("NOT_UTF8_PASS", "p\udcffss99")
    assert redact("p\udcffss99") == "***"
    learn({"deep": [{"client-secret": 'quo"te\\d one'}]})
    learn_arguments([])  # as in the first command of the README
    learn_arguments(["tracking.tags.apiKey=from-the-command", "--password", "swordfish"])
    for secret in (
        "tulip/and+rose=7", 'quo"te\\d one', "p@ss!word", "from-the-command", "swordfish", "heinrich", "rose_77",
        "p(w)d[7", "and a second line",
    ):  # fmt: skip
        for form in (secret, quote(secret, safe=""), json.dumps(secret), repr(secret), f"({secret})"):
            assert redact(f"it was {form} then").count("***") == 1, form
            assert secret not in redact(f"it was {form} then")


def test_a_line_printed_in_pieces_is_masked_as_a_whole() -> None:
    printed = StringIO()
    stream = GuardedStream(printed)
    print("password:", "hunter2", file=stream)
    print("step 3", end="\r", file=stream)
    print("token=abc1", end="", file=stream, flush=True)
    assert printed.getvalue() == "password: ***\nstep 3\rtoken=***"


LEAKY = '''
"""A careless package that prints, stores and raises secrets."""

import os
from dataclasses import dataclass, field

import keras

from stages.results import Record


class Leaky(keras.callbacks.Callback):
    def __init__(self, api_key, note):
        super().__init__()
        self.api_key, self.note = api_key, note

    def on_train_begin(self, logs=None):
        self.session_token = "kept-by-a-callback-1"
        self.remark = "with " + os.environ["MY_SERVICE_TOKEN"]
        print("connecting with", self.api_key, self.note, os.environ["MY_SERVICE_TOKEN"])

    def on_epoch_end(self, epoch, logs=None):
        import sys
        print("warning:", os.environ["DATABASE_URL"], "of bob, gr4pe-fruit", file=sys.stderr)


@dataclass(frozen=True)
class Done:
    record: Record = field(default_factory=Record)


def finish(trained, settings, folder):
    note = settings["note"]
    (folder / "report.txt").write_text(f"made with {note} and {os.environ['MY_SERVICE_TOKEN']}")
    if settings["fails"] == 2:
        raise RuntimeError(f"403 for {note} with {os.environ['DATABASE_URL']} and password=made-up-here-9")
    params = {"client_secret": "param-secret-value", "url": "http://u:url-p4ss@host", "long": note * 30}
    return Done(Record(params=params, metrics={f"finish/{note}": 1.0}, files={"report": folder / "report.txt"}))
'''


ENVIRONMENT = {"MY_SERVICE_TOKEN": "env-v4lue/of+a=token", "DATABASE_URL": "postgres://bobby:gr4pe-fruit@host/db"}
PLANTED = (
    *ENVIRONMENT.values(), "gr4pe-fruit", "bobby", "tag-secret-value", "camel-secret-value", "three words",
    "nested-secret-value", "callback-secret-value", "made-up-here-9", "param-secret-value", "url-p4ss",
    "kept-by-a-callback-1",
)  # fmt: skip
"""The secrets of the sweep below: in the environment, settings, callbacks, parameters and errors."""


@pytest.fixture(scope="module")
def leaking(tmp_path_factory: pytest.TempPathFactory, migrated_store: Path) -> tuple[Path, str]:
    """The outputs of a sweep with a successful and a failing job, and the printed text."""
    folder = tmp_path_factory.mktemp("leaking")
    (folder / "leaky.py").write_text(LEAKY)
    outputs = outputs_in(folder, migrated_store)
    settings = (
        "tracking.tags.api_key=tag-secret-value", "tracking.tags.dbPassword=camel-secret-value",
        "tracking.tags.pass_phrase='three words here'",
        "+finish={_target_: leaky.finish, credentials: {a: nested-secret-value}, note: beside, fails: ${seed}}",
        "train.callbacks=[{_target_: leaky.Leaky, api_key: callback-secret-value, note: beside}]",
    )  # fmt: skip
    own = ("train.batch_size=64", "pipeline.inspect=null", "+pipeline.finish=done")
    arguments = ["-m", "seed=1,2", *SMALL, *settings, *own]
    arguments += [f"tracking.note='with {ENVIRONMENT['MY_SERVICE_TOKEN']}'", "tracking.tags.size=8"]
    variables = {**os.environ, **ENVIRONMENT, "PYTHONPATH": str(ROOT), "HYDRA_FULL_ERROR": "0"}
    printed = ""
    for words in (arguments, ["compare"], ["sync"]):
        done = commands.run(*words, f"outputs={outputs}", cwd=folder, env=variables)
        printed += done.stdout + done.stderr
        assert done.returncode == (3 if words is arguments else 0), printed
    return outputs, printed


def contents(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield everything in a folder: names, files, members of archives, rows of databases."""
    for path in folder.rglob("*"):
        yield f"the name {path}", str(path.relative_to(folder)).encode()
        if not path.is_file():
            continue
        yield str(path), path.read_bytes()
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                yield from ((f"{path}:{name}", archive.read(name)) for name in archive.namelist())
        if path.suffix == ".db":
            with sqlite3.connect(path) as database:
                yield f"{path}, as SQL", "\n".join(database.iterdump()).encode()


def test_no_secret_is_in_any_file_store_or_output(leaking: tuple[Path, str]) -> None:
    outputs, printed = leaking
    everything = [("standard output and error", printed.encode()), *contents(outputs)]
    assert len(everything) > 100
    assert [(secret, place) for place, content in everything for secret in PLANTED if secret.encode() in content] == []


def test_recorded_values_next_to_secrets_are_readable(leaking: tuple[Path, str]) -> None:
    outputs, _ = leaking
    assert "connecting with *** beside" in next(outputs.glob("sweeps/*/1_*/output.log")).read_text()
    failed, finished = (json.loads(next(outputs.glob(f"sweeps/*/{job}_*/summary.json")).read_text()) for job in (2, 1))
    assert (failed["status"], finished["status"]) == ("FAILED", "FINISHED")
    assert "RuntimeError: 403 for beside with " in failed["error"]
    assert {"tracking.tags.api_key=***", "tracking.tags.size=8", "seed=1"} <= set(finished["overrides"])
    assert finished["metrics"]["test/accuracy"] > 0
    config = OmegaConf.load(next(outputs.glob("sweeps/*/1_*/config.yaml")))
    tags = config.tracking.tags
    assert (tags.api_key, str(tags["size"]), config.finish.credentials.a) == ("***", "8", "***")
    assert (config.seed, config.train.batch_size) == (1, 64)


def test_a_servers_password_is_only_sent_to_that_server(tmp_path: Path, monkeypatch: Patch) -> None:
    """Tested with real requests, because MLflow prints the address that it is given."""
    from mlflow.exceptions import MlflowException

    from pipeline.config.schemas import TrackingSettings
    from pipeline.tracking.store import Store

    headers: list[str | None] = []

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            headers.append(self.headers.get("Authorization"))
            self.send_error(404)

        def log_message(self, *arguments: object) -> None: ...

    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    for name in ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"):
        monkeypatch.delenv(name, raising=False)
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        place = f"127.0.0.1:{server.server_port}"
        for address in (f"http://heinrich:p%40ss-word@{place}", f"http://{place}"):
            settings = TrackingSettings(kind="server", uri=address)
            assert "heinrich" not in Store(settings, tmp_path).open_with("1", "a")
            with pytest.raises(MlflowException):
                Store(settings, tmp_path).client().get_run("a")
        server.shutdown()
    assert headers == [f"Basic {b64encode(b'heinrich:p@ss-word').decode()}", None]
    assert "MLFLOW_TRACKING_PASSWORD" not in os.environ


@pytest.mark.smoke
def test_redacted_texts_can_be_encoded_in_utf8() -> None:
    found = redact({"a\udcff": ["caf\u00e9 \udcff", "\ud83d"]})
    assert found == {"a\\udcff": ["caf\u00e9 \\udcff", "\\ud83d"]}
    printed = StringIO()
    print("x\udcff", file=GuardedStream(printed))
    assert printed.getvalue() == "x\\udcff\n"
