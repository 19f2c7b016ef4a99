"""A throw-away Slurm cluster on this machine: munged, slurmctld and a slurmd a node, all below one folder of /tmp.

    with MiniSlurm(nodes=2, cpus=2, environment=os.environ) as slurm:
        job = slurm.wait(slurm.sbatch("-N2", "train.sbatch"))
        job["JobState"], job["ExitCode"]

Layout "hosts": every slurmd has its own host name, pids, IPC, /dev/shm and /etc/hosts (root, or user namespaces).
Layout "plain": all nodes share the host's (works for any user).
"""
import contextlib
import getpass
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time

PATH = os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/sbin:/sbin"
NEEDED = ("slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "sinfo", "scancel", "munged")
FINAL = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE"}
# of an outer job, or of a launcher
LEAKED = re.compile(r"(SLURM|SBATCH|SRUN|SALLOC|PMI|PMIX|OMPI|OPAL|PRTE|HOROVOD)_")

# No cgroups, no accounting, no fixed ports. TmpFS: one for each node, where PMIx keeps its sockets. ReturnToService=1:
# a node set down by hand stays down. cgroup/v1: slurmd loads such a plugin at any rate, and this one loads everywhere.
CONF = """\
ClusterName=mini
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/run/munge.sock
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
TmpFS={folder}/tmp/%n
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd-%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd-%n.log
PlugStackConfig={folder}/plugstack.conf
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=50000,bf_interval=1
ReturnToService=1
SlurmctldTimeout=30
SlurmdTimeout=10
KillWait=2
MinJobAge=3600
SlurmdParameters=config_overrides
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def which(name):
    """The program's place, daemons in sbin too; None without one."""
    return shutil.which(name, path=PATH)


def missing():
    """Slurm's programs that are not here."""
    return [name for name in NEEDED if which(name) is None]


def _namespaces():
    user = [] if os.geteuid() == 0 else ["--user", "--map-current-user", "--keep-caps"]
    return ["unshare", *user, "--uts", "--ipc", "--mount", "--propagation", "private", "--pid", "--fork",
            "--kill-child", "--mount-proc"]


def _hosts_possible():
    test = "hostname x && mount -t tmpfs tmpfs /dev/shm && mount --bind /dev/null /etc/hosts"
    try:
        return subprocess.run([*_namespaces(), "sh", "-c", test], capture_output=True, timeout=20).returncode == 0
    except (OSError, subprocess.TimeoutExpired):                 # containers often forbid it
        return False


def _free_ports(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("", 0))
        return [one.getsockname()[1] for one in sockets]


class MiniSlurm:
    """The cluster, up between enter and exit, with nodes n1, n2, ...; ``layout`` is "hosts" or "plain"."""

    def __init__(self, nodes, cpus, environment=os.environ):
        self.layout = "hosts" if _hosts_possible() else "plain"
        self.names = [f"n{i + 1}" for i in range(nodes)]
        self._cpus, self._given, self._processes = cpus, environment, {}

    # ---- start and stop

    def __enter__(self):
        # not tmp_path: paths of sockets end at 108 characters, and munged wants folders that all may search
        self._folder = tempfile.mkdtemp(prefix="sl", dir="/tmp")
        os.chmod(self._folder, 0o755)
        for name in ["run", "log", "state", "home", *(f"{kind}/{n}" for kind in ("spool", "tmp") for n in self.names)]:
            os.makedirs(f"{self._folder}/{name}")
        self._configure()
        self.environment = self._environment()
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception):
        if "slurmctld" in self._processes:
            with contextlib.suppress(Exception):
                self.cancel_all()
                self.run("scontrol", "shutdown", timeout=10)
        for name in sorted(self._processes, key="munged".__eq__):                 # munged last
            self._end(self._processes.pop(name))
        self._kill_leftovers()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _configure(self):
        host, ports = socket.gethostname().split(".")[0], _free_ports(len(self.names) + 1)
        text = CONF.format(folder=self._folder, host=host, port=ports[0], user=getpass.getuser())
        for name, port in zip(self.names, ports[1:]):
            text += (f"NodeName={name} NodeHostname={name if self.layout == 'hosts' else host} NodeAddr=127.0.0.1 "
                     f"Port={port} CPUs={self._cpus} RealMemory=4000 State=UNKNOWN\n")
        self._write("slurm.conf", text)
        self._write("plugstack.conf", "")
        self._write("cgroup.conf", "CgroupPlugin=cgroup/v1\n")
        self._write("hosts", "".join(f"127.0.0.1 {name}\n" for name in ["localhost", host, *self.names]))
        with open(f"{self._folder}/munge.key", "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(os.urandom(128))

    def _write(self, name, text):
        with open(f"{self._folder}/{name}", "w") as file:
            file.write(text)

    def _environment(self):
        kept = {name: value for name, value in self._given.items() if not LEAKED.match(name)}
        kept.update(SLURM_CONF=f"{self._folder}/slurm.conf", HOME=f"{self._folder}/home",
                    PATH=f"{kept['PATH']}:/usr/sbin:/sbin", OMPI_ALLOW_RUN_AS_ROOT="1",
                    OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_btl_tcp_if_include="lo")
        if self.layout == "plain":
            kept["OMPI_MCA_btl"] = "self,tcp"                    # two nodes of one host name would share their memory
        return kept

    def _start(self):
        folder, conf = self._folder, self.environment["SLURM_CONF"]
        self._spawn("munged", "--foreground", f"--key-file={folder}/munge.key", f"--socket={folder}/run/munge.sock",
                    f"--pid-file={folder}/run/munged.pid", f"--log-file={folder}/log/munged.log",
                    f"--seed-file={folder}/run/munge.seed")
        self._until(lambda: os.path.exists(f"{folder}/run/munge.sock"), "munged")
        self._spawn("slurmctld", "-D", "-i", "-f", conf)
        self._until(lambda: " UP" in self.run("scontrol", "ping", check=False).stdout, "slurmctld")
        for name in self.names:
            self._spawn_node(name, "-D", "-N", name, "-f", conf)
        idle = dict.fromkeys(self.names, "idle")
        self._until(lambda: self.node_states() == idle, "idle nodes")

    def _spawn_node(self, name, *options):
        if self.layout == "plain":
            return self._spawn("slurmd", *options, name=name)
        setup = (f"hostname {name} && mount -t tmpfs -o mode=1777 tmpfs /dev/shm && "
                 f"mount --bind {self._folder}/hosts /etc/hosts && {{ {which('slurmd')} {' '.join(options)} & wait; }}")
        self._spawn(*_namespaces(), "bash", "-c", setup, name=name)

    def _spawn(self, program, *options, name=None):
        with open(f"{self._folder}/log/{name or program}.out", "ab") as out:
            self._processes[name or program] = subprocess.Popen(     # --pdeathsig: no orphans when pytest is killed
                ["setpriv", "--pdeathsig", "KILL", which(program), *options], stdin=subprocess.DEVNULL, stdout=out,
                stderr=out, env=self.environment, start_new_session=True, cwd=self._folder)

    @staticmethod
    def _end(process):
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _until(self, ready, what, limit=30):
        end = time.monotonic() + limit
        while not ready():
            dead = [name for name, process in self._processes.items() if process.poll() is not None]
            if dead or time.monotonic() > end:
                raise RuntimeError(f"no {what}; ended: {dead}\n{self.logs()}")
            time.sleep(0.02)

    def _kill_leftovers(self):
        """slurmstepd and its tasks outlive slurmd; they carry this cluster's SLURM_CONF in their environment."""
        ours = f"SLURM_CONF={self.environment['SLURM_CONF']}".encode()
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
                if pid != os.getpid() and ours in file.read().split(b"\0"):
                    os.kill(pid, signal.SIGKILL)

    def logs(self, last=1500):
        """The end of each daemon's log."""
        ends = []
        for name in sorted(os.listdir(f"{self._folder}/log")):
            with open(f"{self._folder}/log/{name}", errors="replace") as file:
                ends.append(f"==> {name}\n{file.read()[-last:]}")
        return "\n".join(ends)

    # ---- nodes and jobs

    def run(self, *command, check=True, timeout=60, **options):
        """A finished command of this cluster, with its output as text."""
        done = subprocess.run([str(word) for word in command], env=self.environment, text=True, capture_output=True,
                              timeout=timeout, **options)
        if check and done.returncode:
            raise RuntimeError(f"{command}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def node_states(self):
        """The state of each node, by its name."""
        shown = self.run("sinfo", "-h", "-N", "-o", "%N %T", check=False).stdout
        return dict(line.split() for line in shown.splitlines())

    def sbatch(self, *words, **options):
        """Submit; gives the job's id."""
        return self.run("sbatch", "--parsable", *words, **options).stdout.strip().split(";")[0]

    def wait(self, job, limit=60):
        """The ended job as scontrol describes it, by field; raises TimeoutError."""
        end = time.monotonic() + limit
        while True:
            line = self.run("scontrol", "-o", "show", "job", job).stdout
            fields = dict(word.split("=", 1) for word in line.split() if "=" in word)
            if fields["JobState"] in FINAL:
                return fields
            if time.monotonic() > end:
                raise TimeoutError(f"job {job}: {fields['JobState']}, {fields['Reason']}\n{self.logs()}")
            time.sleep(0.05)

    def cancel_all(self, limit=20):
        """End all jobs and wait until none is left."""
        self.run("scancel", "-u", getpass.getuser(), check=False)
        end = time.monotonic() + limit
        while self.run("squeue", "-h").stdout.strip() and time.monotonic() < end:
            time.sleep(0.05)
