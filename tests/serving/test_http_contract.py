"""The server keeps what its description says, whatever it is asked: requests drawn from the description."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serving.http_models import Serving, serving, train_tables
from tdcd.serving.http.settings import Limits

PATHS = {
    "/predict": "POST",
    "/model": "GET",
    "/health": "GET",
    "/metrics": "GET",
    "/openapi.json": "GET",
    "/docs": "GET",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(train_tables(tmp_path_factory.mktemp("http")), Limits(rows=3)) as one:
        yield one


@pytest.fixture(scope="module")
def schema(server: Serving) -> Any:
    schemathesis = pytest.importorskip("schemathesis")
    return schemathesis.openapi.from_dict(server.ask("GET", "/openapi.json").json)


def checks() -> list[Any]:
    """Return what holds of every reply, and of those to wrong requests.

    That requests which fit the description are answered is not among them: it cannot say which texts are dates, nor
    that the silos of "without" are those that rows lack.
    """
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi import checks

    return [
        not_a_server_error,
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_headers_conformance,
        checks.response_schema_conformance,
        checks.negative_data_rejection,
        checks.unsupported_method,
    ]


@pytest.mark.parametrize("mode", ["positive", "negative"])
@pytest.mark.parametrize("path", PATHS)
def test_replies_are_as_described(schema: Any, server: Serving, path: str, mode: str) -> None:
    from schemathesis.generation import GenerationMode

    if mode == "negative" and path != "/predict":
        pytest.skip("it takes nothing that could be wrong")
    cases = schema[path][PATHS[path]].as_strategy(generation_mode=GenerationMode(mode))

    @settings(max_examples=30 if path == "/predict" else 1, suppress_health_check=list(HealthCheck), database=None)
    @given(cases)
    def ask(case: Any) -> None:
        case.call_and_validate(base_url=f"http://127.0.0.1:{server.port}", checks=checks())

    ask()


CELLS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.integers(), max_size=2)
)


@settings(max_examples=60, suppress_health_check=list(HealthCheck), database=None)
@given(st.data())
def test_whatever_cells_hold_they_are_predicted_from_or_refused(server: Serving, data: st.DataObject) -> None:
    """Schemathesis draws few rows that are nearly right."""
    row = server.service.predictor.example["rows"][0]
    changed = {
        silo: {**row[silo], data.draw(st.sampled_from([*row[silo]])): data.draw(CELLS)} for silo in ("bank", "insurer")
    }
    reply = server.predict([row, {**row, **changed}])
    assert reply.status in (200, 422), reply.body
    if reply.status == 422:
        (first, *_) = reply.json["errors"]
        assert (first["row"], first["column"] in row[first["silo"]]) == (2, True)
    else:
        assert [one["prediction"] in ("0", "1") for one in reply.json["predictions"]] == [True, True]
