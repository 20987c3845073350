"""An empty input topic."""

import pytest

from tests.support.feeding import create_topic
from tests.support.topics_reader import PARTITIONS


@pytest.fixture
async def topic(kafka: str, topic_name: str) -> str:
    await create_topic(kafka, topic_name, PARTITIONS)
    return topic_name
