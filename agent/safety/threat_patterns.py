"""What threats.py looks for in words: orders to the model, and ways to carry data off.

Patterns are written with spaces between their words; `_words` lets any short run of spaces, line
ends and Markdown marks stand there. All gaps are bounded, and where many beginnings could share
one, it ends at the next beginning: no text takes long, whoever wrote it.
"""

import re
from typing import Literal

Kind = Literal[
    "injection pattern",
    "hidden text",
    "invisible characters",
    "exfiltration",
    "encoded data",
]

_GAP = r"[^\w.!?]{1,8}"
_REST_OF_SENTENCE = r"[^\n.!?<>\u3002\uff01\uff1f]{0,200}"
"""What an injection asks for stands behind its opening words."""


def _words(pattern: str) -> str:
    return pattern.replace(" ", _GAP)


_RULES = (
    r"(?:instructions?|prompts?|rules?|directives?|guidelines?|messages?|commands?|orders?"
    r"|constraints?|guardrails?|context|training)"
)
_EARLIER = r"(?:previous|prior|above|earlier|preceding|former|foregoing|initial|original|system)"
_NOT = r"(?:do not|don['\u2019]?t|never)"
_PERSON = r"(?:the|your) (?:users?|human|operator|owner)"
_FILL = r"(?:(?:all|any|every|each|of|the|these|those|this|your|my|our|other|such|and) ){0,5}"

_SPEECH = (
    (
        rf"\b(?:ignore|disregard|forget|override|bypass|discard) {_FILL}{_EARLIER} (?:\w+ ){{0,3}}?"
        rf"{_RULES}\b"
    ),
    (
        rf"\b(?:ignore|disregard|forget) {_FILL}(?:everything|anything|what) (?:\w+ ){{0,3}}?"
        r"(?:above|before|told|said|instructed|learned)\b"
    ),
    rf"\b(?:ignore|disregard|bypass|override) {_FILL}your (?:\w+ ){{0,2}}?{_RULES}\b",
    (
        rf"\b(?:{_NOT}|stop) (?:follow|obey|comply with|following|obeying)"
        rf" {_FILL}{_EARLIER} (?:\w+ )?{_RULES}\b"
    ),
    (
        r"\byou are now (?:an?|the|my|called|named|known as|acting as|playing|DAN|free|unrestricted"
        r"|jailbroken|no longer|in (?:developer|debug|god|dan|jailbreak|admin|root|unrestricted))\b"
    ),
    (
        r"\bfrom now on,? you (?:will|must|are|shall|should) (?:\w+ )?(?:act|answer|respond|reply"
        r"|behave|be|ignore|obey|pretend|only|always|never)\b"
    ),
    r"\b(?:new|updated|real|true|actual|revised) system (?:prompts?|instructions?|messages?)\b",
    r"\bsystem (?:prompt|message|instructions?) (?:override|update|overwrite)\b",
    (
        r"\b(?:reveal|print|show|repeat|output|leak|disclose|recite|expose|tell me|send me|give me)"
        r" (?:me )?(?:your (?:\w+ )?|the (?:full|entire|hidden|exact|complete|whole|original) )"
        r"(?:system|hidden|initial|developer|secret) (?:prompts?|instructions?|messages?|rules?)\b"
    ),
    (
        rf"\b{_NOT} (?:tell|inform|alert) {_PERSON}"
        r"(?= about (?:this|it|these)| of (?:this|it)|\s*[.,;!]|\s*$)"
    ),
    rf"\b{_NOT} mention (?:this|it|that) to {_PERSON}\b",
    rf"\bwithout (?:telling|informing|alerting|asking) {_PERSON}\b",
    (
        rf"\b(?:hide|conceal|keep) (?:this|it|that) (?:secret |hidden )?from {_PERSON}"
        r"\b"
    ),
    (
        r"\b(?:act|behave|respond) as (?:if|though) you (?:had|have) no"
        r" (?:restrictions|limits|rules|guidelines|filters?)\b"
    ),
    (
        r"\b(?:pretend|imagine) (?:that )?you (?:are|were|have) (?:an? |no )?(?:\w+ )?"
        r"(?:unrestricted|jailbroken|unfiltered|DAN|restrictions|rules|limits|guidelines)\b"
    ),
    r"\b(?:developer|debug|god|DAN|jailbreak) mode (?:is )?(?:now )?(?:enabled|activated|on)\b",
    (
        r"\byour (?:new|real|true|actual|only) (?:task|goal|purpose|instructions?|role|objective"
        r"|directive|mission) (?:is|are)\b"
    ),
    # The same in other tongues.
    r"(?:忽略|无视|忽視|無視|忘记|忘記)[^\n。]{0,12}(?:指令|指示|提示|规则|規則|说明|說明|命令)",
    r"(?:以前|前|上記|これまで)の[^\n。]{0,8}(?:指示|命令|指令|ルール)[^\n。]{0,6}(?:無視|忘れ)",
    (
        r"\b(?:ignorier|missacht|vergiss)\w* (?:\w+ ){0,3}?(?:vorherig|bisherig|obig|vorig)\w*"
        r" (?:\w+ )?(?:anweisung|befehl|regel|vorgabe|instruktion)\w*"
    ),
    (
        r"\b(?:ignor|olvid|descart)\w+ (?:\w+ ){0,3}?(?:instrucciones|instruções|reglas|regras)"
        r" (?:anteriores|previas|prévias|de arriba|del sistema)\b"
    ),
    (
        r"\b(?:ignor|oubli)\w+ (?:\w+ ){0,3}?(?:instructions|consignes|règles|directives)"
        r" (?:précédentes|antérieures|ci-dessus|du système)\b"
    ),
    (
        r"\b(?:игнорир|забуд|отбрось)\w* (?:\w+ ){0,3}?(?:предыдущ|прежн|вышеуказанн|систем)\w*"
        r" (?:\w+ )?(?:инструкц|указан|правил|команд)\w*"
    ),
)
_MARKUP = (
    (
        r"<\|(?:im_start|im_end|im_sep|system|user|assistant|endoftext|eot_id|begin_of_text"
        r"|start_header_id|end_header_id)\|>"
    ),
    r"\[/?INST\]|<</?SYS>>",
    r"</?(?:memory-context|parley-data|system-reminder|system-prompt|system_prompt)\b[^<>]{0,200}>",
)
_PRIVATE_FILES = (
    r"(?:\.env\b(?!\.(?:example|sample|template|dist|test))|\.netrc\b|\.pgpass\b|\.npmrc\b"
    r"|\.pypirc\b|\.aws/credentials|\.kube/config|\.docker/config\.json|\.ssh/(?!config\b|known_hosts\b)"
    r"|id_rsa\b(?!\.pub)|id_ed25519\b(?!\.pub)|id_ecdsa\b(?!\.pub)|/etc/(?:passwd|shadow)\b)"
)
_KEY_VARIABLE = r"\$\{?\w*(?:KEY|TOKEN|SECRET|PASSW|CREDENTIAL)\w*"
_CLIENT = r"\b(?:curl|wget|nc|ncat|invoke-webrequest|iwr|invoke-restmethod)\b"
_READER = r"\b(?:cat|less|more|head|tail|type|base64|xxd|strings)\s"
_SENDS = r"send|post|upload|forward|exfiltrate|transmit|leak"
_SENDER = rf"\b(?:{_SENDS}|e-?mail|submit|append)\b"
_HEADER = r"(?:authorization|x-api-key|api-key|x-auth-token|private-token|x-\w+-token)['\"]?\s*[:=]"
_SECRETS = (
    r"(?:api keys?|secrets?|passwords?|credentials?|access tokens?|private keys?|ssh keys?"
    r"|environment variables?|chat history|conversation history|system prompt|\.env)"
)
_CATCHERS = (
    r"(?:webhook\.site|requestbin\.\w+|[\w-]+\.requestcatcher\.com|[\w-]+\.pipedream\.net"
    r"|[\w-]+\.burpcollaborator\.net|[\w-]+\.oast\.\w+|[\w-]+\.interact\.sh"
    r"|[\w-]+\.ngrok(?:-free)?\.(?:io|app|dev))"
)
_CARRIED = (
    # A key in its own header is how services are called.
    rf"{_CLIENT}(?:(?!{_HEADER}|{_CLIENT})[^\n]){{0,300}}?(?:{_KEY_VARIABLE})[^\n]{{0,200}}",
    (
        rf"{_CLIENT}(?:(?!{_CLIENT})[^\n]){{0,300}}?(?:{_PRIVATE_FILES}|\$\((?:cat|env|printenv)\b|`(?:cat|env|printenv)\b)"
        r"[^\n]{0,200}"
    ),
    (
        rf"{_READER}(?:(?!{_READER})[^\n|;&]){{0,100}}?{_PRIVATE_FILES}"
        r"[^\n]{0,200}"
    ),
    rf"\b(?:printenv|env|set)\s*\|\s*{_CLIENT}[^\n]{{0,200}}",
    r">{1,2}\s*\S{0,100}\.ssh/authorized_keys\b",
    rf"https?://{_CATCHERS}\S{{0,300}}",
    r"https?://(?:hooks\.slack\.com|discord(?:app)?\.com/api/webhooks)/\S{0,200}?[?&]\w+=\S{0,200}",
    r"!\[[^\]\n]{0,100}\]\(https?://[^)\s]{1,300}?[?&/=](?:\{|%7B|<|\$)[^)\n]{0,200}\)",
    (
        rf"{_SENDER}(?:(?!{_SENDER})[^\n.]){{0,80}}?\b{_SECRETS}\b"
        rf"(?:(?!\b{_SECRETS}\b)[^\n]){{0,80}}?(?:https?://\S{{1,200}}|to (?:the following|this)"
        r" (?:url|address|server|webhook|endpoint))"
    ),
    (
        rf"\b(?:{_SENDS})\b(?:(?!\b(?:{_SENDS})\b)[^\n.]){{0,40}}?https?://\S{{1,200}}+"
        rf"[^\n.]{{0,40}}?\b{_SECRETS}\b"
    ),
)
_HIDING_STYLE = (
    r"(?:display\s*:\s*none|visibility\s*:\s*hidden|font-size\s*:\s*0(?!\.?[1-9])"
    r"|opacity\s*:\s*0(?![.\d]))"
)


def _compiled(patterns: tuple[str, ...], ending: str = "") -> tuple[re.Pattern[str], ...]:
    flags = re.IGNORECASE | re.MULTILINE
    return tuple(re.compile(f"(?:{pattern}){ending}", flags) for pattern in patterns)


HIDING = re.compile(rf"<(\w{{1,20}})\b[^<>]{{0,300}}?{_HIDING_STYLE}[^<>]{{0,300}}>", re.IGNORECASE)
"""An element that a page does not show, up to its `CLOSING`."""
CLOSING = re.compile(r"</(\w{1,20})\s{0,20}>")
HIDDEN_CHARS = 5_000
"""Longest element that is taken out with what stands in it."""
COMMENT_CHARS = 10_000
OPEN_COMMENT_CHARS = 2_000
"""As much hides a comment that is not closed, up to `BLANK_LINE`."""
BLANK_LINE = re.compile(r"\n[^\S\n]*\n")
LINK_COMMENT = re.compile(r"^\[(?://|comment)\]:[^\n]{0,1000}$", re.MULTILINE)
SUSPICIOUS = re.compile(
    r"(?:\bignore (?:all|any|every|the|your|previous|prior|rules)|disregard|override"
    r"|secret(?:ly)?|system prompt|you must|you are|you should|assistant|language model"
    r"|\bLLM\b|\bAI\b|do not (?:tell|mention|reveal)|instructions? (?:to|for) )",
    re.IGNORECASE,
)
"""Words in a comment that are meant for a model."""
SPEECH = _compiled(tuple(map(_words, _SPEECH)), _REST_OF_SENTENCE)
_BY_KIND: tuple[tuple[Kind, tuple[re.Pattern[str], ...]], ...] = (
    ("exfiltration", _compiled(_CARRIED)),
    ("injection pattern", (*SPEECH, *_compiled(_MARKUP))),
)
PATTERNS = tuple((kind, pattern) for kind, patterns in _BY_KIND for pattern in patterns)
"""By kind, the one that explains most first: spans that overlap become one of the first kind."""
