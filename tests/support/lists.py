"""A database with something in each list that the command line shows page by page."""

from sqlalchemy import Connection, update

from gateway.storage.schema import member, memory, outbox, pairing, step, turn
from tests.support.storage import Store, turn_of

CONVERSATIONS = 6


def fill_lists(store: Store) -> None:
    """Enter six conversations with a turn each; dead letters, calls, notes, people in all."""
    for n in range(1, CONVERSATIONS + 1):
        current = store.run(turn_of, f"Question {n}", chat=f"chat-{n}")
        store.run(_entered, current.id, current.lease.conversation, n)


def _entered(conn: Connection, turn_id: int, here: int, n: int) -> None:
    # Two letters of each kind have the same time: their numbers decide then.
    at = float(n - n % 2)
    conn.execute(update(turn).where(turn.c.id == turn_id).values(state="dead", finished_at=at))
    sent = {"conversation": here, "seq": n, "source_key": f"k{n}", "inbox_seq": 1, "at": at}
    conn.execute(outbox.insert().values(**sent, payload=f"p{n}", state="dead"))
    ran = {"turn_id": turn_id, "kind": "tool", "name": "look", "effect": "read"}
    done = {"state": "done", "result": '{"status":"ok"}'}
    for k in range(3):
        row = {**ran, **done, "n": k + 1, "call_id": f"c{k}", "at": 10.0 * n + k}
        conn.execute(step.insert().values(row))
    named = {"scope": "telegram:42", "target": "memory", "text": f"note {n}", "at": at}
    conn.execute(memory.insert().values(named))
    let_in = {"sender_name": "A", "role": "member", "granted_by": "code", "at": at}
    conn.execute(member.insert().values(platform="telegram", sender=f"m{n}", **let_in))
    asks = {"code": f"CODE{n}", "platform": "telegram", "account": "default", "sender": f"s{n}"}
    times = {"state": "pending", "expires_at": 4e9, "at": at, "conversation": here}
    conn.execute(pairing.insert().values(**asks, **times))
