"""A replica that tells of more blocks than it may have: it serves, its stream is not followed, and it is named."""

from typing import Any

import pytest

from fairlead_common.wire.blocks import hash_blocks
from fairlead_common.wire.messages import HEADER_CACHED_TOKENS, HEADER_PREDICTED_CACHED_TOKENS
from fairlead_testing.fake_engine import FakeEngine

PROMPT = {"model": "fake", "prompt": "The same long beginning of every question. " * 4}


@pytest.mark.parametrize(("num_kv_blocks", "settings"), [(100, {}), (10_000, {"max_kv_blocks": 100})])
async def test_it_serves_by_what_it_computed_and_is_named(
    start, num_kv_blocks: int, settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    engine = FakeEngine("hostile", num_kv_blocks=num_kv_blocks)
    setup = await start(engines=[engine], follow=True, **settings)
    datastore = setup.gateway.datastore
    engine.stream.pretend(hash_blocks(range(101), 1))
    await setup.until(lambda: datastore.approximates("hostile"))
    await setup.until(lambda: not engine.stream.num_followers)
    assert len(datastore.index) == 0
    predicted = []
    for _ in range(2):
        status, _, headers = await setup.post(PROMPT, "/v1/completions")
        assert status == 200 and headers[HEADER_CACHED_TOKENS] == headers[HEADER_PREDICTED_CACHED_TOKENS]
        predicted.append(int(headers[HEADER_PREDICTED_CACHED_TOKENS]))
    assert predicted[0] == 0 < predicted[1]
    text = setup.gateway.metrics.exposition().decode()
    assert 'fairlead_gateway_approximated_replicas{model="default/fake",replica="hostile"} 1.0' in text
    assert 'fairlead_gateway_kv_index_replicas{model="default/fake"} 0.0' in text
    assert any("hostile tells of more blocks" in record.getMessage() for record in caplog.records)
