"""Fixed texts of the offline model, and the places whose time zones it knows."""

NOTICE = (
    "\n\n---\n*I am Parley's built-in offline demo model, not a real language model. For real "
    "answers set `ANTHROPIC_API_KEY` or `OPENAI_API_KEY`, or `model:` in `parley.yaml`, and "
    "restart Parley.*"
)
ABILITIES = (
    "- tell the time: *What time is it in Tokyo?*\n"
    "- calculate: *What is 12 * 7?*\n"
    "- remember this conversation: *What was my first message?*, *Summarise our conversation*\n"
    "- look something up in it: *Look up Paris in our conversation*\n"
    "- stream a long answer: *Count to 100*, *Write a long story*\n"
    "- show formatting: *Show me a table*"
)
ABOUT = (
    "I am Parley's offline demo model: a small table of rules that runs inside the gateway, "
    "without a network. Ask me *what can you do?*"
)
JOKE = "Why did the message cross the network twice? Nobody had written down the receipt."
SAMPLE = """\
## Formatting

**Bold**, *italic*, `code` and a [link](https://example.org).

| planet | moons | day in hours |
|---|---:|---:|
| Earth | 1 | 24 |
| Mars | 2 | 24.6 |
| Jupiter | 95 | 9.9 |

```python
def greet(name: str) -> str:
    return f"Hello, {name}!"
```

> A quotation.

1. first
2. second"""
PARAGRAPHS = (
    "The message came in at dusk, when the lamps along the canal were being lit one by one.",
    "Nobody had asked for it, and yet everybody in the station had been waiting for it.",
    "The keeper wrote it down at once, because what is written down cannot be lost.",
    "Then the power failed, as it does on such evenings, and the room went dark.",
    "When the light came back the page was still there, with every word in its place.",
    "So the keeper read it again, answered it, and put the answer into the outgoing tray.",
)
ZONES = {
    "amsterdam": "Europe/Amsterdam",
    "athens": "Europe/Athens",
    "beijing": "Asia/Shanghai",
    "berlin": "Europe/Berlin",
    "cairo": "Africa/Cairo",
    "chicago": "America/Chicago",
    "delhi": "Asia/Kolkata",
    "dubai": "Asia/Dubai",
    "hong kong": "Asia/Hong_Kong",
    "istanbul": "Europe/Istanbul",
    "london": "Europe/London",
    "los angeles": "America/Los_Angeles",
    "madrid": "Europe/Madrid",
    "moscow": "Europe/Moscow",
    "new york": "America/New_York",
    "paris": "Europe/Paris",
    "rome": "Europe/Rome",
    "san francisco": "America/Los_Angeles",
    "sao paulo": "America/Sao_Paulo",
    "singapore": "Asia/Singapore",
    "sydney": "Australia/Sydney",
    "tokyo": "Asia/Tokyo",
    "vienna": "Europe/Vienna",
    "zurich": "Europe/Zurich",
}
