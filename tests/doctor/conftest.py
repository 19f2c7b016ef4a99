"""One process that examines the scripts of all tests."""
import pytest

from tests.factories.examinations import Doctor


@pytest.fixture(scope="session")
def doctor():
    with Doctor() as doctor:
        yield doctor
