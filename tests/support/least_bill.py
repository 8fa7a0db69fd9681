"""The least possible bill of a request by sizes alone, as the ledger's query sums it up."""

from agent.messages import Usage
from agent.money.cache_simulator import CacheRules


def least_after(before_tokens: int, billed: Usage, rules: CacheRules) -> Usage:
    """Return the least after a prompt of `before_tokens` in the same cache, or 0 (output: 0)."""
    total = billed.prompt_tokens
    if total < rules.min_tokens:
        return Usage(input_tokens=total)
    known = max(before_tokens if before_tokens <= total else 0, billed.cache_read_tokens)
    read = known if known >= rules.min_tokens else 0
    if rules.bills_writes:
        return Usage(cache_read_tokens=read, cache_write_5m_tokens=total - read)
    return Usage(input_tokens=total - read, cache_read_tokens=read)
