"""The overview: whether all is well, and what needs somebody."""

from gateway.console.register import Ask, Result, Shown, page


@page("/admin", "Overview", "Now")
async def overview(ask: Ask) -> Result:
    """Show how the gateway is."""
    health = await ask.inside.health.look()
    return Shown("overview.html", {"health": health})
