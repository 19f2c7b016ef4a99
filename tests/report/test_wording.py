"""The report of each schema version's golden log, as it was when that version was new; tools/test --renew renews it."""
import pytest

from hvdscale.report.make import make
from tests.conftest import GOLDEN


@pytest.mark.parametrize("name", sorted(path.stem for path in GOLDEN.glob("*.h5")))
def test_the_report_of_a_golden_log_is_as_expected(name, golden, monkeypatch):
    monkeypatch.chdir(GOLDEN)
    said = []
    make([f"{name}.h5"], whole=True, echo=said.append)
    golden(f"{name}.report", "\n".join(said))
