"""Names of secrets: of settings, tags, environment variables, headers, query parameters."""

import re
from functools import lru_cache

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
"""A word of a name in camelCase, snake_case, kebab-case or dotted, without digits."""


def words_of(text: str) -> frozenset[str]:
    """Returns the words of `text` as a set."""
    return frozenset(text.split())


_ALWAYS = words_of(
    "password passwords passwd passw psw pwd pw pgpass userpass passwort kennwort passphrase passcode passkey secret "
    "secrets credential credentials cred creds authorization bearer cookie cookies sas signature sig jwt pat dsn otp "
    "apikey apikeys connstr webhook"
)
_ALWAYS_LAST = words_of("pin pem")
"""Words that make a secret of a name that ends with them, unlike `pin_memory`."""

_AMBIGUOUS = words_of("token session auth oauth pass pat pw sas sig signature")
"""Words that also name other things: tokens of a text, signatures of a model, pointwise layers, passes."""
_COMPOUND_ENDS = (
    "password", "passwd", "passphrase", "pwd", "secret", "token", "apikey", "accesskey", "secretkey", "privatekey",
    "credential", "credentials", "connectionstring", "sessionid", "sessid", "accountkey", "authkey",
)  # fmt: skip
_COMPOUND_STARTS = ("password", "passwd", "apikey", "secretkey", "secretaccess", "secretvalue", "secrettoken")
_ORDINARY = words_of("subtoken detoken")

_KEY_OF = words_of(
    "api access private secret signing encryption decryption account shared master ssh storage service subscription "
    "session auth client deploy license app application consumer rsa pgp pem tls ssl aes hmac webhook "
    "aws azure gcp google openai anthropic stripe github gitlab slack wandb hf huggingface sendgrid twilio datadog dd "
    "cohere mistral replicate comet neptune clearml mailgun heroku ai kaggle roboflow labelbox minio s fernet jwt"
)
"""Words before `key` with which it is secret, unlike `sort_key` or `public_key`."""

_TOKEN_AFTER = words_of(
    "num max min n pad padding eos bos unk mask cls sep special start end begin first last next new image class word "
    "stop per vision patch text input output total prompt separator"
)
_TOKEN_BEFORE = words_of(
    "id ids index indices embedding embeddings dim dims mixing classification level weight weights mask dropout rate "
    "labels label loss accuracy ratio heads hidden units depth lr scale pooling mixer merging pruning"
)
"""Words next to `token` that make it one of a text."""

_PASS_AFTER = words_of(
    "low high band all first second third one two single forward backward num n per by train each multi dry"
)
_TOKENS_OF = words_of("api access auth refresh bearer secret github gitlab hf slack session")

_ABOUT = words_of(
    "path file filename dir directory folder name names type kind length len size count limit policy min max enabled "
    "required ttl expiry expires timeout seconds minutes hours days age env var field column prompt help hint regex "
    "pattern version provider backend scheme method mode"
)
"""Last words of names that describe a secret: `password_file`, `token_type`."""

_ADDRESS = words_of("url uri endpoint host")


@lru_cache(maxsize=10_000)
def is_secret_name(name: str) -> bool:
    """Returns whether a dotted name is that of a secret, such as `tags.apiKey` or `DB_PASSWORD`."""
    return any(_is_secret(_words(part)) for part in re.split(r"[./\s]", name))


@lru_cache(maxsize=10_000)
def is_certain(name: str) -> bool:
    """Returns whether a secret name has no other meaning in code, unlike `session` and `token`."""
    return any({"password", "passwd", "pwd", "passphrase", "secret", "apikey", "key"} & {*_words(name)})


@lru_cache(maxsize=10_000)
def may_be_ordinary(name: str) -> bool:
    """Returns whether a secret name can also be that of a setting on which results depend, as `keep_token` can be."""
    parts = [_words(part) for part in re.split(r"[./\s]", name)]
    secret = [(words, index) for words in parts for index in range(len(words)) if _is_secret_word(words, index)]
    before = [words[index - 1] if index else "" for words, index in secret]
    return all(words[index] in _AMBIGUOUS for words, index in secret) and not _TOKENS_OF.intersection(before)


def _words(name: str) -> tuple[str, ...]:
    return tuple(word.lower() for word in _WORD.findall(name))


def _is_secret(words: tuple[str, ...]) -> bool:
    if not words or words[-1] in _ABOUT:
        return False
    return any(_is_secret_word(words, index) for index in range(len(words)))


def _is_secret_word(words: tuple[str, ...], index: int) -> bool:
    word = words[index]
    is_last = index == len(words) - 1
    before = words[index - 1] if index else ""
    after = "" if is_last else words[index + 1]
    if word in _ALWAYS or (is_last and word in _ALWAYS_LAST):
        return True
    match word:
        case "key" | "keys":
            return before in _KEY_OF
        case "string" | "str":
            return before in ("connection", "conn")
        case "token":
            return before not in _TOKEN_AFTER and after not in _TOKEN_BEFORE | _ADDRESS
        case "tokens":
            return before in _TOKENS_OF
        case "auth" | "oauth":
            return is_last or after in ("header", "value", "data", "string", "code")
        case "session":
            return is_last or after in ("id", "value", "data")
        case "pass":
            return after in ("phrase", "word", "code") or (is_last and before not in _PASS_AFTER)
    if word in _ORDINARY:
        return False
    return word.startswith(_COMPOUND_STARTS) or (word.endswith(_COMPOUND_ENDS))
