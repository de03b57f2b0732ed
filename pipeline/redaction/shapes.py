"""Shapes of keys and tokens that are recognized whatever their name.

The prefixes are those that their issuers document for scanners; they are also in the rules of gitleaks
(github.com/gitleaks/gitleaks, config/gitleaks.toml) and of detect-secrets, which finds lines rather than values, and
of a private key its first line alone.
"""

import re

_SERVICES = {
    "AWS": r"(?:A3T[A-Z0-9]|AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}",
    "GitHub": r"gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}",
    "GitLab": r"gl(?:pat|ptt|dt|rt|cbt|oas|soat|ft|imt|agent|ffct)-[\w.-]{10,}|GR1348941[\w-]{20}",
    "Slack": r"xox[a-z](?:\.xox[bp])?-[\w-]{8,}|xapp-\d-[\w-]{10,}",
    "Google": r"AIza[\w-]{30,}|ya29\.[\w-]{20,}|GOCSPX-[\w-]{20,}",
    "OpenAI, Anthropic, OpenRouter, DeepSeek": r"sk-[A-Za-z0-9][\w-]{15,}",
    "Stripe": r"[srp]k_(?:live|test|prod)_[A-Za-z0-9]{10,}|whsec_[A-Za-z0-9+/=]{16,}",
    "Hugging Face": r"hf_[A-Za-z0-9]{16,}|api_org_[A-Za-z0-9]{16,}",
    "Weights & Biases": r"local-[0-9a-f]{40}|wandb_v1_\w{20,}",
    "PyPI": r"pypi-AgE[\w-]{10,}",
    "npm": r"npm_[A-Za-z0-9]{20,}",
    "Docker": r"dckr_[po]at_[\w-]{20,}",
    "DigitalOcean": r"do[opr]_v1_[a-f0-9]{64}",
    "Databricks": r"dapi[a-f0-9]{32}(?:-\d)?",
    "SendGrid": r"SG\.[\w-]{16,}\.[\w-]{16,}",
    "Twilio": r"SK[0-9a-f]{32}",
    "Mailgun, Mailchimp": r"key-[0-9a-f]{32}|[0-9a-f]{32}-us\d{1,2}",
    "Telegram": r"\d{8,10}:AA[\w-]{32,}",
    "Groq, Replicate, Perplexity, xAI": r"gsk_[A-Za-z0-9]{20,}|r8_[A-Za-z0-9]{30,}|pplx-[a-zA-Z0-9]{30,}|xai-\w{30,}",
    "Vault, Pulumi": r"hv[sbr]\.[\w-]{20,}|pul-[a-f0-9]{40}",
    "Linear, Notion": r"lin_api_\w{30,}|secret_[A-Za-z0-9]{40,}|ntn_\w{30,}",
    "Shopify": r"shp(?:at|ca|pa|ss)_[a-fA-F0-9]{32}",
    "Grafana, Sentry, New Relic": r"gl(?:c|sa)_[A-Za-z0-9+/=_]{30,}|sntry[su]_[\w+/=-]{30,}|NRAK-[A-Z0-9]{27}",
    "Square, age": r"sq0[a-z]{3}-[\w-]{22,}|AGE-SECRET-KEY-1[A-Z0-9]{50,}",
    "Azure": r"[\w~.]{3}\dQ~[\w~.-]{31,34}",
    "JSON Web Token (RFC 7519)": r"eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?",
}
SERVICES = re.compile("(?<![A-Za-z0-9])(?:" + "|".join(_SERVICES.values()) + ")")

PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----|\Z)", re.S
)
"""A whole PEM block (RFC 7468); without an end line, up to the end of the text."""

WEBHOOK = re.compile(
    r"(?<=hooks\.slack\.com/)\w+/[\w/+-]+|(?<=/api/webhooks/)\d+/[\w-]+|(?<=\.webhook\.office\.com/)[\w/@-]+"
)

USER_INFO = re.compile(
    r"(?<=://)[^/@\s:'\"]{0,200}(?::(?!\d{2,5}[/?#])[^\s'\"]{0,400})?@|(?<=:)[^\s:/@'\"]{3,}@(?=(?:tcp|unix)\()"
)
"""User and password of an address (RFC 3986); from a colon that precedes no port up to the last @."""

HEADER = re.compile(
    r"(?i)\b((?:proxy-)?authorization|(?:set-)?cookie2?|x-[\w-]*(?:key|token|secret|auth)[\w-]*)"
    r"(\\?[\"']?\s*+:\s*+\\?[\"']?+(?:(?:basic|bearer|digest|negotiate|token) )?+)(?!\*\*\*)[^\"'\r\n]+"
)
SCHEME = re.compile(r"\b(Basic|Bearer|basic|bearer|BEARER|BASIC)(\s+)([\w+/=.~-]{6,})")
