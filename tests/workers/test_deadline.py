"""The kernel ends a process that lets its deadline pass, stopped or not."""
import signal
import subprocess
import sys
import time

import pytest

from tests.conftest import command_environment

PUT_OFF = ("import os, signal, time; from hvdscale.workers.group import Deadline; d = Deadline(); " "d.put_off(1); ")


@pytest.mark.parametrize("then", ["os.kill(os.getpid(), signal.SIGSTOP)", "time.sleep(60)"])
def test_a_process_past_its_deadline_is_killed(then):
    process = subprocess.Popen([sys.executable, "-c", PUT_OFF + then], env=command_environment())
    assert process.wait(timeout=30) == -signal.SIGKILL


def test_a_process_that_puts_it_off_lives():
    program = PUT_OFF + "[(d.put_off(1), time.sleep(0.3)) for _ in range(6)]; d.put_off(60)"
    started = time.monotonic()
    assert subprocess.run([sys.executable, "-c", program], env=command_environment()).returncode == 0
    assert time.monotonic() - started > 1.5
