"""All that is measured, as queries name it."""

from gateway.metrics.series import EVENTS, SPANS, STATE, Series

PROCESS: tuple[Series, ...] = (
    Series("process_cpu_seconds", "counter", "CPU time of the process."),
    Series("process_resident_memory_bytes", "gauge", "Its memory (RSS)."),
    Series("process_virtual_memory_bytes", "gauge", "Its address space."),
    Series("process_start_time_seconds", "gauge", "When it began, since the epoch."),
    Series("process_open_fds", "gauge", "Its open file descriptors."),
    Series("process_max_fds", "gauge", "How many it may have."),
)
"""Made by prometheus-client's own collector; on Linux alone."""


def every_series() -> dict[str, Series]:
    """Return each series once, by the name that queries use, in the order of the page."""
    return {name_of(each): each for each in (*EVENTS, *SPANS, *STATE, *PROCESS)}


def name_of(series: Series) -> str:
    """Return the name that queries use; of a histogram without `_bucket`, `_sum`, `_count`."""
    return f"{series.name}_total" if series.kind == "counter" else series.name
