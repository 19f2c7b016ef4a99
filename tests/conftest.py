import contextlib
import ctypes
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from hvdscale.system.hangup import STOPPING

# of the process that started the tests: readline gives pytest's workers a width, and nohup ignores SIGHUP
for variable in ("COLUMNS", "LINES"):
    os.environ.pop(variable, None)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
HANDLERS = {number: signal.getsignal(number) for number in STOPPING}

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("HVDSCALE_DATA") or ROOT.parent / "shared" / "data").absolute()       # folders of data sets
MEMORY = "/dev/shm"
GOLDEN = ROOT / "tests/golden"
NEW_NETWORK = 0x40000000                # the kernel's CLONE_NEWNET
ALONE = """ip link set lo up            # Open MPI takes no loopback interface, nor is a name found with no other
ip link add alone type bridge
ip addr add 198.18.255.1/24 dev alone
ip link set alone up"""
LAUNCHERS = {
    "mpirun": lambda np: ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", str(np)],
    "horovodrun": lambda np: ["horovodrun", "--mpi", "-np", str(np), "-H", f"localhost:{np}"],
    "gloo": lambda np: ["horovodrun", "--gloo", "-np", str(np), "-H", f"localhost:{np}"],
    "torchrun": lambda np: ["torchrun", "--standalone", "--nproc-per-node", str(np), "--no-python"],
}


def command_environment():
    """The environment of a command started by a test: our package and commands first, root allowed for Open MPI, and
    warnings as errors."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMP_NUM_THREADS": "1",
            "OMPI_MCA_btl": "^tcp",             # else each rank listens on all addresses
            "PYTHONWARNINGS": "error"}


def heed_ctrl_c():
    """For Popen's preexec_fn: the process ends by SIGINT, though the tests themselves were started with it ignored, as
    a shell that is not interactive does in the background."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def handlers():
    """Those of the tests' process, from which what it starts inherits: commands run in it leave signals ignored."""
    restore_handlers()                      # after a fixture of the module
    yield
    restore_handlers()


def restore_handlers():
    for number, handler in HANDLERS.items():
        signal.signal(number, handler)


def pytest_configure(config):
    """The tests' files lie in memory where there is room: most of a test that writes logs is waiting for its disk."""
    with contextlib.suppress(OSError):
        if shutil.disk_usage(MEMORY).free > 4 * 2**30:
            os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY)


def pytest_addoption(parser):
    parser.addoption("--renew", action="store_true", help="write the texts of tests/golden anew")


@pytest.fixture(autouse=True)
def stopped_progress(monkeypatch):
    """Nothing takes long by the clock of progress, so that what a command prints is the same on a busy machine."""
    monkeypatch.setattr("hvdscale.formatting.screen.CLOCK", lambda: 0.0)


@pytest.fixture
def golden(request):
    """Hold a text against tests/golden/NAME.txt, or keep it there under --renew.

    numbers=False   but for its numbers and how wide they are, as draws differ in a last digit from machine to machine
    within          the share by which numbers may differ
    """
    def golden(name, text, numbers=True, within=0.0):
        path = GOLDEN / f"{name}.txt"
        if request.config.getoption("renew"):
            path.write_text(text, encoding="utf-8")
        if within:
            found, kept = (re.split(r"(\d[\d,.]*\d|\d)", each) for each in (text, path.read_text(encoding="utf-8")))
            assert found[::2] == kept[::2], f"tools/test --renew keeps {path.name} as it is now"
            for one, other in zip(found[1::2], kept[1::2]):
                assert float(one.replace(",", "")) == pytest.approx(float(other.replace(",", "")), rel=within), other
            return
        found, kept = (each if numbers else re.sub(r"[\d.,]*\d", "#", re.sub(r" +|--+", " ", each))
                       for each in (text, path.read_text(encoding="utf-8")))
        assert found == kept, f"tools/test --renew keeps {path.name} as it is now"
    return golden


class Worded:
    """What the product says to people in one test, held against tests/golden/words/ROOM/FILE.txt, or kept there under
    --renew: an entry a text, under the test's name. Folders of the test read as FOLDER; ports, processes and what
    ``unlike``, a pattern, finds, as #. Of a text of many sentences, those ``about`` these words alone."""
    CHANGING = r"(?<=127\.0\.0\.1:)\d+|(?<=process )\d+ on [\w.-]+"

    def __init__(self, request, tmp_path):
        self._test, self._renews, self._texts = request.node.name, request.config.getoption("renew"), 0
        module = Path(request.node.path)
        self._functions = vars(request.module)
        self._path = GOLDEN / "words" / module.relative_to(ROOT / "tests").with_suffix(".txt")
        self._folder = re.compile("|".join(map(re.escape, (str(tmp_path), str(ROOT)))))

    def __call__(self, text, unlike=None, about=""):
        self._texts += 1
        name = f"{self._test} {self._texts}" if self._texts > 1 else self._test
        text = (text if isinstance(text, str) else "\n".join(text)).strip("\n").replace("\0", r"\0")
        text = self._folder.sub("FOLDER", text)
        if about:
            sentences = (" ".join(part.split()) for part in re.split(r"\n\s*\n|\n(?=\S)|(?<=\.)\s+(?=[A-Z])", text))
            text = "\n".join(sentence for sentence in sentences if about in sentence)
            assert text, f"nothing is said about {about!r}"
        text = re.sub(f"{self.CHANGING}|{unlike}" if unlike else self.CHANGING, "#", text)
        if self._renews:
            self._keep(name, text)
        assert text == self._entries().get(name), f"tools/test --renew keeps {self._path.name} as it is now"

    @contextlib.contextmanager
    def error(self, kind, unlike=None):
        """Hold the words of the error that is raised in the block, as pytest.raises does its kind."""
        with pytest.raises(kind) as raised:
            yield raised
        self(str(raised.value), unlike)

    def _entries(self):
        text = self._path.read_text(encoding="utf-8") if self._path.exists() else ""
        return {entry.partition("\n")[0]: entry.partition("\n")[2].rstrip("\n")
                for entry in re.split("^== ", text, flags=re.M)[1:]}

    def _keep(self, name, text):
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with open(self._path, "a", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)            # of the other processes that run tests
            entries = {test: words for test, words in {**self._entries(), name: text}.items()
                       if re.split(r"[\[ ]", test)[0] in self._functions}
            file.truncate(0)
            file.write("".join(f"== {test}\n{words}\n\n" for test, words in sorted(entries.items())))


@pytest.fixture
def worded(request, tmp_path):
    return Worded(request, tmp_path)


@pytest.fixture
def run(tmp_path):
    """Run a command in tmp_path; gives the finished process with its output as text."""
    return partial(run_in, tmp_path)


def run_in(folder, *command, timeout=300, check=True, **environment):
    done = subprocess.run([str(word) for word in command], cwd=folder, capture_output=True, text=True, timeout=timeout,
                          stdin=subprocess.DEVNULL, env={**command_environment(), **environment})
    assert not check or done.returncode == 0, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture
def here(tmp_path, monkeypatch, capsys):
    """Run hvdscale-train, or -branch, in tmp_path as ``run`` does, but in this process, which has loaded torch."""
    def here(name, *words, check=True, **environment):
        from hvdscale.cli import branch, train
        command, run = {"hvdscale-train": (train.command, train._run),
                        "hvdscale-branch": (branch.command, branch._run)}[name]
        with monkeypatch.context() as patched:
            for variable, value in environment.items():
                patched.setenv(variable, value)
            patched.chdir(tmp_path)
            patched.setattr(sys, "argv", [name, *map(str, words)])
            patched.setattr(train, "exit_now", sys.exit)
            capsys.readouterr()
            with whole_threads(), pytest.raises(SystemExit) as left:
                train.carry_out_together(command, run, elastic=name == "hvdscale-train")
            done = subprocess.CompletedProcess(words, left.value.code, *capsys.readouterr())
        assert not check or done.returncode == 0, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
        return done
    return here


@contextlib.contextmanager
def whole_threads():
    """Leave torch its number of threads, which a run sets."""
    import torch
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def launch(tmp_path):
    """Run a module's function of (workers, given) on np workers; gives what it gave on each rank, in rank order."""
    return partial(launch_in, tmp_path)


def launch_in(folder, function, np, given=None, launcher="mpirun", **limits):
    command = launcher_command(launcher, np)
    out = folder / f"{launcher}{np}"
    out.mkdir()
    (out / "given.json").write_text(json.dumps(given))
    run_in(folder, *command, sys.executable, "-m", "tests.parallel.ranks", function.__module__, function.__name__, out,
           **limits)
    return [json.loads((out / f"rank{rank}.json").read_text()) for rank in range(np)]


def launcher_command(launcher, np):
    command = LAUNCHERS[launcher](np)
    if shutil.which(command[0], path=command_environment()["PATH"]) is None:
        lacks(command[0], f"needs {command[0]} on PATH")
    return command


def pytest_collection_modifyitems(items):
    """Tests of launched jobs come first, as they take longest; a slow test may take as long as it does."""
    items.sort(key=lambda item: not item.nodeid.startswith("tests/parallel/"))
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.timeout(0))


def but_slow(values, slow):
    """The values of a test's parameter, those in ``slow`` for -m slow alone."""
    return [pytest.param(value, marks=pytest.mark.slow) if value in slow else value for value in values]


def lacks(what, reason):
    """Skip the test, or fail it where HVDSCALE_REQUIRE names the program, or the data set, that it lacks."""
    if what in os.environ.get("HVDSCALE_REQUIRE", "").split():
        pytest.fail(f"HVDSCALE_REQUIRE asks for {what}: {reason}")
    pytest.skip(reason)


def may_be_alone():
    """Whether the tests may have a network of their own."""
    with contextlib.suppress(FileNotFoundError):
        return subprocess.run(["unshare", "--net", "sh", "-ec", ALONE], capture_output=True).returncode == 0
    return False


@pytest.fixture(scope="session", autouse=True)
def machines_network():
    """Whatever addresses a launcher listens on, nobody else reaches them: where they may, the tests have a network that
    ends at this machine. Gives what takes a with-block out of it."""
    libc, machines = ctypes.CDLL(None), os.open("/proc/self/ns/net", os.O_RDONLY)
    if may_be_alone():
        libc.unshare(NEW_NETWORK)
        subprocess.run(["sh", "-ec", ALONE], check=True)
    own = os.open("/proc/self/ns/net", os.O_RDONLY)

    @contextlib.contextmanager
    def machines_network():
        libc.setns(machines, NEW_NETWORK)
        try:
            yield
        finally:
            libc.setns(own, NEW_NETWORK)
    return machines_network


@contextlib.contextmanager
def small_disk(place, size):
    """A file system of that size, such as "4m", at that place; skips the test where there may be none."""
    place.mkdir(parents=True)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", place], capture_output=True).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)         # at once, whoever may have files open there


@pytest.fixture
def mnist():
    """The folder with MNIST's four files."""
    folder = DATA / "mnist"
    if not folder.is_dir():
        lacks("mnist", f"needs MNIST's files in {folder}")
    return folder
