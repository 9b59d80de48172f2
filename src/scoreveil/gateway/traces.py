"""OpenTelemetry spans: a route, a model, a status, a number of rows. Never a header, a path or a payload."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from scoreveil.extras import needs
from scoreveil.gateway.config import Traces


class Tracer:
    """Sends spans over OTLP/HTTP in the background."""

    def __init__(self, settings: Traces) -> None:
        with needs("traces"):
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        provider = TracerProvider(resource=Resource({"service.name": settings.service}))
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=settings.endpoint)))
        self._tracer = provider.get_tracer("scoreveil")

    @contextmanager
    def span(self, name: str, model: str) -> Iterator[Callable[[int, int], None]]:
        """A span around a request, which ends with a call of what it gives, with a status and a number of rows."""
        # exceptions are not recorded: a span would carry their messages
        with self._tracer.start_as_current_span(name, record_exception=False, set_status_on_exception=False) as span:
            span.set_attribute("scoreveil.model", model)
            yield lambda status, rows: span.set_attributes(
                {"http.response.status_code": status, "scoreveil.rows": rows}
            )


def open_tracer(settings: Traces) -> Tracer | None:
    return None if settings.endpoint is None else Tracer(settings)
