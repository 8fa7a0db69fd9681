"""The name of the command that a message is, beside its text

Revision: 0013, follows 0012.
"""

import re

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

COMMAND = re.compile(r"/([a-z]+)(?:@\w+)?(?:\s.*)?", re.DOTALL | re.IGNORECASE)
ALIASES = {"start": "help", "compact": "compress"}
NAMES = {
    "new", "stop", "approve", "deny", "answer", "status", "usage", "insights", "compress", "model",
    "help", "retry", "pair",
}  # fmt: skip
"""The commands that there were at this revision."""


def upgrade() -> None:
    op.add_column("inbox", sa.Column("command", sa.Text(), nullable=True))
    inbox = sa.table("inbox", *map(sa.column, ("conversation", "seq", "kind", "text", "command")))
    conn = op.get_bind()
    commands = sa.select(inbox.c.conversation, inbox.c.seq, inbox.c.text)
    for row in conn.execute(commands.where(inbox.c.kind == "command")).all():
        name = _name(row.text)
        if name is not None:
            here = (inbox.c.conversation == row.conversation, inbox.c.seq == row.seq)
            conn.execute(sa.update(inbox).where(*here).values(command=name))


def _name(text: str) -> str | None:
    found = COMMAND.fullmatch(text.strip())
    word = found[1].lower() if found else ""
    name = ALIASES.get(word, word)
    return name if name in NAMES else None
