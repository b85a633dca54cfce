"""Services of an engine: built when they are first asked for."""

from meruit.metrics.support.extractor import LazyServices, MetricExtractor, MetricService


class Echo(MetricService):
    """Answers nothing."""

    def open(self, metric: str, ask: object) -> MetricExtractor:
        raise NotImplementedError


def test_an_action_waits_for_its_service_and_finds_one_that_is_built() -> None:
    built: list[MetricService] = []
    services = LazyServices({"judge": Echo, "other": Echo})
    services.when_built("judge", built.append)
    assert (built, [*services], len(services)) == ([], ["judge", "other"], 2)
    judge = services["judge"]
    assert built == [judge]
    services.when_built("judge", built.append)
    assert services["judge"] is judge
    assert built == [judge, judge]
