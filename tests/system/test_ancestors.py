"""The time since a process started, which is its start-up the first time that it is asked for."""
import math
import subprocess
import sys
import time

from hvdscale.system import ancestors


def test_a_process_knows_since_when_it_runs_and_starts_once():
    before = time.monotonic()
    done = subprocess.run([sys.executable, "-c", "import time; time.sleep(0.2)\n"
                           "from hvdscale.system.ancestors import startup_seconds as since; print(since(), since())"],
                          capture_output=True, text=True, check=True)
    first, again = map(float, done.stdout.split())
    assert 0.2 < first < time.monotonic() - before + 0.02 and math.isnan(again)  # /proc counts in hundredths


def test_what_proc_hides_is_unknown(monkeypatch):
    monkeypatch.setattr(ancestors, "find_process", lambda pid: None)
    ancestors._of_this_process.cache_clear()
    assert math.isnan(ancestors.startup_seconds())
